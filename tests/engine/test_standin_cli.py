"""The stand-in's command line: vLLM's spellings are understood, what vLLM refuses is refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from e2e.engine.real import END_TIMEOUT_S, EngineSet, Ports, serve_arguments
from e2e.engine.standin.cli import config_from
from e2e.engine.standin.process import ROOT, StandinProcess


def test_reads_what_the_real_engine_is_given() -> None:
    """The arguments of a real set become the same engine: role, lease, policy, events, block size."""
    ports = Ports(8001, 5600, 5557, 5657)
    arguments = ["/models/tiny", *serve_arguments("decode", ports, lease_s=9, on_failure="recompute")]
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"}
    config = config_from(arguments, environment)
    assert (config.model, config.served_names, config.port) == ("/models/tiny", ("tiny",), 8001)
    assert (config.kv_role, config.lease_s, config.on_failure) == ("kv_consumer", 9.0, "recompute")
    assert (config.side_channel_host, config.side_channel_port) == ("10.0.0.1", 5700)
    assert config.events.publishes
    assert config.events.replay_endpoint == "tcp://*:5657"
    assert (config.block_tokens, config.blocks, config.max_seqs, config.max_model_len) == (32, 2048, 8, 2048)


@pytest.mark.parametrize(
    "spelling",
    [
        ["--max-model-len", "4000"],
        ["--max_model_len=4000"],
        ["--max-model-len=4k"],
        ["--max-model", "4000"],
    ],
)
def test_spellings_of_a_flag(spelling: list[str]) -> None:
    """Underscores, equals signs, suffixes and unambiguous beginnings are taken as vLLM takes them."""
    assert config_from(["m", *spelling], {}).max_model_len == 4000


def test_dotted_keys_become_an_object() -> None:
    """`--object.key value` gives the same as the object in JSON."""
    dotted = ["m", "--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both"]
    dotted += ["--kv-transfer-config.kv_connector_extra_config.kv_lease_duration", "7"]
    config = config_from(dotted, {})
    assert (config.kv_role, config.lease_s) == ("kv_both", 7.0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--swap-space", "4"], "unrecognized arguments: --swap-space"),
        (["--port", "http"], "--port"),
        (["--dtype", "float12"], "--dtype"),
        (["--kv-transfer-config", "{"], "--kv-transfer-config"),
        (["--kv-transfer-config", '{"kv_rank": 1}'], "kv_rank"),
        (["--kv-transfer-config", '{"kv_connector": "NixlConnector"}'], "kv_role"),
        (["--kv-events-config", '{"endpont": "tcp://*:1"}'], "endpont"),
        (["--max-model-len", "4000", "--num-gpu-blocks-override", "10"], "KV cache"),
    ],
)
def test_refuses_what_vllm_refuses(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown flag, a bad value or an unknown key ends the program with status 2 and a reason."""
    with pytest.raises(SystemExit) as ended:
        config_from(["m", *arguments], {})
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_process_drains_on_sigterm_and_exits_0() -> None:
    """SIGTERM ends an idle process at once with status 0."""
    engine = StandinProcess("prefill", extra=("--shutdown-timeout", "20"))
    with EngineSet([engine]):
        process = engine.process
        assert process is not None
        assert httpx.get(f"{engine.url}/version").json() == {"version": "0.32.0"}
        engine.terminate()
        assert process.wait(END_TIMEOUT_S) == 0


def test_engines_end_with_their_owner() -> None:
    """An engine ends when the program that started it is killed."""
    code = (
        "import time; from e2e.engine.standin.process import StandinProcess as S; engine = S('prefill');"
        "engine.start(); engine.wait_healthy(); print(engine.process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert owner.stdout is not None
    with owner:
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    end_s = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_an_engine_whose_port_was_taken_gets_another() -> None:
    """Between the choice of a port and its use somebody else may take it, which is no failure of the set."""
    engine = StandinProcess("aggregated")
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", engine.ports.http))
        thief.listen()
        with EngineSet([engine]):
            assert httpx.get(f"{engine.url}/health", timeout=30).status_code == httpx.codes.OK
