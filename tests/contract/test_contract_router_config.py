"""The router's file: strict, with every fault named, and written as it is read."""

from __future__ import annotations

from typing import Any

import pytest

from pdpool_api import router_config, router_spec
from pdpool_api.router_config import ConfigError

SMALLEST: dict[str, Any] = {
    "model": {"servedNames": ["m"]},
    "endpoints": {"static": [{"role": "decode", "url": "http://h:8000"}]},
}


def test_a_written_file_is_read_back() -> None:
    """What the operator writes, the router reads: nothing is lost or added."""
    pods = {"endpoints": {"pods": {"namespace": "n", "pool": "p", "uid": "u"}}}
    for raw in (SMALLEST, {**SMALLEST, **pods}, {**SMALLEST, "limits": {"maxConcurrent": 7}}):
        config = router_config.from_mapping(raw)
        assert router_config.parse(router_config.dump(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": {}}, "modle: Extra inputs are not permitted"),
        ({"limits": {"maxBodybytes": 1}}, "limits.maxBodybytes: Extra inputs are not permitted"),
        ({"limits": {"maxConcurrent": 0}}, "limits.maxConcurrent: Input should be greater than 0"),
        ({"model": {"servedNames": []}}, "model.servedNames: "),
        ({"endpoints": {}}, "exactly one of static and pods must be given"),
        ({"endpoints": {"static": [{"role": "router", "url": "http://h:1"}]}}, "endpoints.static.0.role: "),
        ({"endpoints": {"static": [{"role": "decode", "url": "ftp://h"}]}}, "endpoints.static.0.url: "),
        ({"routing": {"policy": "Magic"}}, "routing.policy: "),
        ({"forwardHeaders": ["not a name"]}, "forwardHeaders.0: "),
    ],
)
def test_a_broken_rule_is_named_with_its_field(change: dict[str, Any], message: str) -> None:
    """A misspelt setting never goes unnoticed."""
    with pytest.raises(ConfigError) as caught:
        router_config.from_mapping({**SMALLEST, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not YAML"), ("- a", "must hold a mapping, not list"), ("", "not NoneType")]
)
def test_a_file_that_is_no_mapping_is_refused(text: str, message: str) -> None:
    """Broken YAML, a list, an empty file."""
    with pytest.raises(ConfigError, match=message):
        router_config.parse(text)


@pytest.mark.parametrize(
    ("of_pool", "of_file"),
    [(router_spec.Routing, router_config.Routing), (router_spec.Limits, router_config.Limits)],
)
def test_what_a_pool_says_of_its_router_is_what_the_file_holds(of_pool: Any, of_file: Any) -> None:
    """Each field of spec.router.routing and .limits is one of the file, with the same default."""
    assert set(of_pool.model_fields) <= set(of_file.model_fields)
    assert of_file.model_validate(of_pool().model_dump()) == of_file()
