"""The chart on a real API server, with real helm 3 and helm 4: installed, upgraded, rolled back, removed, adopted."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from e2e.chart import CHART, HELM3, HELM4, NAMESPACE, OPERATOR, Helm, documents, render
from e2e.chart.before import ADDED, REMOVED, release_before
from e2e.cluster.progress import ClusterError
from pdpool_api import names
from tests.install.matrix import ROWS
from tests.operator.harness import Api, Operator, condition, eventually, pool
from tests.operator.site import generations, settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("install")]

Json = dict[str, Any]
POOLS = "pools"


@pytest.fixture(scope="module")
def api(plane: Cluster) -> Iterator[Api]:
    found = Api(plane.kubeconfig)
    yield found
    found.close()


@pytest.fixture(scope="module")
def namespaces(plane: Cluster) -> None:
    """Where things are installed; all restricted, as the manifest's own."""
    for name in (NAMESPACE, "team-a", "team-b", POOLS, "second"):
        with contextlib.suppress(ClusterError):
            plane.kubectl("create", "namespace", name)
        # Of what makes pods, as a Deployment, the API server only warns; the pods themselves it refuses.
        levels = [f"pod-security.kubernetes.io/{how}=restricted" for how in ("enforce", "warn")]
        plane.kubectl("label", "namespace", name, *levels)


@pytest.fixture
def clean(plane: Cluster, namespaces: None) -> Iterator[None]:  # noqa: ARG001 - removed last
    """Nothing of pdpool in the cluster, before and after."""
    _remove(plane)
    yield
    _remove(plane)


def _remove(plane: Cluster) -> None:
    for namespace in (NAMESPACE, "second"):
        with contextlib.suppress(ClusterError):
            Helm(plane.kubeconfig, namespace).uninstall()
    plane.kubectl("delete", "crd", names.CRD_NAME, "--ignore-not-found", "--wait=true")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of the release before."""
    return release_before(tmp_path_factory.mktemp("earlier"))


@pytest.mark.usefixtures("namespaces")
def test_every_row_of_values_is_taken_by_the_api_server(plane: Cluster) -> None:
    """`helm template | kubectl apply --dry-run=server` is clean for the whole matrix, in restricted namespaces.

    One version of helm is enough: both render the same, as a unit test shows.
    """
    for row, values in ROWS.items():
        text = render(values=values)
        command = plane.kubectl_command("apply", "--dry-run=server", "--filename=-")
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), row
        assert done.stdout.count("(server dry run)") == len(documents(text)), row


@pytest.mark.parametrize("programs", [(HELM3, HELM3), (HELM3, HELM4)], ids="-".join)
@pytest.mark.usefixtures("clean")
def test_a_release_lives_from_install_to_adoption(
    plane: Cluster, api: Api, earlier: Path, tmp_path: Path, programs: tuple[str, str]
) -> None:
    """An upgrade brings new fields, a rollback returns, uninstalling leaves pools, a reinstall adopts them (Q17).

    A field that is gone since is dropped from pools that have it, and hinders nobody.
    """
    old, new = (Helm(plane.kubeconfig, NAMESPACE, program=program) for program in programs)
    old.install(chart=earlier)
    plane.wait_established(names.CRD_NAME)
    api.create("inferencepools", POOLS, _pool())
    assert ADDED not in _stored(api)["spec"]
    assert _stored(api)["spec"][REMOVED] == "said"

    new.install()
    eventually(lambda: _stored_field(api))
    operator = _operator(plane, tmp_path / "first.log")
    before = settled(api, POOLS, "p")
    assert REMOVED not in before["spec"]
    children = generations(api, POOLS)
    assert operator.stop() == 0

    new.rollback(1)
    assert _stored(api)["metadata"]["uid"] == before["metadata"]["uid"]
    new.rollback(2)
    eventually(lambda: _stored_field(api))

    said = new.uninstall()
    assert names.CRD_NAME in said, "helm says what it kept"
    with pytest.raises(ClusterError, match="not found"):
        plane.kubectl("--namespace", NAMESPACE, "get", "deployment", OPERATOR)
    assert _stored(api)["metadata"]["uid"] == before["metadata"]["uid"]
    assert generations(api, POOLS) == children

    new.install()
    operator = _operator(plane, tmp_path / "second.log")
    api.merge("inferencepools", POOLS, "p", {"metadata": {"labels": {"seen": "again"}}})
    settled(api, POOLS, "p")
    assert operator.stop() == 0
    assert generations(api, POOLS) == children, "an upgrade of the operator alone rolls nothing"

    new.uninstall()
    plane.kubectl("--namespace", POOLS, "delete", "pdp", "p", "--timeout=30s")
    eventually(lambda: _gone(api))


@pytest.mark.usefixtures("clean")
def test_a_second_release_serves_its_own_namespace_and_leaves_the_first_alone(
    plane: Cluster, api: Api, tmp_path: Path
) -> None:
    """`crds.install=false` and `namespaced=true` beside a first release: it serves, and goes without the CRD."""
    Helm(plane.kubeconfig, NAMESPACE).install()
    plane.wait_established(names.CRD_NAME)
    second = Helm(plane.kubeconfig, "second")
    second.install(values={"namespaced": True, "crds.install": False})
    operator = _operator(plane, tmp_path / "log", "--namespace=second", namespace="second")
    plane.apply([pool("q", "second", prefill={"hardware": "cpu"}, decode={"hardware": "cpu"})])
    found = settled(api, "second", "q")
    assert condition(found, "SpecValid")["status"] == "True"
    assert operator.stop() == 0
    plane.kubectl("--namespace=second", "delete", "pdp", "q", "--timeout=30s")
    second.uninstall()
    plane.kubectl("get", "crd", names.CRD_NAME)
    plane.kubectl("--namespace", NAMESPACE, "get", "deployment", OPERATOR)


@pytest.mark.usefixtures("clean")
def test_helm_takes_over_a_plain_installation_when_told_to(plane: Cluster) -> None:
    """After `kubectl apply` of the CRD helm refuses, naming it, until `--take-ownership`."""
    plane.kubectl("apply", "--filename", str(CHART / "files" / f"{names.CRD_NAME}.yaml"))
    plane.wait_established(names.CRD_NAME)
    release = Helm(plane.kubeconfig, NAMESPACE)
    with pytest.raises(ClusterError, match=names.CRD_NAME):
        release.install()
    with contextlib.suppress(ClusterError):
        release.uninstall()
    release.install("--take-ownership")
    plane.kubectl("--namespace", NAMESPACE, "get", "deployment", OPERATOR)


def _pool() -> Json:
    found = pool("p", POOLS)
    found["spec"] |= {ADDED: 16, REMOVED: "said"}
    found["spec"]["prefill"] |= {"replicas": 0}
    found["spec"]["decode"] |= {"replicas": 0}
    return found


def _stored(api: Api) -> Json:
    found = api.get("inferencepools", POOLS, "p")
    assert found is not None
    return found


def _stored_field(api: Api) -> None:
    api.merge("inferencepools", POOLS, "p", {"spec": {ADDED: 16}})
    assert _stored(api)["spec"][ADDED] == 16


def _gone(api: Api) -> None:
    assert api.get("inferencepools", POOLS, "p") is None
    assert api.children(POOLS) == {}


def _operator(plane: Cluster, log: Path, *arguments: str, namespace: str = NAMESPACE) -> Operator:
    kubeconfig = plane.kubeconfig_for_service_account(namespace, OPERATOR, path=log.with_suffix(".kubeconfig"))
    return Operator(kubeconfig, log, *arguments, namespace=namespace).wait_ready()
