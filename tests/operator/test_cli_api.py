"""`pdpool status` and `pdpool debug` against a real API server, as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.operator.harness import Api, pool
from tests.operator.site import make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("pools")]

CANARY = "canary-4d5e6f7a"


def call(site: Site, *arguments: str, program: str = "pdpool") -> subprocess.CompletedProcess[str]:
    """Runs an installed program with the administrator's kubeconfig; a pipe, so no colours."""
    path = Path(sys.executable).parent / program
    environment = {**os.environ, "KUBECONFIG": str(site.cluster.kubeconfig)}
    return subprocess.run([path, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("operator")
def test_a_person_sees_a_pool_and_can_hand_it_on(site: Site, api: Api, namespace: str, tmp_path: Path) -> None:
    """`status` says what is ready, as text and as JSON; `debug` writes a bundle without the pool's secrets."""
    env = [{"name": "MY_PASSWORD", "value": CANARY}]
    body = pool("tiny", namespace, engine={"env": env, "args": ["--api-key", CANARY]})
    api.apply("inferencepools", namespace, body)
    revision = settled(api, namespace, "tiny")["status"]["revision"]
    make_all_ready(api, namespace, "tiny")

    said = call(site, "status", "tiny", "-n", namespace)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"tiny in {namespace}: ready\n")
    assert "\x1b" not in said.stdout
    shown = json.loads(call(site, "status", "tiny", "-n", namespace, "-o", "json", program="kubectl-pdpool").stdout)
    assert {each["role"]: (each["ready"], each["desired"]) for each in shown["roles"]}["decode"] == (1, 1)
    assert shown["revisions"][0]["revision"] == revision
    assert {each["role"] for each in shown["pods"]} == {"prefill", "decode", "router"}

    target = tmp_path / "bundle.tar.gz"
    made = call(site, "debug", "tiny", "-n", namespace, "-o", str(target))
    assert made.returncode == 0, made.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as tar:
        files = {each.name.partition("/")[2]: tar.extractfile(each) for each in tar.getmembers()}
        texts = {name: stream.read().decode() for name, stream in files.items() if stream is not None}
    assert {"pool.yaml", "status.txt", "events.yaml", f"children/Deployment-tiny-decode-{revision}.yaml"} <= set(texts)
    assert [name for name in texts if name.startswith("pods/")]
    (record,) = (text for name, text in texts.items() if name.startswith("children/ControllerRevision-"))
    assert "containers:" in record, "templates are unpacked, so that secrets are taken out of them"
    assert "ScalingReplicaSet" in texts["events.yaml"]
    assert not [name for name, text in texts.items() if CANARY in text]
    # No kubelet runs here: what could not be read is said, and hindered nothing.
    assert "snapshot.json" in texts["problems.txt"]
    again = call(site, "debug", "tiny", "-n", namespace, "-o", str(target))
    assert (again.returncode, again.stdout) == (1, "")
    calls = [each for each in site.cluster.audit.entries() if each.user_agent == "pdpool"]
    assert calls
    assert not [each for each in calls if each.resource == "secrets" or each.is_write]


def test_what_is_not_there_is_said_in_one_line(site: Site, namespace: str) -> None:
    """No such pool, no such context, no cluster: one line and status 1, never a traceback."""
    for arguments in (["status", "none", "-n", namespace], ["status", "none", "--context", "none"]):
        ended = call(site, *arguments)
        assert ended.returncode == 1
        assert ended.stderr.startswith("Error: ")
        assert ended.stderr.count("\n") == 1
