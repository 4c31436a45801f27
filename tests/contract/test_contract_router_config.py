"""The router's file: strict, with every fault named, and written as it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdpool_api import router_config, router_config_schema, router_spec
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


TEXT = """\
model: {servedNames: [m]}
endpoints:
  static:
  - role: decode
    url: "http://h:8000"
  - {role: prefill, url: "http://p:8000"}
limits:
  maxConcurrent: 7
tenants:
- key: a
auth: {apiKeysFile: f}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("maxConcurrent: 7", "maxConcurrent: 0", "line 8: limits.maxConcurrent: Input should be greater than 0"),
        ("maxConcurrent: 7", "maxConcurrent: '7'", "line 8: limits.maxConcurrent: Input should be a valid integer"),
        ("maxConcurrent: 7", "maxConcurrent: true", "line 8: limits.maxConcurrent: Input should be a valid integer"),
        ("maxConcurrent: 7", "max_concurrent: 7", "line 8: limits.max_concurrent: Extra inputs are not permitted"),
        ("maxConcurrent: 7", "connectSeconds: .nan", "line 8: limits.connectSeconds: Input should be less"),
        ("http://p:8000", "p:8000", "line 6: endpoints.static.1.url: String should match"),
        ('url: "http://h', 'uri: "http://h', "line 4: endpoints.static.0.url: Field required"),
        ("limits:", "limit:", "line 7: limit: Extra inputs are not permitted"),
        ("limits:", "model:", "line 7: model: given twice, first on line 1"),
        ('url: "http://h', 'role: "http://h', "line 5: role: given twice, first on line 4"),
        ("limits:", "7:", "line 7: a key must be text"),
        ("limits:", "limits: [", "line 9: not YAML"),
        ("- key: a", "- key: a\n- key: a", "tenants: each key is named once"),
        (
            'http://p:8000"}',
            'http://p:8000", uid: u}\n  - {role: decode, url: "http://d", uid: u}',
            "each uid is given once",
        ),
        ("{apiKeysFile: f}", "{}", "tenants need auth.apiKeysFile"),
        ("{apiKeysFile: f}", "{saltFile: s}", "line 11: auth: Value error, saltFile needs apiKeysFile"),
        (
            "tenants:",
            "tls: {certFile: c}\ntenants:",
            "line 9: tls: Value error, certFile and keyFile are given together",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_line(old: str, new: str, message: str) -> None:
    """Line, field and rule of each fault; a key given twice is one, and a number written as text."""
    with pytest.raises(ConfigError) as caught:
        router_config.parse(TEXT.replace(old, new, 1))
    assert message in str(caught.value)


def test_every_fault_of_a_file_is_told() -> None:
    """Not only the first one: each has its own line."""
    text = TEXT.replace("maxConcurrent: 7", "maxConcurrent: 0\n  maxBodyBytes: -1").replace("- key: a", "- kee: a")
    with pytest.raises(ConfigError) as caught:
        router_config.parse(text)
    for message in ("line 8: limits.maxConcurrent", "line 9: limits.maxBodyBytes", "line 11: tenants.0.kee"):
        assert message in str(caught.value)


def test_numbers_are_written_as_in_pools() -> None:
    """`5e9` is a number here too, and `12:30` a word; names that look like either are read back as written."""
    text = TEXT.replace("[m]", "[12:30, 2026-01-01]").replace(
        "limits:", "speeds: {transfer: {bytesPerSecond: 5e9}}\nlimits:"
    )
    config = router_config.parse(text)
    assert config.speeds.transfer.bytes_per_second == 5e9
    assert config.model.served_names == ("12:30", "2026-01-01")
    names = ("5e9", "70.6e9", "12:30", "2026-01-01", "1e3", "0o17", "017", "yes", "1.", "~", "0x1f", ".inf")
    odd = router_config.from_mapping({**SMALLEST, "model": {"servedNames": names}})
    written = router_config.dump(odd)
    assert router_config.parse(written) == odd
    assert tuple(yaml.safe_load(written)["model"]["servedNames"]) == names, "a router of a release before reads it too"


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}"])
def test_a_value_that_contains_itself_is_refused(text: str) -> None:
    """YAML can say it, no configuration means it."""
    with pytest.raises(ConfigError):
        router_config.parse(text)


EVERYTHING = """\
model: {servedNames: [m], adapters: []}
endpoints:
  static:
  - {role: prefill, url: "http://p:8000", revision: "", uid: "", hardware: "", kvEvents: "tcp://p:5557", kvReplay: "tcp://p:5657"}
  - {role: decode, url: "http://[fd00::1]:8000"}
speeds: {prefill: {tokensPerSecond: 0}, decode: {stepMilliseconds: 0}, transfer: {bytesPerSecond: 0}}
routing:
  policy: KvAware
  index: {source: Events, maxBlocks: 2000000}
  localPrefill: {maxUncachedTokens: 512, minCachedRatio: 0.8}
  onPrefillUnavailable: Local
  sessionHeader: x-session-id
limits:
  {maxBodyBytes: 33554432, maxConcurrent: 4096, maxQueued: 1024, queueSeconds: 60, prefillSeconds: 120,
   idleSeconds: 300, wakeSeconds: 600, maxLocalPrefills: 4, maxQueuedBytes: 268435456, connectSeconds: 5}
auth: {apiKeysFile: /etc/pdpool/keys, saltFile: /etc/pdpool/salt}
tenants: [{key: team-a, models: [], adapters: [], weight: 1, priority: 0, requestsPerSecond: 0, concurrent: 0}]
tls: {certFile: "", keyFile: ""}
forwardHeaders: []
"""


def test_a_file_may_say_everything() -> None:
    """Every field that the contract has is read, and its defaults are those that the contract gives."""
    config = router_config.parse(EVERYTHING)
    smallest = router_config.from_mapping(SMALLEST)
    assert (config.limits, config.tls, config.routing) == (smallest.limits, smallest.tls, smallest.routing)
    assert config.tenants == (router_config.Tenant(key="team-a"),)


def test_the_published_schema_is_that_of_the_models() -> None:
    """The schema of the file knows every section, and nothing else."""
    published = Path(__file__).parents[2] / router_config_schema.DEFAULT_FILE
    assert published.read_text() == router_config_schema.text()
    schema = json.loads(router_config_schema.text())
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(
        router_config.from_mapping(SMALLEST).model_dump(by_alias=True, exclude_none=False)
    )
    assert schema["properties"]["tenants"]["description"]


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


def test_what_a_pool_says_of_a_tenant_is_what_the_file_holds() -> None:
    """Each field of spec.router.tenants is one of the file's, with the same default."""
    assert set(router_spec.Tenant.model_fields) == set(router_config.Tenant.model_fields)
    of_pool = router_spec.Tenant(key="a")
    assert router_config.Tenant.model_validate(of_pool.model_dump()) == router_config.Tenant(key="a")
