"""`pdpool render` and `pdpool validate`: pools in files, judged without a cluster."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from pdpool_operator.cli import pool_files
from pdpool_operator.cli.main import main

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


def call(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)


def document(name: str = "p", **spec: Any) -> str:
    whole = {"model": {"id": "m"}, "prefill": {}, "decode": {}, **spec}
    return json.dumps(
        {"apiVersion": "pdpool.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}, "spec": whole}
    )


def only(text: str) -> pool_files.Written:
    (found,) = pool_files.pools(io.StringIO(text))
    return found


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: each.stem)
def test_samples_are_valid_and_become_children(sample: Path) -> None:
    """Every shipped sample passes, and its children are the objects of one pool, in the order of their making."""
    assert call("validate", "-f", str(sample)).exit_code == 0
    found = call("render", "-f", str(sample))
    assert found.exit_code == 0
    children = list(yaml.safe_load_all(found.stdout))
    assert children[0]["kind"] == "ServiceAccount"
    assert {"Deployment", "Service", "NetworkPolicy", "ConfigMap"} <= {each["kind"] for each in children}
    for each in children:
        (owner,) = each["metadata"]["ownerReferences"]
        assert owner["kind"] == "InferencePool"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("70.6e9", 70.6e9),
        ("141e9", 141e9),
        ("7E+1", 70.0),
        ("1.", 1.0),
        ("16", 16),
        ("0x10", 16),
        ("12:30", "12:30"),
        ("190:20:30", "190:20:30"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("v0.33.0", "v0.33.0"),
        ("16Gi", "16Gi"),
        ("'70.6e9'", "70.6e9"),
    ],
)
def test_scalars_are_what_kubectl_takes_them_for(written: str, read: object) -> None:
    """Exponents without a sign make numbers; times and dates stay words, as a variable's value is often one."""
    (raw,) = yaml.load_all(f"v: {written}", Loader=pool_files._Loader)
    assert raw == {"v": read}
    assert type(raw["v"]) is type(read)


def test_an_unsigned_exponent_is_a_number_in_a_pool() -> None:
    """`parameters: 70.6e9`, as the documentation writes it, is read; in quotes it is a word, which the API refuses."""
    text = document().replace('"id": "m"', '"id": "m", "shape": {"parameters": 70.6e9}')
    pool = only(text).pool
    assert pool is not None
    assert pool.spec.model.shape is not None
    assert pool.spec.model.shape.parameters == 70.6e9
    assert "parameters" in only(text.replace("70.6e9", '"70.6e9"')).fault


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (document(prefill={"minReplica": 1}), "spec.prefill.minReplica"),
        (document(prefill={"replicas": "2"}), "spec.prefill.replicas"),
        (document(mode="Aggregated"), "prefill must be absent"),
        (document(router={"service": {"port": 70000}}), "spec.router.service.port"),
        (document(name="Upper"), "metadata.name"),
        (document(name="n" * 64), "at most 63"),
        (document().replace("v1alpha1", "v9"), "apiVersion"),
        (document(engine={"args": ["--port", "1"]}), "ReservedArgument"),
        (document(engine={"version": "0.29.0"}), "UnsupportedVersion"),
        (document(prefill={"args": ["--dtype=half"]}, decode={"args": ["--dtype=float32"]}), "IncompatibleRoles"),
        (document(engine={"args": ["--kv-transfer-config", "{"]}), "InvalidSpec"),
        (document(maxGpus=1), "MaxGpusExceeded"),
        (document(prefill={"hardware": "l4", "parallelism": {"tensor": 16}}), "ReplicaExceedsNode"),
        (document(model={"id": "meta-llama/Llama-3.1-70B-Instruct"}, decode={"hardware": "l4"}), "ModelDoesNotFit"),
    ],
)
def test_each_refusal_is_named_and_ends_with_1(broken: str, words: str) -> None:
    """What the API server refuses, and what the operator does: field or reason is named, and the status is 1."""
    for command in ("validate", "render"):
        found = call(command, "-f", "-", text=broken)
        assert found.exit_code == 1
        assert words in found.output
    assert call("render", "-f", "-", text=broken).stdout == ""


def test_every_refusal_is_named_at_once() -> None:
    """Whoever mends a file sees all that is wrong with it, of all of its pools, and not one thing after the other."""
    wrong = document(
        "wrong", engine={"args": ["--port=1"], "version": "0.29"}, maxGpus=1, decode={"args": ["--block-size=32"]}
    )
    found = call("validate", "-f", "-", text=f"{wrong}\n---\n{document('right')}\n---\n{document('bad', mode='x')}")
    assert found.exit_code == 1
    for reason in ("ReservedArgument", "UnsupportedVersion", "MaxGpusExceeded"):
        assert reason in found.output
    assert "right: valid" in found.output
    assert "spec.mode" in found.output


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_a_terminal_shows_colours_unless_asked_not_to(no_color: str, is_coloured: bool) -> None:  # noqa: FBT001
    """On a terminal the verdict has a colour, and none where `NO_COLOR` is set; pipes have none (`test_cli_api`)."""
    ours, theirs = pty.openpty()
    command = [Path(sys.executable).parent / "pdpool", "validate", "-f", SAMPLES[0]]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": no_color}
    try:
        subprocess.run(command, stdout=theirs, env=environment, timeout=120, check=True)
        shown = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "valid" in shown
    assert ("\x1b[" in shown) is is_coloured


def test_warnings_do_not_fail() -> None:
    """A setting that is a trap is named, and the file is valid."""
    found = call("validate", "-f", "-", text=document(engine={"args": ["--enforce-eager"]}))
    assert found.exit_code == 0
    assert "EngineSetting: prefill: --enforce-eager" in found.output


def test_only_pools_of_this_group_are_read() -> None:
    """Other objects, and another group's kind of the same name, are passed over; no pool at all is a fault (Q23)."""
    other = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: o}\n"
    text = f"{other}---\nkind: Namespace\n---\n{document()}\n---\n# nothing\n"
    assert [each.name for each in pool_files.pools(io.StringIO(text))] == ["p"]
    listed = f"kind: List\nitems:\n- {document('a')}\n- {document('b')}\n"
    assert [each.name for each in pool_files.pools(io.StringIO(listed))] == ["a", "b"]
    assert "no InferencePool" in call("validate", "-f", "-", text=other).output


def test_what_kubectl_prints_can_be_read_back() -> None:
    """An object as the API server returns it, status and bookkeeping included, is judged by its spec, nulls apart."""
    raw = json.loads(document(decode={"replicas": None}))
    raw["metadata"] |= {"uid": "u", "managedFields": [{}], "creationTimestamp": "2026-01-01T00:00:00Z"}
    raw["status"] = {"prefill": {"ready": "1/1"}, "later": 1}
    pool = only(json.dumps(raw)).pool
    assert pool is not None
    assert pool.uid == "u"


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [", "\tx", "a: !!python/object:os.system x"])
def test_what_is_no_yaml_says_where(text: str) -> None:
    """Syntax errors, keys that stand twice and foreign tags end with one line that names the file."""
    found = call("validate", "-f", "-", text=text)
    assert found.exit_code == 1
    assert found.output.startswith("Error: <stdin>:")


def test_the_namespace_is_filled_in_only_where_none_is_given() -> None:
    """`-n` speaks for pools that name no namespace."""
    given = document().replace('"name": "p"', '"name": "p", "namespace": "own"')
    texts = call("render", "-n", "other", "-f", "-", text=f"{document()}\n---\n{given}").stdout
    assert {each["metadata"]["namespace"] for each in yaml.safe_load_all(texts)} == {"other", "own"}


def test_a_subcommand_that_cannot_be_loaded_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further package's broken command says so when it is called; help and the other commands go on."""
    from importlib.metadata import EntryPoint  # noqa: PLC0415

    from pdpool_operator.cli import main as module  # noqa: PLC0415

    broken = {name: EntryPoint(name, value, module.GROUP) for name, value in (("x", "no.such:thing"), ("y", "os:sep"))}
    ours = module._offered()
    monkeypatch.setattr(module, "_offered", lambda: {**ours, **broken})
    assert "cannot be loaded" in call("--help").output
    for name in broken:
        found = call(name, "--whatever")
        assert found.exit_code == 1
        assert f"Error: {name} cannot be loaded" in found.output
    assert call("validate", "-f", str(SAMPLES[0])).exit_code == 0


def test_commands_of_this_package_are_commands() -> None:
    """Every entry point of the group loads, and both names of the program are installed."""
    for name in ("debug", "render", "status", "validate"):
        assert isinstance(main.get_command(click.Context(main), name), click.Command)
        assert "cannot be loaded" not in call(name, "--help").output
