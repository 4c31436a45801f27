"""What `pdpool status` shows of a pool, and what `pdpool debug` takes out of its bundle."""

from __future__ import annotations

import io
import tarfile
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_operator.cli import pool_view
from pdpool_operator.cli.access import Found
from pdpool_operator.cli.bundle import Bundle
from pdpool_operator.cli.redaction import REMOVED, Redaction

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def pod(name: str, role: str, *, metadata: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    labels = {names.LABEL_ROLE: role, names.LABEL_REVISION: "new"}
    whole = {"name": name, "namespace": "s", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**whole, **(metadata or {})}, "spec": {"nodeName": "n1"}, "status": status}


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    return {
        "containerStatuses": [{"name": "engine", "restartCount": 3, "state": {"waiting": {"reason": reason}}, **more}]
    }


def found(pods: list[dict[str, Any]] | None = None, **status: Any) -> Found:
    metadata = {"name": "p", "namespace": "s", "uid": "u", "generation": 2}
    pool = {"metadata": metadata, "spec": {"model": {"id": "m"}}, "status": status}
    return Found(pool, (), tuple(pods or ()))


def text(of: Found) -> str:
    return "\n".join(click.unstyle(line) for line in pool_view.lines(pool_view.view(of, NOW)))


OOM = {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
ENDED = {"name": "e", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}


@pytest.mark.parametrize(
    ("status", "metadata", "state", "words"),
    [
        (waiting("CrashLoopBackOff", **OOM), {}, "CrashLoopBackOff", "OOMKilled, exit code 137"),
        (waiting("ImagePullBackOff"), {}, "ImagePullBackOff", ""),
        ({"conditions": [NO_NODE]}, {}, "Unschedulable", "0/3 nodes"),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, {}, "Running", ""),
        ({"phase": "Running"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Terminating", ""),
        ({"phase": "Running"}, {"annotations": {names.ANNOTATION_DRAINING: "2026"}}, "Draining", ""),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, {}, "Evicted", "disk pressure"),
        ({"containerStatuses": [ENDED]}, {}, "Error", ""),
        ({}, {}, "Unknown", ""),
    ],
)
def test_a_pod_says_why_it_is_as_it_is(
    status: dict[str, Any], metadata: dict[str, Any], state: str, words: str
) -> None:
    """The one word of a pod is its own reason, and beside it stands what the cluster says of it."""
    shown = pool_view.view(found([pod("p-decode-x", "decode", metadata=metadata, **status)]), NOW)
    (only,) = shown["pods"]
    assert only["state"] == state
    assert words in only["message"]
    assert only["ageSeconds"] == 86_400


def test_the_view_leads_with_whether_it_is_ready_and_why_not() -> None:
    """The first line answers the first question; only conditions that are not well follow, and each message once."""
    conditions = [
        {"type": "Ready", "status": "False", "reason": "RolloutStalled", "message": "image not found"},
        {"type": "Progressing", "status": "False", "reason": "RolloutStalled", "message": "image not found"},
        {"type": "SpecValid", "status": "True", "reason": "Valid", "message": ""},
        {"type": "Advisory", "status": "True", "reason": "EngineSetting", "message": "eager"},
        {"type": "Stalled", "status": "True", "reason": "RolloutStalled", "message": "image not found"},
    ]
    said = text(found(conditions=conditions, observedGeneration=1, decode={"desiredReplicas": 2, "readyReplicas": 1}))
    assert said.splitlines()[0].startswith("p in s: not ready, RolloutStalled (the last change")
    assert said.count("image not found") == 1
    assert "SpecValid" not in said
    assert "Advisory=True EngineSetting: eager" in said
    assert "decode  1/2" in said


def test_a_pool_that_nobody_has_looked_at_says_so() -> None:
    """Without a status there is no guess: the operator has not looked at it."""
    assert "no operator has looked at it" in text(found())


def test_words_of_the_cluster_do_not_drive_the_terminal() -> None:
    """Escape sequences and line breaks in messages are shown as characters."""
    evil = "\x1b]0;owned\x07 a\nb \x9b31m \u202e"
    shown = text(found([pod("p", "decode", phase="Failed", message=evil)]))
    assert not any(each in shown for each in "\x1b\x07\x9b\u202e")
    assert "a b" in shown


@given(st.text())
def test_printable_text_is_on_one_line(any_text: str) -> None:
    """Whatever a cluster says becomes printable characters and blanks."""
    assert all(each.isprintable() for each in pool_view.printable(any_text))


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, ""), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (200_000, "2d")]
)
def test_ages_have_one_unit(seconds: int | None, words: str) -> None:
    """Ages read as those of kubectl."""
    assert pool_view.duration(seconds) == words


# --- the bundle ----------------------------------------------------------------------------------------------------

CANARY = "canary-9f8e7d6c"


@pytest.mark.parametrize(
    "holder",
    [
        {"env": [{"name": "HF_TOKEN", "value": CANARY}]},
        {"env": [{"name": "VLLM_API_KEY", "value": CANARY}]},
        {"env": [{"name": "ANYTHING", "value": CANARY}]},
        {"args": ["--api-key", CANARY, "other-" + CANARY, "--max-num-seqs=8"]},
        {"args": [f"--hf-token={CANARY}"]},
        {"command": ["serve", "--ssl-password", CANARY]},
        {"stringData": {"password": CANARY}},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": CANARY}}},
        {"metadata": {"managedFields": [{"f": CANARY}]}},
        {"deep": [{"spec": {"containers": [{"env": [{"name": "X", "value": CANARY}]}]}}]},
    ],
)
def test_secrets_of_objects_are_taken_out(holder: dict[str, Any]) -> None:
    """Plain values of variables and of flags that name a secret are gone from the object, and from every log after."""
    redaction = Redaction()
    assert CANARY not in str(redaction.of_object(holder))
    if "metadata" not in holder:
        assert CANARY not in redaction.of_text(f"the engine was started with {CANARY}!")


def test_what_tells_how_an_engine_runs_stays() -> None:
    """References to Secrets, harmless variables and other arguments are what a bundle is for."""
    kept = {
        "env": [
            {"name": "UCX_TLS", "value": "tcp"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "HF_TOKEN"}}},
        ],
        "args": ["--max-num-seqs", "8", "--kv-transfer-config", '{"kv_role":"kv_producer"}'],
        "tokenSecretRef": {"name": "hf", "key": "HF_TOKEN"},
        "automountServiceAccountToken": False,
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
    }
    bundle = Bundle(objects={"x.yaml": kept}, texts={"log": "prompt tokens: 12, token rate 3, secrets are fine"})
    files = unpacked(bundle)
    assert REMOVED not in "".join(files.values())


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {CANARY}",
        f"non-default args: {{'api_key': ['{CANARY}'], 'model': 'm'}}",
        f"GET http://user:{CANARY}@prometheus/api",
        f"login with hf_{CANARY.replace('-', '')}",
        f'{{"token": "{CANARY}"}}',
        f"vllm serve --api-key {CANARY} --port 1",
        f"Received request cmpl-1: prompt: '{CANARY}', params: x",
        f"eyJhbGciOiJub25l.{CANARY}.sig",
    ],
)
def test_what_looks_like_a_credential_or_a_prompt_leaves_the_logs(line: str) -> None:
    """Shapes of credentials, and prompts that an engine was told to log, are taken out of every text."""
    cleaned = Redaction().of_text(line)
    assert CANARY not in cleaned
    assert CANARY.replace("-", "") not in cleaned
    assert Redaction().of_text(cleaned) == cleaned


def unpacked(bundle: Bundle) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(bundle.archive("top", NOW))) as tar:
        found = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        return {name: stream.read().decode() for name, stream in found.items() if stream is not None}


def test_the_archive_holds_objects_texts_and_problems() -> None:
    """Everything lies under one folder, and what could not be read is listed."""
    bundle = Bundle(objects={"pool.yaml": {"a": 1}}, texts={"logs/x.log": "words"}, problems=["b: gone", "a: gone"])
    assert unpacked(bundle) == {
        "top/pool.yaml": "a: 1\n",
        "top/logs/x.log": "words",
        "top/problems.txt": "a: gone\nb: gone\n",
    }
