"""The chart on a real API server, with real helm: every row of values, a second release, a plain one before it.

Its life from upgrade to adoption is tried under a live pool on the real cluster (`tests/e2e/test_e2e_chart.py`).
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from e2e.chart import CHART, NAMESPACE, OPERATOR, Helm, documents, render
from e2e.cluster.progress import ClusterError
from pdpool_api import names
from tests.install.matrix import ROWS
from tests.operator.harness import Api, Operator, condition, pool
from tests.operator.site import settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("install")]


@pytest.fixture(scope="module")
def api(plane: Cluster) -> Iterator[Api]:
    found = Api(plane.kubeconfig)
    yield found
    found.close()


@pytest.fixture(scope="module")
def namespaces(plane: Cluster) -> None:
    """Where things are installed; all restricted, as the manifest's own."""
    for name in (NAMESPACE, "team-a", "team-b", "second"):
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


@pytest.mark.usefixtures("namespaces")
def test_every_row_of_values_is_taken_by_the_api_server(plane: Cluster) -> None:
    """`helm template | kubectl apply --dry-run=server` is clean for the whole matrix, in restricted namespaces.

    Each row is a release of its own name, by which a refusal tells the row. One version of helm is enough: both render
    the same, as a unit test shows.
    """
    rows = (render(values=values, release=row) for row, values in ROWS.items())
    # Without the repeats: the long definition of pools is the same in nearly every row.
    objects = dict.fromkeys(each.strip() for row in rows for each in re.split(r"^---$", row, flags=re.MULTILINE))
    text = "\n---\n".join(objects)
    command = plane.kubectl_command("apply", "--dry-run=server", "--filename=-")
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("(server dry run)") == len(documents(text))


@pytest.mark.usefixtures("clean")
def test_a_second_release_serves_its_own_namespace_and_leaves_the_first_alone(
    plane: Cluster, api: Api, tmp_path: Path
) -> None:
    """`crds.install=false` and `namespaced=true` beside a first release: it serves, and goes without the CRD."""
    Helm(plane.kubeconfig, NAMESPACE).install()
    plane.wait_established(names.CRD_NAME)
    second = Helm(plane.kubeconfig, "second")
    said = second.install(values={"namespaced": True, "crds.install": False})
    assert "looks at namespace second." in said
    assert "leaves the CRD" not in said, "it has none"
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
    said = release.install("--take-ownership")
    assert f"helm test {release.release} --namespace {NAMESPACE}" in said, "the notes tell the next step"
    plane.kubectl("--namespace", NAMESPACE, "get", "deployment", OPERATOR)


def _operator(plane: Cluster, log: Path, *arguments: str, namespace: str = NAMESPACE) -> Operator:
    kubeconfig = plane.kubeconfig_for_service_account(namespace, OPERATOR, path=log.with_suffix(".kubeconfig"))
    return Operator(kubeconfig, log, *arguments, namespace=namespace).wait_ready()
