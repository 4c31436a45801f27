"""Fixtures of the operator's API tests: one control plane and one operator for all, a namespace for each."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from e2e.cluster import service_account_user
from e2e.cluster.fixtures import control_plane
from pdpool_operator import install
from tests.operator.harness import Api, Json, Operator, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

__all__ = ["control_plane"]


@dataclass
class Site:
    """The control plane with pdpool installed by its manifest, and the operator's own credentials."""

    cluster: Cluster
    api: Api
    kubeconfig: Path
    logs: Path
    operator: Operator | None = None

    @property
    def user(self) -> str:
        """Whom the audit log names."""
        return service_account_user(install.NAMESPACE, install.NAME)

    def stop_shared(self) -> None:
        """Ends the operator that tests share, so that others act; it is started again for whoever asks for it."""
        if self.operator is not None and self.operator.running:
            assert self.operator.stop() == 0

    def start(self, *arguments: str) -> Operator:
        """A further operator with the rights of the manifest, in its namespace."""
        log = self.logs / f"operator-{uuid.uuid4().hex[:6]}.log"
        return Operator(self.kubeconfig, log, *arguments, namespace=install.NAMESPACE)

    def child_writes(self, since: int, namespaces: set[str] | None = None) -> list[str]:
        """Every successful write of the operator to children (not to statuses and Leases), as `verb resource/name`."""
        return [
            f"{entry.verb} {entry.namespace} {entry.resource}/{entry.name}"
            for entry in self.cluster.audit.entries(since)  # type: ignore[arg-type]
            if entry.user == self.user
            and entry.is_write
            and entry.succeeded
            and entry.resource not in ("leases", "inferencepools/status")
            and (namespaces is None or entry.namespace in namespaces)
        ]


def _served(control_plane: Cluster) -> None:
    """Asserts that the CRD is; `kubectl wait` fails at once while a new object has no conditions at all."""
    crd = yaml.safe_load(control_plane.kubectl("get", f"crd/{install.CRD_FILE.stem}", "-o", "yaml"))
    conditions = {each["type"]: each["status"] for each in crd.get("status", {}).get("conditions") or ()}
    assert conditions.get("Established") == "True"


@pytest.fixture(scope="session")
def site(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    documents = list(yaml.safe_load_all(install.INSTALL_FILE.read_text()))
    # No pod runs here: the operator runs as a process with the rights of the manifest's service account.
    control_plane.apply([each for each in documents if each["kind"] != "Deployment"])
    eventually(lambda: _served(control_plane))
    kubeconfig = control_plane.kubeconfig_for_service_account(install.NAMESPACE, install.NAME)
    api = Api(control_plane.kubeconfig)
    found = Site(control_plane, api, kubeconfig, tmp_path_factory.mktemp("operator"))
    yield found
    if found.operator is not None:
        found.operator.stop()
    api.close()


@pytest.fixture
def operator(site: Site) -> Operator:
    """The operator that tests share; started again when one of them ended it."""
    if site.operator is None or not site.operator.running:
        site.operator = site.start().wait_ready()
    return site.operator


@pytest.fixture
def api(site: Site) -> Api:
    return site.api


@pytest.fixture
def make_namespace(api: Api) -> Callable[[], str]:
    """Makes namespaces; they go with the control plane, as deleting each would keep its controllers busy."""

    def make() -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    return make


@pytest.fixture
def namespace(make_namespace: Callable[[], str]) -> str:
    """A namespace of the test's own."""
    return make_namespace()


@pytest.fixture
def raw_pool() -> Json:
    """A pool as the API server stores it."""
    return {
        "metadata": {
            "name": "tiny",
            "namespace": "serving",
            "uid": "5a5a1d5c-0000-4000-8000-000000000001",
            "generation": 3,
            "resourceVersion": "100",
            "labels": {"argocd.argoproj.io/instance": "app", "app.kubernetes.io/instance": "gitops"},
            "annotations": {"argocd.argoproj.io/tracking-id": "app:x", "kubectl.kubernetes.io/last-applied": "{}"},
        },
        "spec": {
            "model": {"id": "/models/tiny", "servedNames": ["tiny"]},
            "prefill": {"hardware": "cpu", "replicas": 2},
            "decode": {"hardware": "cpu"},
        },
        "status": {},
    }
