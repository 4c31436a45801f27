"""The configuration: flags, file, what is refused, what a change does to a running router."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.engine.standin import Standin
from pdpool_api.names import Role
from pdpool_api.router_config import ConfigError, dump, from_mapping, parse
from pdpool_router import config as configuration
from pdpool_router.config import settings, watch
from tests.router.conftest import config, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pdpool_api.router_config import RouterConfig
    from tests.router.conftest import MakeSite

MINIMAL = {"model": {"servedNames": ["m"]}, "endpoints": {"static": [{"role": "decode", "url": "http://h:8000"}]}}


def test_flags_are_a_short_form_of_the_file() -> None:
    """`--model --prefill --decode --endpoint` say what a file would."""
    flags = settings(
        [
            "--model",
            "m",
            "--model",
            "alias",
            "--prefill",
            "http://p:1",
            "--decode",
            "http://d:1",
            "--decode",
            "http://[::1]:2",
        ]
    )
    assert flags.config == from_mapping(
        {
            "model": {"servedNames": ["m", "alias"]},
            "endpoints": {
                "static": [
                    {"role": "prefill", "url": "http://p:1"},
                    {"role": "decode", "url": "http://d:1"},
                    {"role": "decode", "url": "http://[::1]:2"},
                ]
            },
        }
    )
    assert (flags.port, flags.admin_port, flags.file) == (8080, 9090, None)
    assert settings(["--model", "m", "--endpoint", "http://e:1"]).config.endpoints.static[0].role is Role.AGGREGATED


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prefill", "http://p:1"], "--model"),
        (["--model", "m"], "endpoints"),
        (["--model", "m", "--decode", "d:1"], "endpoints.static.0.url"),
        (["--model", "m", "--decode", "http://d:1/path"], "endpoints.static.0.url"),
        (["--config", "/nowhere/router.yaml"], "/nowhere/router.yaml"),
    ],
)
def test_bad_flags_are_refused_by_name(arguments: list[str], named: str) -> None:
    """What is wrong on the command line is named."""
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        settings(arguments)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"unknown": 1}, "unknown"),
        ({"limits": {"maxBodyByte": 1}}, "limits.maxBodyByte"),
        ({"limits": {"maxBodyBytes": 0}}, "limits.maxBodyBytes"),
        ({"limits": {"idleSeconds": -1}}, "limits.idleSeconds"),
        ({"routing": {"policy": "Random"}}, "routing.policy"),
        ({"routing": {"onPrefillUnavailable": "Maybe"}}, "routing.onPrefillUnavailable"),
        ({"model": {"servedNames": []}}, "model.servedNames"),
        ({"model": {"servedNames": ["m", ""]}}, "model.servedNames.1"),
        ({"endpoints": {}}, "endpoints"),
        ({"endpoints": {"static": [{"role": "router", "url": "http://h:1"}]}}, "endpoints.static.0.role"),
        ({"forwardHeaders": ["Bad Header"]}, "forwardHeaders.0"),
    ],
)
def test_a_file_is_refused_with_the_field_and_the_rule(change: dict[str, Any], named: str) -> None:
    """An unknown or wrong field is an error that names its path."""
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        parse(yaml.safe_dump({**MINIMAL, **change}))


@pytest.mark.parametrize("address", ["h:99999", "h:0", "h:abc", "h:", ":80", "[::1", "u:p@h:80", "h:80?x", "h/x", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """What cannot be connected to is refused when it is read, not when it is used."""
    with pytest.raises(ConfigError, match=r"endpoints\.static\.0\.url"):
        parse(yaml.safe_dump({**MINIMAL, "endpoints": {"static": [{"role": "decode", "url": f"http://{address}"}]}}))


def test_names_of_headers_have_no_case() -> None:
    """A header to forward may be written in any case."""
    assert parse(yaml.safe_dump({**MINIMAL, "forwardHeaders": ["X-Tenant"]})).forward_headers == ("x-tenant",)


def test_flags_are_not_abbreviated() -> None:
    """A flag counts as it is written: a misspelt one is refused, not completed."""
    with pytest.raises(SystemExit):
        settings(["--model", "m", "--end", "http://e:1"])


async def test_a_configuration_that_cannot_be_applied_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a file that fails when it is taken over, the next one is still read."""
    monkeypatch.setattr(configuration, "POLL_S", 0.02)
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    applied: list[int] = []

    def apply(new: RouterConfig) -> None:
        applied.append(new.limits.max_concurrent)
        if new.limits.max_concurrent == 7:
            raise ValueError("a defect")

    watching = asyncio.create_task(watch(file, parse(file.read_text()), apply))
    for number in (7, 8):
        file.write_text(yaml.safe_dump({**MINIMAL, "limits": {"maxConcurrent": number}}))
        await eventually(lambda number=number: number in applied)  # type: ignore[misc]
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


@pytest.mark.parametrize("text", ["", "[]", "a: [", "just text", pytest.param("{" * 10_000, id="deep")])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    """A file that holds no YAML mapping is an error."""
    with pytest.raises(ConfigError):
        parse(text)


def test_what_the_operator_writes_the_router_reads() -> None:
    """A configuration survives being written and read."""
    whole = from_mapping(
        {
            **MINIMAL,
            "endpoints": {"pods": {"namespace": "serving", "pool": "llama", "uid": "u"}},
            "routing": {"policy": "RoundRobin", "onPrefillUnavailable": "Fail"},
            "limits": {"maxLocalPrefills": 0, "connectSeconds": 1.5},
            "forwardHeaders": ["x-tenant"],
        }
    )
    assert parse(dump(whole)) == whole


async def test_a_file_is_read_again_and_a_bad_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A valid change is applied, an invalid or missing file is refused once in the log, and the old one stays."""
    monkeypatch.setattr(configuration, "POLL_S", 0.02)
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    applied: list[RouterConfig] = []
    watching = asyncio.create_task(watch(file, parse(file.read_text()), applied.append))
    file.write_text(yaml.safe_dump({**MINIMAL, "limits": {"maxConcurrent": 7}}))
    await eventually(lambda: len(applied) == 1)
    assert applied[0].limits.max_concurrent == 7
    file.write_text("limits: {maxConcurrent: none}")
    logged: list[str] = []

    def is_refused() -> bool:
        logged.extend(capfd.readouterr())
        return "limits.maxConcurrent" in "".join(logged)

    await eventually(is_refused)
    file.unlink()
    await asyncio.sleep(0.1)
    assert len(applied) == 1
    # As a ConfigMap is changed: by a link to another directory.
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "router.yaml").write_text(yaml.safe_dump({**MINIMAL, "limits": {"maxConcurrent": 8}}))
    file.symlink_to(tmp_path / "new" / "router.yaml")
    await eventually(lambda: len(applied) == 2)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_a_running_router_takes_over_a_new_configuration(site: MakeSite) -> None:
    """Names, limits, headers, policy and endpoints change without a restart; requests in hand end as they began."""
    here = await site()
    async with Standin("decode") as other:
        here.d.set_pace(step_s=0.05)
        running = asyncio.create_task(here.complete(max_tokens=8))
        await eventually(lambda: len(here.d.generations()) == 1)
        static = [{"role": "prefill", "url": here.p.url}, {"role": "decode", "url": other.url}]
        here.router.configure(
            config(
                static,
                model={"servedNames": ["tiny", "new"]},
                limits={"maxBodyBytes": 500},
                routing={"policy": "RoundRobin"},
                forwardHeaders=["x-tenant", "x-data-parallel-rank"],
            )
        )
        assert (await running).status_code == 200
        headers = {"x-tenant": "a", "x-data-parallel-rank": "1"}
        answer = await here.client.post(
            "/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1}, headers=headers
        )
        assert answer.status_code == 200
        (request,) = other.generations()
        assert (request.header("x-tenant"), request.header("x-data-parallel-rank")) == ("a", None)
        assert len((await here.client.get("/v1/models")).json()["data"]) == 2
        assert (await here.complete(prompt="x" * 600)).status_code == 413


async def test_a_router_without_its_first_list_is_not_ready(site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/readyz` waits for the endpoints to be listed once; `/livez` does not."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    here = await site()
    here.router.endpoints.listed = False
    admin = f"http://127.0.0.1:{here.router.admin_port}"
    assert (await here.client.get(f"{admin}/readyz")).status_code == 503
    assert (await here.client.get(f"{admin}/livez")).status_code == 200
    here.router.endpoints.listed = True
    assert (await here.client.get(f"{admin}/readyz")).status_code == 200
