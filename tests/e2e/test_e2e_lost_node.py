"""Nodes that are lost while others live: kwok's nodes, around them Kubernetes' own scheduler and controllers.

Outside CI (`make e2e-node`): the node controller believes in a silent node for 50 s, and a pod that nobody can end is
given up a minute after it was to have ended. The operator is a process; nothing runs in the pods.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from e2e.cluster import down, up
from e2e.cluster.binaries import cached_path
from e2e.cluster.kwok import KwokNodes
from e2e.scenarios.api import ClusterApi
from e2e.scenarios.pools import Pool, is_ready, wait_for
from pdpool_api import names
from tests.operator.harness import pool
from tests.operator.site import Site, installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from conftest import Say

pytestmark = [pytest.mark.node, pytest.mark.timeout(2400)]

Json = dict[str, Any]
PATIENCE_S: Final = 600.0
"""A rollout in which pods are given up takes two minutes on a quiet machine."""
QUIET_S: Final = 20.0
ENGINES: Final = ("prefill", "decode")
ROLES: Final = (*ENGINES, "router")
REPLICAS: Final = 2
CAP: Final = 2 * REPLICAS
NEXT_IMAGE: Final = "vllm/vllm-openai:v0.32.0"


@dataclass(frozen=True)
class Place:
    """A control plane with nodes, and the operator at work in it."""

    nodes: KwokNodes
    site: Site
    api: ClusterApi

    def pool(self, name: str, spec: Json) -> Pool:
        """A pool in a namespace of its own."""
        namespace = self.site.namespace()
        self.api.create("inferencepools", namespace, pool(name, namespace, **spec))
        return Pool(self.api, name, namespace)

    def wait_quiet(self) -> None:
        """Waits for a while in which the operator writes nothing."""

        def quiet() -> bool:
            audit = self.nodes.cluster.audit
            since = audit.now()
            time.sleep(QUIET_S)
            return not audit.writes(since, user=self.site.user)

        wait_for(quiet, PATIENCE_S, "no write while nothing changes")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    name = f"test-{os.getpid()}-kwok"
    with ExitStack() as ends:
        cluster = up(name, control_plane_only=True, owned=True)
        ends.callback(down, name, keep_logs=False)
        nodes = KwokNodes(cluster, [f"kwok-{number}" for number in range(3)], accelerators=8)
        nodes.start()
        site = installed(cluster, tmp_path)
        ends.callback(site.api.close)
        api = ClusterApi(cluster.kubeconfig, str(cached_path("kubectl")))
        ends.callback(api.close)
        operator = site.start()
        ends.callback(operator.stop)
        operator.wait_ready()
        yield Place(nodes, site, api)


def test_a_lost_node_is_told_its_pods_are_replaced_and_nothing_waits_for_it(place: Place, say: Say) -> None:
    """Two pools lose a node: one whose pods Kubernetes evicts soon, one whose pods it leaves there.

    Both say so and keep what is left. The evicted pods stay, as nobody can end them, and others serve in their place;
    edits of both pools, one of them at its cap, come to their end meanwhile. The node comes back: they go, and no
    more.
    """
    evicted = place.pool("evicted", {**_spec(tolerated_s=10), "maxGpus": CAP})
    left = place.pool("left", _spec(tolerated_s=3600))
    both = (evicted, left)
    for each in both:
        each.wait_ready(PATIENCE_S, say)
    place.wait_quiet()
    at_first = {each.name: Seen(each) for each in both}
    lost = _lost_by_all(place.nodes.names, at_first.values())
    stay = {name: seen.serving_beside(lost) for name, seen in at_first.items()}
    since = place.nodes.cluster.audit.now()
    place.nodes.lose(lost)

    took_s = wait_for(lambda: _reason(left) == "ReplicasNotReady", PATIENCE_S, "the loss told", left.summary, say)
    say(f"told after {took_s:.0f} s: {left.summary()}")
    of_roles = {role: REPLICAS - at_first["left"].on(lost, role) for role in ENGINES}
    wait_for(lambda: left.ready_replicas() == of_roles, PATIENCE_S, f"{of_roles} said", left.summary)
    assert left.condition("Ready")["status"] == "False"
    assert Seen(left).pods.keys() == at_first["left"].pods.keys()
    assert stay["left"] <= Seen(left).serving

    gone = at_first["evicted"].pods.keys() - stay["evicted"]
    took_s = wait_for(lambda: gone <= Seen(evicted).ending, PATIENCE_S, "the eviction", evicted.summary, say)
    took_s += wait_for(lambda: _is_whole(evicted, ROLES, lost), PATIENCE_S, "replacements", evicted.summary, say)
    say(f"evicted and replaced {took_s:.0f} s later, while {len(gone)} pods stay: {evicted.summary()}")
    assert Seen(evicted).ending == gone
    assert stay["evicted"] <= Seen(evicted).serving
    assert place.site.child_writes(since, {each.namespace for each in both}) == []

    for each in both:
        place.api.patch("inferencepools", each.name, each.namespace, {"spec": {"engine": {"image": NEXT_IMAGE}}})
    rolled: set[str] = set()
    took_s = wait_for(lambda: _roll(both, lost, rolled) == len(both), PATIENCE_S, "the edits", evicted.summary, say)
    say(f"both rolled after {took_s:.0f} s: {evicted.summary()}; {left.summary()}")
    place.wait_quiet()

    before = {each.name: (Seen(each), each.condition("Ready")["lastTransitionTime"]) for each in both}
    for seen, _ in before.values():
        assert {_node(seen.pods[uid]) for uid in seen.ending} == {lost}
    place.nodes.heal(lost)
    wait_for(lambda: place.nodes.cluster.node_is_ready(lost), PATIENCE_S, "the node Ready")
    wait_for(lambda: not any(Seen(each).ending for each in both), PATIENCE_S, "an end of lost pods", evicted.summary)
    wait_for(lambda: all(_is_whole(each, ROLES) for each in both), PATIENCE_S, "all serving", left.summary)
    place.wait_quiet()
    for each in both:
        seen, turned = before[each.name]
        assert each.is_ready()
        assert each.condition("Ready")["lastTransitionTime"] == turned
        assert Seen(each).pods.keys() == seen.pods.keys() - seen.ending


def test_a_node_that_is_taken_away_frees_its_pods(place: Place, say: Say) -> None:
    """A cloud removes the machine and its Node: Kubernetes collects the pods, others take their place, none is left."""
    tiny = place.pool("tiny", _spec(tolerated_s=3600))
    tiny.wait_ready(PATIENCE_S, say)
    place.wait_quiet()
    at_first = Seen(tiny)
    lost = _lost_by_all(place.nodes.names, [at_first])
    stay = at_first.serving_beside(lost)
    gone = at_first.pods.keys() - stay
    since = place.nodes.cluster.audit.now()
    place.nodes.lose(lost)
    place.api.delete("nodes", lost)
    took_s = wait_for(lambda: not gone & Seen(tiny).pods.keys(), PATIENCE_S, "the collection", tiny.summary, say)
    wait_for(lambda: _is_whole(tiny, ROLES, lost), PATIENCE_S, "replacements", tiny.summary, say)
    say(f"collected after {took_s:.0f} s, and replaced: {tiny.summary()}")
    assert not Seen(tiny).ending
    assert stay <= Seen(tiny).serving
    assert place.site.child_writes(since, {tiny.namespace}) == []


class Seen:
    """A pool's pods by uid at one moment."""

    def __init__(self, of: Pool) -> None:
        self.pods: dict[str, Json] = {
            pod["metadata"]["uid"]: pod for pod in of.api.items("pods", of.namespace, of.labels)
        }

    @property
    def ending(self) -> set[str]:
        return {uid for uid, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]}

    @property
    def serving(self) -> set[str]:
        """Ready, and nobody asked them to leave."""
        marked = {
            uid for uid, pod in self.pods.items() if names.ANNOTATION_DRAINING in pod["metadata"].get("annotations", {})
        }
        return {uid for uid, pod in self.pods.items() if is_ready(pod)} - self.ending - marked

    def serving_beside(self, lost: str) -> set[str]:
        """Those of them on other nodes."""
        return {uid for uid in self.serving if _node(self.pods[uid]) != lost}

    def on(self, node: str, role: str) -> int:
        return sum(_node(pod) == node and _role(pod) == role for pod in self.pods.values())


def _spec(*, tolerated_s: int) -> Json:
    """Two replicas of each role with one accelerator each, and two routers.

    Args:
        tolerated_s: how long Kubernetes leaves pods on a lost node.
    """
    away = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": tolerated_s}
    tolerations = [{**away, "key": f"node.kubernetes.io/{key}"} for key in ("unreachable", "not-ready")]
    role = {"replicas": REPLICAS, "drainSeconds": 5, "template": {"tolerations": tolerations}}
    return {"transfer": {"leaseSeconds": 6}, "prefill": role, "decode": role, "router": role}


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _role(pod: Json) -> str:
    return str(pod["metadata"]["labels"][names.LABEL_ROLE])


def _lost_by_all(nodes: Sequence[str], pools: Iterable[Seen]) -> str:
    """A node with engines of every pool, beside which each role has a replica: replicas keep apart where they can."""

    def is_lost(seen: Seen, node: str) -> bool:
        held = [seen.on(node, role) for role in ENGINES]
        return any(held) and max(held) < REPLICAS

    every = list(pools)
    return next(node for node in nodes if all(is_lost(seen, node) for seen in every))


def _reason(of: Pool) -> str:
    return str(of.condition("Ready").get("reason", ""))


def _is_whole(of: Pool, roles: Iterable[str], lost: str = "") -> bool:
    """These roles have their replicas, beside those of a lost node, and the pool says that it is Ready."""
    seen = Seen(of)
    serving = Counter(_role(seen.pods[uid]) for uid in seen.serving_beside(lost))
    return (
        of.is_ready()
        and set(of.ready_replicas().values()) == {REPLICAS}
        and {serving[role] for role in roles} == {REPLICAS}
    )


def _roll(pools: Iterable[Pool], lost: str, rolled: set[str]) -> int:
    """How many have come to the new image, on living nodes.

    On the way no role is without a replica, and there is no replica too many; those of the lost node are apart.
    """
    for of in pools:
        seen = Seen(of)
        engines = {uid: pod for uid, pod in seen.pods.items() if _role(pod) in ENGINES and uid not in seen.ending}
        assert len(engines) <= CAP, of.summary()
        assert {_role(seen.pods[uid]) for uid in seen.serving} >= set(ENGINES), of.summary()
        images = {pod["spec"]["containers"][0]["image"] for pod in engines.values()}
        if images == {NEXT_IMAGE} and _is_whole(of, ENGINES, lost):
            rolled.add(of.name)
    return len(rolled)
