"""Making the real engine's environment: what can be checked without making one."""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from e2e.engine import install, model
from e2e.engine.real import Ports, RealEngine, environment, serve_arguments
from e2e.engine.standin.cli import config_from
from e2e.ports import RANGE, free_ports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment_folder(tmp_path: Path) -> Path:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "nixl_cu13"
    package.mkdir(parents=True)
    (package / "_api.py").write_text("class A:\n    agent_config.pthrDelay = 0\n    agent_config.lthrDelay = 100000\n")
    return tmp_path


def test_nixl_delay_is_set_once_and_for_all(environment_folder: Path) -> None:
    """The patch sets the delay, changes nothing else, and done again changes nothing."""
    source = install.site_packages(environment_folder) / install.NIXL_API
    install._patch_nixl_delay(environment_folder)
    once = source.read_text()
    assert once == "class A:\n    agent_config.pthrDelay = 1000\n    agent_config.lthrDelay = 100000\n"
    install._patch_nixl_delay(environment_folder)
    assert source.read_text() == once


def test_nixl_delay_spares_the_package_cache(environment_folder: Path, tmp_path: Path) -> None:
    """A file that is shared by a hard link is not changed for others."""
    source = install.site_packages(environment_folder) / install.NIXL_API
    shared = tmp_path / "cached"
    os.link(source, shared)
    install._patch_nixl_delay(environment_folder)
    assert "pthrDelay = 0" in shared.read_text()


def test_a_changed_nixl_is_noticed(environment_folder: Path) -> None:
    """Where the line to patch is not found, the installation fails and says so."""
    (install.site_packages(environment_folder) / install.NIXL_API).write_text("pass\n")
    with pytest.raises(install.InstallError, match=r"0 lines set agent_config\.pthrDelay"):
        install._patch_nixl_delay(environment_folder)


def test_half_made_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the mark that is written last does not count."""
    monkeypatch.setenv("PDPOOL_CACHE", str(tmp_path))
    assert install.venv().is_relative_to(tmp_path)
    program = install.venv() / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.touch()
    assert not install.is_installed()
    (install.venv().parent / "complete").touch()
    assert install.is_installed()


def test_mounts_show_everything_once() -> None:
    """A pod sees /usr, the interpreter and the environment, none of them twice."""
    mounts = install.host_mounts()
    for needed in (install.interpreter(), install.venv() / "bin"):
        assert any(needed.is_relative_to(mount) for mount in mounts)
    assert not any(one != other and one.is_relative_to(other) for one in mounts for other in mounts)


def test_free_ports_are_out_of_the_way() -> None:
    """Ports differ, can be bound, as can those in a row with them, and lie below those of outgoing connections."""
    ports = free_ports(8, in_a_row=2)
    assert len(set(ports)) == 8
    for port in ports:
        assert port in RANGE
        for each in (port, port + 1):
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", each))


def test_ports_that_are_asked_for_at_once_differ() -> None:
    """Whoever asks while others have theirs but do not listen yet gets others."""
    with ThreadPoolExecutor(4) as asking:
        given = [port for ports in asking.map(free_ports, [50] * 8) for port in ports]
    assert len(set(given)) == len(given)


def test_arguments_are_vllms() -> None:
    """What a real engine is given, vLLM's own flags accept; only prefill and decode have a connector."""
    ports = Ports(8001, 5600, 5557, 5657)
    roles = {role: config_from(["m", *serve_arguments(role, ports)], {}).kv_role for role in ("prefill", "decode")}
    assert roles == {"prefill": "kv_producer", "decode": "kv_consumer"}
    assert config_from(["m", *serve_arguments("aggregated", ports)], {}).kv_role is None


def test_environment_is_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's Python reaches the engine; the side channel is told."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    told = environment(Ports(8001, 5600, 5557, 5657))
    assert "PYTHONPATH" not in told
    assert told["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert told["PATH"].startswith(str(install.venv() / "bin"))


def test_kv_bytes_of_the_tiny_model() -> None:
    """A block of the tiny model is 65,536 bytes: what every check of transferred bytes rests on."""
    assert model.KV_BYTES_PER_TOKEN * model.BLOCK_TOKENS == 65_536


def test_an_engine_that_ends_at_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the program ends before it is healthy the error holds its last words and the log's path."""
    monkeypatch.setenv("PDPOOL_CACHE", str(tmp_path))

    class Failing(RealEngine):
        def program(self) -> list[str]:
            return [sys.executable, "-c", "print('no luck'); raise SystemExit(3)"]

    engine = Failing("prefill")
    engine.start()
    with pytest.raises(install.InstallError, match=r"ended with 3[\s\S]*no luck"):
        engine.wait_healthy(10)
    engine.stop()
    assert not list((install.engine_root() / "running").glob("*.json"))
