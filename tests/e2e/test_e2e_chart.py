"""The chart's life on the real cluster, by real helm 3 and helm 4, under a pool that serves all along.

Engines are stand-ins in pods; helm, operator and router are real. Nothing was released yet: what stands for the release
before has another definition of pools and other labels, and the images of this one. So the routers stay as well:
another router image would replace them, and a stream longer than `router.drainSeconds` would end with its router.

CI runs the life that begins with helm 3; that with helm 4 alone takes as long again, and is `make e2e-helm`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from e2e.chart import CHART, HELM3, HELM4, Helm
from e2e.chart.before import REMOVED, is_of_chart, release_before
from e2e.documents import contains
from e2e.scenarios import standin_pool
from e2e.scenarios.pools import Pool, wait_for
from e2e.scenarios.stream import Stream
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import CRD_NAME, LABEL_APP_NAME, Role
from pdpool_operator.settings import LEASE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Say

    from e2e.scenarios.api import ClusterApi, JsonObject
    from e2e.scenarios.product import Operator

pytestmark = pytest.mark.timeout(900)
LIVES = [pytest.param(HELM3, marks=pytest.mark.cluster), pytest.param(HELM4, marks=pytest.mark.helm)]

STEP_S, TOKENS = 0.2, 6000
"""Of the long stream: it would go on for twenty minutes."""
SERVES_S, ENDS_S = 60.0, 180.0
STORED_S = 60.0
ACTS_S = 180.0
ADDED: Final = "maxGpus"
"""A field that the live pool has only once its release knows it, and by which nothing of it changes."""
WIDE: Final = CHART.parents[1] / "manifests" / "samples" / "llama-70b.yaml"
LEVELS: Final = ("model", "engine", "transfer", "prefill", "decode", "router")
"""Of a spec, whose own fields a release may drop too."""


@pytest.fixture
def helm4(api: ClusterApi, operator: Operator, pool: Pool) -> Iterator[Helm]:
    """The one that leaves the product installed, whatever a test came to."""
    helm = Helm(api.kubeconfig, operator.namespace, program=HELM4)
    yield helm
    if not (operator.is_there and _knows(api, CHART)):
        helm.install()
        operator.wait_ready()
    api.patch("inferencepools", pool.name, pool.namespace, {"spec": {ADDED: None}})
    pool.wait_ready(ACTS_S)


@pytest.fixture
def wide(api: ClusterApi, pool: Pool) -> Iterator[Pool]:
    """A pool that has what the live ones do without, and that no node here can run."""
    wanted = yaml.safe_load(WIDE.read_text())
    name = wanted["metadata"]["name"]
    api.create("inferencepools", pool.namespace, wanted)
    yield Pool(api, name, pool.namespace)
    api.delete("inferencepools", name, pool.namespace)


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
    *, program: str, operator: Operator, pool: Pool, wide: Pool, helm4: Helm, tmp_path: Path, say: Say
) -> None:
    """Removed, installed as of before, upgraded, rolled back, removed, adopted: pools stay, and serve (Q17).

    No pod is replaced and no Deployment written, no stream and no request is lost. Every field that a release brings
    (all that live pools do without) is there after the upgrade; one that it drops, at each level of a pool, goes from
    pools that have it, and hinders nobody.
    """
    api = operator.api
    helm = Helm(api.kubeconfig, operator.namespace, program=program)
    wanted = yaml.safe_load(WIDE.read_text())["spec"]
    live = [each["spec"] for each in api.items("inferencepools") if each["metadata"]["name"] != wide.name]
    earlier = release_before(tmp_path, *live)
    pool.wait_ready(ACTS_S, say)
    before = _workloads(pool)
    with traffic(pool) as clients:
        say("helm 4: uninstall")
        helm4.uninstall("--ignore-not-found")
        # One that the manifest has installed, as the demo does, is not helm's to remove.
        api.delete("deployments", operator.name, operator.namespace)
        _is_gone(operator)
        clients.goes_on()

        say(f"{program}: install the release before")
        helm.install("--take-ownership", chart=earlier)
        operator.wait_ready(say)
        assert _knows(api, earlier)
        assert ADDED not in _edited(pool, _dropped("said"))
        assert not contains(_edited(wide, _dropped("said")), wanted)

        say(f"{program}: upgrade")
        helm.install("--reset-then-reuse-values")
        operator.wait_ready(say)
        assert _knows(api, CHART)
        assert REMOVED not in str(_edited(pool, {ADDED: 16}))
        assert REMOVED not in str(_edited(wide, wanted))

        say(f"{program}: roll back")
        helm.rollback()
        operator.wait_ready(say)
        assert _knows(api, earlier)
        assert ADDED not in _edited(pool, _dropped("again"))
        assert not contains(_edited(wide, _dropped("again")), wanted)

        say(f"{program}: uninstall")
        assert CRD_NAME in helm.uninstall(), "helm says what it kept"
        _is_gone(operator)
        clients.goes_on()

        say("helm 4: install, which adopts what stayed")
        helm4.install()
        operator.wait_ready(say)
        assert _knows(api, CHART)
        assert REMOVED not in str(_edited(pool, {ADDED: 16}))
        assert REMOVED not in str(_edited(wide, wanted))
        clients.goes_on()
        pool.wait_ready(ACTS_S, say)
        assert _workloads(pool) == before


def _knows(api: ClusterApi, chart: Path) -> bool:
    crd = api.get("customresourcedefinitions", CRD_NAME)
    return crd is not None and is_of_chart(crd, chart)


def _dropped(text: str) -> JsonObject:
    """An edit that sets what this release has no longer, at each level."""
    return {REMOVED: text, **{level: {REMOVED: text} for level in LEVELS}}


def _edited(pool: Pool, edit: JsonObject) -> JsonObject:
    """The spec once the release's definition of pools has taken the fields, and its operator has seen the edit."""

    def is_stored() -> bool:
        stored = pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": edit})
        return contains(stored["spec"], edit)

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
