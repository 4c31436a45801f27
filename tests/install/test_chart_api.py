"""The chart on a real API server, with real helm: every row of values, a second release, a plain one before it.

Its life from upgrade to adoption is tried under a live pool on the real cluster (`tests/e2e/test_e2e_chart.py`).
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from e2e.chart import CHART, HELM3, HELM4, NAMESPACE, OPERATOR, Helm, documents, render
from e2e.chart.before import is_of_chart, release_before
from e2e.cluster.progress import ClusterError
from e2e.documents import contains
from pdpool_api import names
from tests.install.matrix import ROWS
from tests.operator.harness import Api, Json, Operator, condition, eventually, pool
from tests.operator.site import settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("install")]

SAMPLE = CHART.parents[1] / "manifests" / "samples" / "llama-70b.yaml"


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


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("clean")
def test_helm_4_upgrades_and_rolls_back_what_either_helm_installed(plane: Cluster, api: Api, tmp_path: Path) -> None:
    """Each field that a release brings, or lacks, comes and goes with it, and a pool stays through all of it (Q17).

    What helm 3 has installed, and what helm 4 has itself, which applies in another way: server-side.
    """
    earlier = release_before(tmp_path)
    old, new = (Helm(plane.kubeconfig, NAMESPACE, program=program) for program in (HELM3, HELM4))
    old.install(chart=earlier)
    plane.wait_established(names.CRD_NAME)
    wanted = yaml.safe_load(SAMPLE.read_text())
    uid = api.create("inferencepools", "team-a", wanted)["metadata"]["uid"]

    _knows(plane, earlier)
    new.install()
    _knows(plane, CHART)
    assert names.CRD_NAME in new.uninstall(), "helm says what it kept"
    new.install(chart=earlier)
    _knows(plane, earlier)
    new.install()
    _knows(plane, CHART)
    new.rollback()
    _knows(plane, earlier)
    new.rollback()
    _knows(plane, CHART)
    found = eventually(lambda: _whole(api, wanted))
    assert found["metadata"]["uid"] == uid
    api.delete("inferencepools", "team-a", wanted["metadata"]["name"])


def _knows(plane: Cluster, chart: Path) -> None:
    """The API server's definition of pools is the chart's."""
    assert is_of_chart(plane.objects("crd", names.CRD_NAME), chart)


def _whole(api: Api, wanted: Json) -> Json:
    """The pool as it is stored, with every field that is wanted: servers take up a new definition in a moment."""
    stored = api.merge("inferencepools", "team-a", wanted["metadata"]["name"], {"spec": wanted["spec"]})
    assert contains(stored["spec"], wanted["spec"])
    return stored


@pytest.mark.usefixtures("clean")
def test_helm_takes_over_a_plain_installation_when_told_to(plane: Cluster, tmp_path: Path) -> None:
    """After `kubectl apply` of the release before helm refuses, naming what is there, until told as the page says."""
    plain = tmp_path / "install.yaml"
    plain.write_text(render(chart=release_before(tmp_path)))
    release = Helm(plane.kubeconfig, NAMESPACE)
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(plane.kubectl, "delete", "--ignore-not-found", "--filename", str(plain))
        plane.kubectl("apply", "--filename", str(plain))
        plane.wait_established(names.CRD_NAME)
        with pytest.raises(ClusterError, match=f"{OPERATOR}.* exists and cannot be imported"):
            release.install()
        with contextlib.suppress(ClusterError):
            release.uninstall()
        said = release.install("--take-ownership", "--force-conflicts")
        assert f"helm test {release.release} --namespace {NAMESPACE}" in said, "the notes tell the next step"
        _knows(plane, CHART)
        plane.kubectl("--namespace", NAMESPACE, "get", "deployment", OPERATOR)


def _operator(plane: Cluster, log: Path, *arguments: str, namespace: str = NAMESPACE) -> Operator:
    kubeconfig = plane.kubeconfig_for_service_account(namespace, OPERATOR, path=log.with_suffix(".kubeconfig"))
    return Operator(kubeconfig, log, *arguments, namespace=namespace).wait_ready()
