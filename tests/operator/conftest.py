"""Fixtures of the operator's API tests: one control plane and one operator for all, a namespace for each."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import down, up
from e2e.cluster.fixtures import control_plane
from tests.operator import scenarios
from tests.operator.site import Site, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from e2e.cluster import Cluster
    from tests.operator.harness import Api, Json, Operator

SCENARIOS = {
    "test_nothing_is_written_when_nothing_differs": scenarios.nothing_is_written_when_nothing_differs,
    "test_one_of_two_replicas_acts_and_the_other_takes_over": scenarios.the_other_replica_takes_over,
}

__all__ = ["control_plane"]


@pytest.fixture(scope="session")
def site(
    control_plane: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    _aside: dict[str, Future[None]],
) -> Iterator[Site]:
    found = installed(control_plane, tmp_path_factory.mktemp("operator"))
    yield found
    found.stop_shared()
    found.api.close()


@pytest.fixture(scope="session")
def _aside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every scenario of `scenarios.py` that a chosen test asks for, begun on a control plane of their own."""
    chosen = {item.name for item in request.session.items if "aside" in getattr(item, "fixturenames", ())}
    wanted = [scenario for test, scenario in SCENARIOS.items() if test in chosen]
    if not wanted:
        yield {}
        return
    name = f"test-{os.getpid()}-aside"
    with ThreadPoolExecutor(max_workers=1) as thread:
        begun = thread.submit(_begin, name, tmp_path_factory.mktemp("aside"))
        yield {each.__name__: thread.submit(_after, begun, each) for each in wanted}
    if begun.exception() is None:
        begun.result().api.close()
    down(name, keep_logs=False)


def _after(begun: Future[Site], scenario: Callable[[Site], None]) -> None:
    scenario(begun.result())


def _begin(name: str, logs: Path) -> Site:
    return installed(up(name, control_plane_only=True, owned=True), logs)


@pytest.fixture
def aside(_aside: dict[str, Future[None]]) -> Callable[[str], None]:
    """Waits for a scenario that runs beside the tests; its failure is the test's."""

    def wait(scenario: str) -> None:
        _aside[scenario].result(timeout=280)

    return wait


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
