"""A control plane alone: fast, without root's network, several side by side, and gone when it is taken down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import Cluster, ClusterError, down, service_account_user, status, up
from e2e.cluster.binaries import CONTROL_PLANE, cached_path
from e2e.cluster.layout import ledger_of, lock_of
from e2e.cluster.lock import held
from e2e.cluster.processes import named

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("pools")]

Traces = Callable[[str], dict[str, list[str]]]


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of this test alone; whatever of it is left goes at the end."""
    chosen = f"test-{os.getpid()}-b"
    yield chosen
    down(chosen, keep_logs=False, quiet=True)


def _tool(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "e2e.cluster", *arguments]


def test_one_beside_another_shares_nothing_and_leaves_nothing(
    name: str, control_plane: Cluster, traces: Traces
) -> None:
    """Objects of one are unknown to the other, a second `up` changes nothing, and after `down` nothing bears its name.

    `down` needs no help from an API server that was killed; until then `status` says broken.
    """
    other = up(name, control_plane_only=True, owned=True)
    again = up(name, control_plane_only=True)
    assert control_plane.server != other.server == again.server
    control_plane.kubectl("create", "namespace", "only-here")
    found = {item["metadata"]["name"] for item in other.objects("namespaces")["items"]}
    assert "default" in found
    assert "only-here" not in found
    assert set(traces(name)) == {"processes", "command lines", "folders"}
    for pid in named(ledger_of(name), "apiserver"):
        os.kill(pid, signal.SIGKILL)
    assert status(name)["state"] == "broken"
    down(name, keep_logs=False)
    assert traces(name) == {}
    assert status(name) == {"name": name, "state": "absent"}


def test_a_killed_up_is_replaced_by_the_next(name: str, traces: Traces) -> None:
    """Kill -9 of the tool half-way leaves a broken cluster that `up` replaces by a whole one and `down` removes."""
    with subprocess.Popen(
        _tool("up", "--control-plane-only", "--name", name),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as tool:
        assert tool.stderr is not None
        for line in tool.stderr:
            if "etcd and API server …" in line:
                break
        while not named(ledger_of(name), "apiserver"):
            assert tool.poll() is None
        tool.send_signal(signal.SIGKILL)
    assert status(name)["state"] == "broken"
    cluster = up(name, control_plane_only=True, owned=True)
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"
    down(name, keep_logs=False)
    assert traces(name) == {}


def test_a_second_run_on_the_same_cluster_is_told_who_is_at_it(name: str) -> None:
    """While one run holds the lock, another ends at once with status 1 and names the holder's pid."""
    with held(lock_of(name)):
        second = subprocess.run(
            _tool("up", "--control-plane-only", "--name", name), capture_output=True, text=True, timeout=30, check=False
        )
    assert second.returncode == 1
    assert f"pid {os.getpid()}" in second.stderr
    assert not lock_of(name).exists()


def test_a_cluster_whose_owner_has_ended_is_swept_by_the_next_up(name: str, control_plane: Cluster) -> None:
    """A test session that was killed leaves a control plane; the next `up` of any cluster takes it down."""
    script = f"import os; from e2e.cluster import up; up({name!r}, control_plane_only=True, owned=True); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    assert status(name)["state"] == "up"
    up(control_plane.name, control_plane_only=True)
    assert status(name)["state"] == "absent"


def test_a_failed_step_tells_the_end_of_its_log_and_leaves_nothing_but_logs(
    name: str, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that ends at once makes `up` fail with its last words and their path; etcd is taken down again."""
    real = {program: cached_path(program) for program in CONTROL_PLANE}
    monkeypatch.setenv("PDPOOL_CACHE", str(tmp_path))
    for program, path in real.items():
        cached_path(program).parent.mkdir(parents=True)
        cached_path(program).symlink_to(path)
    cached_path("kube-apiserver").unlink()
    cached_path("kube-apiserver").write_text("#!/bin/sh\necho these are my last words\nexit 3\n")
    cached_path("kube-apiserver").chmod(0o755)
    with pytest.raises(ClusterError, match=r"apiserver ended while waiting for the API server") as failure:
        up(name, control_plane_only=True)
    log = tmp_path / "cluster" / name / "log" / "apiserver.log"
    assert "these are my last words" in str(failure.value)
    assert str(log) in str(failure.value)
    assert log.exists()
    assert traces(name) == {}


@pytest.mark.parametrize("bad", ["", "Upper", "-x", "a/b", "a" * 41])
def test_a_name_that_cannot_name_folders_is_refused(bad: str) -> None:
    """A bad name is refused with the rule it breaks, before anything is made."""
    with pytest.raises(ClusterError, match=r"--name .* must be 1 to 40 lower-case letters"):
        status(bad)


def test_writes_are_counted_by_user_and_resource(control_plane: Cluster) -> None:
    """The audit log tells the granted writes of each user between two moments, and neither reads nor refusals."""
    control_plane.kubectl("create", "namespace", "audited")
    create = ("--namespace", "audited", "create")
    control_plane.kubectl(*create, "serviceaccount", "writer")
    control_plane.kubectl(*create, "role", "writer", "--verb=create,get,list", "--resource=configmaps")
    control_plane.kubectl(*create, "rolebinding", "writer", "--role=writer", "--serviceaccount=audited:writer")
    as_writer = ["--kubeconfig", str(control_plane.kubeconfig_for_service_account("audited", "writer"))]
    kubectl = control_plane.kubectl_command()[0]
    log = control_plane.audit
    since = log.now()
    for number in range(3):
        subprocess.run(
            [kubectl, *as_writer, "create", "configmap", f"c{number}"], check=True, capture_output=True, timeout=30
        )
    subprocess.run([kubectl, *as_writer, "get", "configmaps"], check=True, capture_output=True, timeout=30)
    refused = subprocess.run(
        [kubectl, *as_writer, "create", "secret", "generic", "s"], check=False, capture_output=True, timeout=30
    )
    until = log.now()
    control_plane.kubectl("--namespace", "audited", "create", "configmap", "later")
    assert refused.returncode != 0
    writer = service_account_user("audited", "writer")
    assert dict(log.writes(since, until, user=writer)) == {(writer, "configmaps"): 3}
    [refusal] = [entry for entry in log.entries(since, until) if entry.user == writer and entry.status_code == 403]
    assert (refusal.verb, refusal.resource, refusal.namespace) == ("create", "secrets", "audited")
    assert "kubectl" in refusal.user_agent
    assert ("admin", "configmaps") in log.writes(until)


def test_a_user_by_certificate_has_the_rights_of_its_groups_only(control_plane: Cluster) -> None:
    """A minted user is known by name and group, and may do nothing that RBAC does not grant."""
    kubeconfig = control_plane.kubeconfig_for_user("alice", ["readers"])
    command = [control_plane.kubectl_command()[0], f"--kubeconfig={kubeconfig}"]
    told = subprocess.run(
        [*command, "auth", "whoami", "-o", "json"], check=True, capture_output=True, text=True, timeout=30
    )
    who = json.loads(told.stdout)["status"]["userInfo"]
    assert who["username"] == "alice"
    assert "readers" in who["groups"]
    refused = subprocess.run([*command, "get", "secrets"], check=False, capture_output=True, text=True, timeout=30)
    assert "forbidden" in refused.stderr
    assert refused.returncode == 1


def test_pod_security_refuses_a_privileged_pod_in_a_restricted_namespace(control_plane: Cluster) -> None:
    """A namespace that enforces the restricted level accepts no privileged pod."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.apply(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted", "labels": labels}}]
    )
    container = {"name": "c", "image": "localhost/pause:1", "securityContext": {"privileged": True}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "restricted"},
        "spec": {"containers": [container]},
    }
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        control_plane.apply([pod])
