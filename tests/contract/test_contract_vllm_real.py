"""Our reading of vLLM's command line, and the stand-in's, against vLLM's own parser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.engine import install
from e2e.engine.standin.cli import FLAGS_FILE
from pdpool_api.engines import vllm
from pdpool_api.engines.vllm import flags
from pdpool_api.names import Role

if TYPE_CHECKING:
    from tests.contract.conftest import MakeSpec

pytestmark = pytest.mark.engine

DESCRIBE = Path(install.__file__).with_name("describe.py")
ANSWER = "answer: "
"""What tells an answer from whatever else vLLM prints."""

Ask = Callable[[list[list[str]]], dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks the real parser, in one process for all tests: vLLM takes twenty seconds to import."""
    if not install.is_installed():
        pytest.skip("the engine's environment is not installed (python -m e2e.engine install)")
    errors = tmp_path_factory.mktemp("parser") / "errors"
    with (
        errors.open("w") as stream,
        subprocess.Popen(
            [install.venv() / "bin/python", DESCRIBE, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        ) as parser,
    ):
        assert parser.stdin is not None
        assert parser.stdout is not None

        def asked(command_lines: list[list[str]]) -> dict[str, Any]:
            print(json.dumps(command_lines), file=parser.stdin, flush=True)
            for line in parser.stdout:
                if line.startswith(ANSWER):
                    answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                    return answer
            raise AssertionError(errors.read_text()[-2000:])

        yield asked


@pytest.fixture(scope="module")
def options(ask: Ask) -> dict[str, str]:
    """Every option string of `vllm serve`, with where its value goes."""
    found: dict[str, str] = ask([])["options"]
    return found


def test_the_stand_ins_flags_are_those_of_the_installed_engine(ask: Ask) -> None:
    """The flags that the stand-in has as data are those of the real parser."""
    assert ask([])["flags"] == json.loads(FLAGS_FILE.read_text())


def test_every_known_flag_exists(options: dict[str, str]) -> None:
    """What we generate, or look for, the parser has."""
    assert not flags.KNOWN - options.keys()


def test_short_forms_mean_the_same(options: dict[str, str]) -> None:
    """Each short form goes where its long form goes, and no known flag has another short form."""
    assert {short: options[short] for short in flags.SHORT} == {s: options[long] for s, long in flags.SHORT.items()}
    destinations = {options[long] for long in flags.KNOWN}
    short = {name for name, where in options.items() if where in destinations and not name.startswith("--")}
    assert short == flags.SHORT.keys()


def test_no_real_flag_is_mistaken_for_a_known_one(options: dict[str, str]) -> None:
    """A flag that is the beginning of a known one would be taken for its abbreviation; there is none."""
    for name, where in options.items():
        flag, negated = flags.canonical(name)
        assert options.get(flag, where) == where
        assert negated is (name.startswith("--no-") and flag in flags.KNOWN)


def test_generated_arguments_are_understood(spec: MakeSpec, ask: Ask) -> None:
    """The real parser takes the arguments of both roles, and reads in them what the spec says."""
    pool = spec(
        model={"id": "/model", "servedNames": ["b", "a"], "maxModelLen": 2048, "revision": "r"},
        engine={"args": ["--dtype", "float32", "--kv_transfer_config.kv_connector_extra_config.backends+", "UCX"]},
        transfer={"leaseSeconds": 12, "onFailure": "Recompute"},
        prefill={"hardware": "cpu", "parallelism": {"tensor": 2, "pipeline": 2, "data": 2}},
        decode={"hardware": "cpu", "args": ["-tp=2"]},
    )
    prefill, decode = ask([vllm.arguments(pool, role) for role in (Role.PREFILL, Role.DECODE)])["parsed"]
    for parsed, kv_role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        assert (parsed["model_tag"], parsed["served_model_name"]) == ("/model", ["b", "a"])
        assert (parsed["port"], parsed["revision"], parsed["max_model_len"]) == (8000, "r", 2048)
        assert (parsed["tensor_parallel_size"], parsed["block_size"], parsed["dtype"]) == (2, 32, "float32")
        assert parsed["enable_prompt_tokens_details"] is True
        assert parsed["kv_transfer_config"]["kv_role"] == kv_role
        assert parsed["kv_transfer_config"]["kv_load_failure_policy"] == "recompute"
        extra = {"kv_lease_duration": 12, "backends": ["UCX"]}
        assert parsed["kv_transfer_config"]["kv_connector_extra_config"] == extra
        assert parsed["kv_events_config"]["endpoint"] == "tcp://*:5557"
        assert parsed["kv_events_config"]["replay_endpoint"] == "tcp://*:5657"
    assert (prefill["shutdown_timeout"], decode["shutdown_timeout"]) == (17, 10)
    assert (prefill["pipeline_parallel_size"], prefill["data_parallel_size"]) == (2, 2)


def test_the_real_parser_takes_the_spellings_that_we_recognise(ask: Ask) -> None:
    """No spelling here is our invention."""
    spellings = [
        ["--tensor-parallel-size=2"],
        ["--tensor_parallel_size", "2"],
        ["--tensor-parallel-si", "2"],
        ["-tp", "2"],
        ["-tp=2"],
        ["-t", "2"],
    ]
    *of_size, glued = ask([["m", *each] for each in (*spellings, ["-qfp8"])])["parsed"]
    for written, parsed in zip(spellings, of_size, strict=True):
        (found,) = flags.given(written, "args")
        assert (found.flag, found.value) == ("--tensor-parallel-size", "2")
        assert parsed["tensor_parallel_size"] == 2
    (found,) = flags.given(["-qfp8"], "args")
    assert (found.flag, found.value, glued["quantization"]) == ("--quantization", "fp8", "fp8")
