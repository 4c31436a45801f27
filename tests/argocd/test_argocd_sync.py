"""Argo CD syncs the chart and a team's pools from git: in sync at rest, healthy as the pool says, pruned with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.chart import NAMESPACE as HOME
from e2e.chart import OPERATOR
from pdpool_api import names
from tests.argocd.conftest import NAMESPACE, ROOT
from tests.operator.harness import Api, Operator, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import Cluster
    from tests.argocd.conftest import Repository

pytestmark = [pytest.mark.argocd, pytest.mark.timeout(900)]

Json = dict[str, Any]
TEAM = "team-a"
SYNC_S = 120.0
REST_S = 40.0
POOL = """
apiVersion: pdpool.io/v1alpha1
kind: InferencePool
metadata: {name: tiny}
spec:
  model: {id: /models/tiny}
  prefill: {hardware: cpu, replicas: 1}
  decode: {hardware: cpu, replicas: %d}
"""
REFUSED = """
apiVersion: pdpool.io/v1alpha1
kind: InferencePool
metadata: {name: broken}
spec:
  model: {id: /models/tiny}
  prefill: {hardware: cpu}
  decode: {hardware: cpu, args: [--port=1]}
"""


def applications(repository: Repository) -> list[Json]:
    """Those of manifests/argocd, with the test's repository, without what stands for images."""
    found = list(yaml.safe_load_all((ROOT / "manifests" / "argocd" / "application.yaml").read_text()))
    for each in found:
        each["spec"]["source"]["repoURL"] = repository.url
    return found


def state(plane: Cluster, name: str) -> tuple[str, str, int]:
    """What Argo CD says of an application: sync, health, and how often it was synced."""
    said = plane.objects("--namespace", NAMESPACE, "application", name).get("status", {})
    return (
        said.get("sync", {}).get("status", ""),
        said.get("health", {}).get("status", ""),
        len(said.get("history") or ()),
    )


def becomes(plane: Cluster, name: str, sync: str, *health: str) -> None:
    def look() -> None:
        found = state(plane, name)
        detail = plane.objects("--namespace", NAMESPACE, "application", name).get("status", {})
        told = [detail.get("conditions"), (detail.get("operationState") or {}).get("message")]
        assert found[0] == sync, (found, told)
        assert not health or found[1] in health, (found, told)

    eventually(look, timeout_s=SYNC_S, every_s=1)


@pytest.mark.usefixtures("argo")
def test_a_pool_is_synced_told_healthy_left_alone_changed_and_pruned(
    plane: Cluster, api: Api, repository: Repository, tmp_path: Path
) -> None:
    """From git to a healthy pool; no sync and no difference while nothing changes; a commit arrives; removal prunes."""
    repository.write("pools/tiny.yaml", POOL % 1)
    operator_app, pools_app = applications(repository)
    plane.apply([operator_app])
    becomes(plane, "pdpool", "Synced")
    plane.wait_established(names.CRD_NAME)
    plane.apply([pools_app])
    becomes(plane, "team-a-pools", "Synced", "Progressing")

    kubeconfig = plane.kubeconfig_for_service_account(HOME, OPERATOR)
    operator = Operator(kubeconfig, tmp_path / "operator.log", namespace=HOME).wait_ready()
    try:
        _until_ready(api)
        becomes(plane, "team-a-pools", "Synced", "Healthy")
        _rests(plane, api)

        repository.write("pools/tiny.yaml", POOL % 2)
        _refresh(plane, "team-a-pools")
        eventually(lambda: _decodes(api, 2), timeout_s=SYNC_S, every_s=1)
        _until_ready(api)
        becomes(plane, "team-a-pools", "Synced", "Healthy")

        repository.write("pools/broken.yaml", REFUSED)
        _refresh(plane, "team-a-pools")
        becomes(plane, "team-a-pools", "Synced", "Degraded")

        repository.git("rm", "--quiet", "pools/broken.yaml", "pools/tiny.yaml")
        repository.write("pools/nothing.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nothing}\n")
        _refresh(plane, "team-a-pools")
        eventually(lambda: _gone(api), timeout_s=SYNC_S, every_s=1)
    finally:
        assert operator.stop() == 0


def _until_ready(api: Api) -> None:
    def look() -> None:
        api.make_ready(TEAM, names.LABEL_POOL)
        pool = api.get("inferencepools", TEAM, "tiny")
        assert pool is not None
        ready = {each["type"]: each for each in pool["status"]["conditions"]}["Ready"]
        assert ready["status"] == "True", ready
        assert ready["observedGeneration"] == pool["metadata"]["generation"]

    eventually(look, timeout_s=SYNC_S, every_s=0.5)


def _rests(plane: Cluster, api: Api) -> None:
    """Argo CD looks again and again, and finds nothing to do: no difference, no sync, no write to the pool."""
    before, pool = state(plane, "team-a-pools"), api.get("inferencepools", TEAM, "tiny")
    until = time.monotonic() + REST_S
    while time.monotonic() < until:
        assert state(plane, "team-a-pools") == before
        time.sleep(1)
    after = api.get("inferencepools", TEAM, "tiny")
    assert pool is not None
    assert after is not None
    assert after["metadata"]["generation"] == pool["metadata"]["generation"]
    assert after["metadata"]["resourceVersion"] == pool["metadata"]["resourceVersion"]


def _decodes(api: Api, replicas: int) -> None:
    pool = api.get("inferencepools", TEAM, "tiny")
    assert pool is not None
    assert pool["spec"]["decode"]["replicas"] == replicas


def _gone(api: Api) -> None:
    assert api.items("inferencepools", TEAM) == []
    assert api.children(TEAM) == {}


def _refresh(plane: Cluster, name: str) -> None:
    """Look at git now instead of within three minutes."""
    note = "argocd.argoproj.io/refresh=hard"
    plane.kubectl("--namespace", NAMESPACE, "annotate", "application", name, note, "--overwrite")
