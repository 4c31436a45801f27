"""Argo CD syncs the chart and teams' pools from git: in sync at rest and while sizes move, healthy as the pool says."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.chart import NAMESPACE as HOME
from e2e.chart import OPERATOR
from pdpool_api import names
from tests.argocd.conftest import NAMESPACE, ROOT
from tests.operator.answering import Workload, size, waiting
from tests.operator.harness import Api, Operator, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import Cluster
    from tests.argocd.conftest import Argo, Repository

pytestmark = [pytest.mark.argocd, pytest.mark.timeout(900)]

Json = dict[str, Any]
CHART_APP, POOLS_APP = "pdpool", "team-a-pools"
TEAM = "team-a"
SYNC_S = 240.0
REFRESH = "argocd.argoproj.io/refresh"
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
SIZED = """
apiVersion: pdpool.io/v1alpha1
kind: InferencePool
metadata: {name: sized}
spec:
  model: {id: /models/tiny}
  autoscaling: {intervalSeconds: 1}
  prefill:
    hardware: cpu
    autoscaling:
      minReplicas: 1
      maxReplicas: 8
      signals: [{type: QueueDepth, target: 10}]
      scaleDown: {stabilizationSeconds: 3}
  decode: {hardware: cpu}
"""


@dataclass(frozen=True)
class Way:
    """How Argo CD applies, and how it compares."""

    options: list[str] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)

    def of(self, application: Json) -> Json:
        """The application, applied and compared in this way."""
        options = [each for each in application["spec"]["syncPolicy"]["syncOptions"] if "Apply" not in each]
        application["spec"]["syncPolicy"]["syncOptions"] = [*options, *self.options]
        application["metadata"]["annotations"] = self.annotations
        return application


WAYS = {
    "client-side": Way(),
    "server-side": Way(["ServerSideApply=true"]),
    "compared-by-the-server": Way(
        ["ServerSideApply=true"], {"argocd.argoproj.io/compare-options": "ServerSideDiff=true"}
    ),
}


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


def synced(plane: Cluster, *applications: str) -> list[tuple[str, int]]:
    """Whether each is in sync, and how often it was synced."""
    return [(sync, count) for sync, _, count in (state(plane, each) for each in applications)]


def becomes(plane: Cluster, name: str, sync: str, *health: str) -> None:
    def look() -> None:
        found = state(plane, name)
        detail = plane.objects("--namespace", NAMESPACE, "application", name).get("status", {})
        told = [detail.get("conditions"), (detail.get("operationState") or {}).get("message")]
        assert found[0] == sync, (found, told)
        assert not health or found[1] in health, (found, told)

    eventually(look, timeout_s=SYNC_S, every_s=1)


@pytest.fixture
def chart(plane: Cluster, argo: Argo, repository: Repository) -> None:
    """The chart, synced from git as the example has it."""
    del argo
    plane.apply([applications(repository)[0]])
    becomes(plane, CHART_APP, "Synced")
    plane.wait_established(names.CRD_NAME)


@pytest.mark.usefixtures("chart")
def test_a_pool_is_synced_told_healthy_left_alone_changed_and_pruned(
    plane: Cluster, api: Api, repository: Repository, tmp_path: Path
) -> None:
    """From git to a healthy pool; no sync and no difference while nothing changes; a commit arrives; removal prunes."""
    repository.write("pools/tiny.yaml", POOL % 1)
    plane.apply([applications(repository)[1]])
    becomes(plane, POOLS_APP, "Synced", "Progressing")

    operator = started(plane, tmp_path)
    try:
        _until_ready(api)
        becomes(plane, POOLS_APP, "Synced", "Healthy")
        _rests(plane, api)

        repository.write("pools/tiny.yaml", POOL % 2)
        _refresh(plane, POOLS_APP)
        eventually(lambda: _decodes(api, 2), timeout_s=SYNC_S, every_s=1)
        _until_ready(api)
        becomes(plane, POOLS_APP, "Synced", "Healthy")

        repository.write("pools/broken.yaml", REFUSED)
        _refresh(plane, POOLS_APP)
        becomes(plane, POOLS_APP, "Synced", "Degraded")

        repository.git("rm", "--quiet", "pools/broken.yaml", "pools/tiny.yaml")
        repository.write("pools/nothing.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nothing}\n")
        _refresh(plane, POOLS_APP)
        eventually(lambda: _gone(api), timeout_s=SYNC_S, every_s=1)
    finally:
        assert operator.stop() == 0


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_to_be_synced_while_sizes_move(
    plane: Cluster, api: Api, repository: Repository, tmp_path: Path, way: str
) -> None:
    """A role goes from one replica to four and back; at no look anything differs, of pool and of chart (Q19)."""
    name = f"sized-{way}"
    repository.write(f"{name}/pool.yaml", SIZED)
    chart_app, pools_app = (WAYS[way].of(each) for each in applications(repository))
    plane.apply([chart_app])
    _sync(plane, CHART_APP)
    pools_app["metadata"]["name"] = name
    pools_app["spec"]["source"]["path"] = name
    pools_app["spec"]["destination"]["namespace"] = name
    plane.apply([pools_app])
    becomes(plane, name, "Synced")

    operator = started(plane, tmp_path)
    try:
        with ExitStack() as stack:
            workload = Workload(api, name, stack)
            (first,) = workload.wait_pods("prefill", 1)
            workload.serve(first, waiting(40))
            _compare(plane, name, CHART_APP)
            looks = [synced(plane, name, CHART_APP)]

            def moved_to(count: int) -> None:
                looks.append(synced(plane, name, CHART_APP))
                assert size(api, name, "prefill") == count

            eventually(lambda: moved_to(4), timeout_s=SYNC_S)
            _compare(plane, name, CHART_APP)
            moved_to(4)
            workload.show(first, waiting(0))
            eventually(lambda: moved_to(1), timeout_s=SYNC_S)
            _compare(plane, name, CHART_APP)
            moved_to(1)
        assert {each for each, _ in looks[0]} == {"Synced"}
        assert all(each == looks[0] for each in looks), looks
        stored = api.get("inferencepools", name, "sized")
        assert stored is not None
        assert "replicas" not in stored["spec"]["prefill"]
    finally:
        assert operator.stop() == 0


@pytest.mark.usefixtures("chart")
def test_an_application_set_brings_pools_to_each_cluster(
    plane: Cluster, api: Api, argo: Argo, repository: Repository
) -> None:
    """The example's controller makes an Application of each labelled cluster, which syncs that cluster's folder."""
    (found,) = yaml.safe_load_all((ROOT / "manifests" / "argocd" / "applicationset.yaml").read_text())
    assert found["spec"]["template"]["spec"]["destination"]["namespace"] == TEAM
    found["spec"]["template"]["spec"]["source"]["repoURL"] = repository.url
    found["spec"]["template"]["spec"]["destination"]["namespace"] = "of-a-set"
    repository.write("clusters/first-site/pool.yaml", POOL % 1)
    metadata = {
        "name": "first-site",
        "namespace": NAMESPACE,
        "labels": {"argocd.argoproj.io/secret-type": "cluster", "pdpool.io/serving": "yes"},
    }
    said = {"name": "First Site", "server": "https://kubernetes.default.svc", "config": "{}"}
    with argo.application_sets():
        plane.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": said}, found])

        def arrived() -> None:
            assert [each["metadata"]["name"] for each in api.items("inferencepools", "of-a-set")] == ["tiny"]

        eventually(arrived, timeout_s=SYNC_S, every_s=1)
        becomes(plane, "pools-first-site", "Synced")


def started(plane: Cluster, folder: Path) -> Operator:
    """The operator, with the rights that the chart gave it."""
    kubeconfig = plane.kubeconfig_for_service_account(HOME, OPERATOR)
    return Operator(kubeconfig, folder / "operator.log", namespace=HOME).wait_ready()


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
    before, pool = synced(plane, POOLS_APP, CHART_APP), api.get("inferencepools", TEAM, "tiny")
    until = time.monotonic() + REST_S
    while time.monotonic() < until:
        assert synced(plane, POOLS_APP, CHART_APP) == before
        assert state(plane, POOLS_APP)[1] == "Healthy"
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
    plane.kubectl("--namespace", NAMESPACE, "annotate", "application", name, f"{REFRESH}=hard", "--overwrite")


def _compare(plane: Cluster, *applications: str) -> None:
    """One look of Argo CD more at each, to its end."""
    for name in applications:
        _refresh(plane, name)

    def is_done() -> None:
        for name in applications:
            found = plane.objects("--namespace", NAMESPACE, "application", name)
            assert REFRESH not in found["metadata"].get("annotations", {})

    eventually(is_done, timeout_s=SYNC_S, every_s=0.5)


def _sync(plane: Cluster, name: str) -> None:
    """Apply everything of it once more, as somebody who presses the button."""
    wanted = plane.objects("--namespace", NAMESPACE, "application", name)["spec"]["syncPolicy"]["syncOptions"]
    operation = {"operation": {"initiatedBy": {"username": "tests"}, "sync": {"syncOptions": wanted}}}
    plane.kubectl(
        *("--namespace", NAMESPACE, "patch", "application", name, "--type=merge", "--patch", json.dumps(operation))
    )

    def is_done() -> None:
        found = plane.objects("--namespace", NAMESPACE, "application", name)
        assert "operation" not in found
        last = found["status"]["operationState"]
        assert last["operation"]["initiatedBy"].get("username") == "tests"
        assert last["phase"] == "Succeeded", last.get("message")

    eventually(is_done, timeout_s=SYNC_S, every_s=0.5)
    becomes(plane, name, "Synced")
