"""The chart's life on the real cluster, by real helm 3 and helm 4, under a pool that serves all along.

Engines are stand-ins in pods; helm, operator and router are real. Nothing was released yet: what stands for the release
before has another definition of pools and other labels, and the images of this one. So the routers stay as well:
another router image would replace them, and a stream longer than `router.drainSeconds` would end with its router.

CI runs the life that begins with helm 3; that with helm 4 alone takes as long again, and is `make e2e-helm`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from e2e.chart import HELM3, HELM4, Helm
from e2e.chart.before import ADDED, REMOVED, release_before
from e2e.scenarios import standin_pool
from e2e.scenarios.pools import wait_for
from e2e.scenarios.stream import Stream
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import CRD_NAME, LABEL_APP_NAME, Role
from pdpool_operator.settings import LEASE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Say

    from e2e.scenarios.api import ClusterApi, JsonObject
    from e2e.scenarios.pools import Pool
    from e2e.scenarios.product import Operator

pytestmark = pytest.mark.timeout(900)
LIVES = [pytest.param(HELM3, marks=pytest.mark.cluster), pytest.param(HELM4, marks=pytest.mark.helm)]

STEP_S, TOKENS = 0.2, 6000
"""Of the long stream: it would go on for twenty minutes."""
SERVES_S, ENDS_S = 60.0, 180.0
STORED_S = 60.0
ACTS_S = 180.0


@pytest.fixture
def helm4(api: ClusterApi, operator: Operator, pool: Pool) -> Iterator[Helm]:
    """The one that leaves the product installed, whatever a test came to."""
    helm = Helm(api.kubeconfig, operator.namespace, program=HELM4)
    yield helm
    if not operator.is_there:
        helm.install()
        operator.wait_ready()
    api.patch("inferencepools", pool.name, pool.namespace, {"spec": {ADDED: None}})
    pool.wait_ready(ACTS_S)


@dataclass(frozen=True)
class Traffic:
    """What clients have of a pool: one stream that spans everything, and a request now and then."""

    stream: Stream
    trickle: Trickle

    def goes_on(self) -> None:
        """Both have got something more."""
        text, answers = len(self.stream.text), len(self.trickle.outcomes)
        wait_for(
            lambda: len(self.stream.text) > text and len(self.trickle.outcomes) > answers,
            SERVES_S,
            "more of the stream, and an answer more",
            lambda: f"{self.stream.text[-200:]!r}, {self.trickle.outcomes[-1:]}",
        )
        assert self.trickle.failures() == []


@contextmanager
def traffic(pool: Pool) -> Iterator[Traffic]:
    """While the block lasts; afterwards the stream ends quickly, and nobody has missed anything."""
    url, decodes = pool.service_url(), pool.ready_pods(Role.DECODE)
    for pod in decodes:
        standin_pool.set_pace(pod, step_s=STEP_S)
    stream = Stream(url, standin_pool.MODEL, "tell a long story about blocks", TOKENS)
    try:
        with Trickle(url, standin_pool.MODEL, every_s=0.5, max_tokens=2) as trickle:
            yield Traffic(stream, trickle)
    finally:
        for pod in decodes:
            standin_pool.set_pace(pod, step_s=0.0)
        stream.thread.join(timeout=ENDS_S)
    assert stream.is_whole
    assert trickle.failures() == []


@pytest.mark.parametrize("program", LIVES)
def test_a_release_lives_from_upgrade_to_adoption_under_a_live_pool(
    *, program: str, operator: Operator, pool: Pool, helm4: Helm, tmp_path: Path, say: Say
) -> None:
    """Removed, installed as of before, upgraded, rolled back, removed, adopted: pools stay, and serve (Q17).

    No pod is replaced and no Deployment written, no stream and no request is lost. A field that a release brings is
    there after the upgrade; one that it drops goes from pools that have it, and hinders nobody.
    """
    helm = Helm(operator.api.kubeconfig, operator.namespace, program=program)
    earlier = release_before(tmp_path)
    pool.wait_ready(ACTS_S, say)
    before = _workloads(pool)
    with traffic(pool) as clients:
        say("helm 4: uninstall")
        helm4.uninstall("--ignore-not-found")
        # One that the manifest has installed, as the demo does, is not helm's to remove.
        operator.api.delete("deployments", operator.name, operator.namespace)
        _is_gone(operator)
        clients.goes_on()

        say(f"{program}: install the release before")
        helm.install("--take-ownership", chart=earlier)
        operator.wait_ready(say)
        assert ADDED not in _edited(pool, {REMOVED: "said"})

        say(f"{program}: upgrade")
        helm.install("--reset-then-reuse-values")
        operator.wait_ready(say)
        assert REMOVED not in _edited(pool, {ADDED: 16})

        say(f"{program}: roll back")
        helm.rollback()
        operator.wait_ready(say)
        assert ADDED not in _edited(pool, {REMOVED: "again"})

        say(f"{program}: uninstall")
        assert CRD_NAME in helm.uninstall(), "helm says what it kept"
        _is_gone(operator)
        clients.goes_on()

        say("helm 4: install, which adopts what stayed")
        helm4.install()
        operator.wait_ready(say)
        assert REMOVED not in _edited(pool, {ADDED: 16})
        clients.goes_on()
        pool.wait_ready(ACTS_S, say)
        assert _workloads(pool) == before


def _edited(pool: Pool, edit: JsonObject) -> JsonObject:
    """The spec once the release's definition of pools has taken the fields, and its operator has seen the edit."""

    def is_stored() -> bool:
        stored = pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": edit})
        return bool(stored["spec"].items() >= edit.items())

    def is_seen() -> bool:
        found = pool.read() or {}
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    wait_for(is_stored, STORED_S, f"{edit} stored")
    wait_for(is_seen, ACTS_S, "the operator acts", pool.summary)
    spec: JsonObject = (pool.read() or {})["spec"]
    return spec


def _workloads(pool: Pool) -> dict[str, tuple[str, int]]:
    """What would show a replaced or restarted pod, or a Deployment that was written."""
    pods, deployments = (pool.api.items(kind, pool.namespace, pool.labels) for kind in ("pods", "deployments"))
    stay = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
    counted = [
        *((each, sum(one["restartCount"] for one in each["status"]["containerStatuses"])) for each in stay),
        *((each, each["metadata"]["generation"]) for each in deployments),
    ]
    return {each["metadata"]["name"]: (each["metadata"]["uid"], count) for each, count in counted}


def _is_gone(operator: Operator) -> None:
    """Waits for its pods' end, and spares its successor the half minute until their Lease ends.

    Its rights went before it could give the Lease back.
    """
    selector = f"{LABEL_APP_NAME}={operator.name}"
    wait_for(lambda: not operator.api.items("pods", operator.namespace, selector), ACTS_S, "no pod of the operator")
    assert not operator.is_there
    operator.api.delete("leases", LEASE_NAME, operator.namespace)
