"""Fixtures of the operator's API tests: one control plane and one operator for all, a namespace for each.

Their modules are in two groups of xdist, `pools` and `operator`: each worker that got one of the tests would start a
control plane and an operator of its own, and keep them running to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.cluster.fixtures import control_plane, of_session
from tests.operator.site import Site, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.cluster import Cluster
    from tests.operator.harness import Api, Json, Operator

__all__ = ["control_plane"]


@pytest.fixture(scope="session")
def site(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = installed(control_plane, tmp_path_factory.mktemp("operator"))
    yield found
    found.stop_shared()
    found.api.close()


@pytest.fixture(scope="session")
def site_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A control plane for tests that start and end operators, or count writes while nothing else may happen."""
    with of_session("-apart") as cluster:
        found = installed(cluster, tmp_path_factory.mktemp("apart"))
        yield found
        found.api.close()


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
def make_namespace(site: Site) -> Callable[[], str]:
    return site.namespace


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
