"""What judges chaos: each rule is broken once by a made-up history, and a good one breaks none."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.chaos import judge as rules
from e2e.chaos.history import REFUSED, Event, deployment_state, pod_state, pool_state
from e2e.chaos.judge import EXCUSED_S, IN_FLIGHT_S, Judge, Tally, writers
from e2e.chaos.story import Kind, rounds
from e2e.cluster import AuditEntry
from pdpool_api import names

SPEC: dict[str, Any] = {
    "model": {"id": "m"},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 2},
    "router": {},
    "maxGpus": 5,
}
BORN = "2026-01-01T00:00:00Z"


@dataclass
class Past:
    """A history that grows; each call is the next version of something."""

    events: list[Event] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self._versions = itertools.count(1)

    def _add(self, kind: str, uid: str, state: Any) -> Past:
        self.events.append(Event(next(self._versions), kind, uid, self.now_s, state))
        return self

    def pool(self, spec: dict[str, Any] = SPEC, generation: int = 1, observed: int = 1, **status: Any) -> Past:
        raw: dict[str, Any] = {
            "metadata": {
                "uid": "u",
                "name": "p",
                "generation": generation,
                "creationTimestamp": BORN,
                "annotations": {REFUSED: "true"} if status.pop("refused", False) else {},
            },
            "spec": spec,
            "status": {"observedGeneration": observed, **status},
        }
        return self._add("pools", "u", pool_state(raw))

    def deployment(self, role: str, replicas: int, revision: str = "r1", generation: int = 1) -> Past:
        container = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        raw = {
            "metadata": {
                "uid": f"{role}-{revision}",
                "name": f"p-{role}-{revision}",
                "generation": generation,
                "labels": {names.LABEL_ROLE: role, names.LABEL_REVISION: revision},
                "ownerReferences": [{"apiVersion": names.API_VERSION, "controller": True, "uid": "u"}],
            },
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}},
        }
        return self._add("deployments", f"{role}-{revision}", deployment_state(raw))

    def pod(self, name: str, role: str = "decode", revision: str = "r1", **state: bool) -> Past:
        metadata: dict[str, Any] = {
            "uid": name,
            "name": name,
            "creationTimestamp": BORN,
            "labels": {names.LABEL_POOL: "p", names.LABEL_ROLE: role, names.LABEL_REVISION: revision},
            "annotations": {names.ANNOTATION_DRAINING: "now"} if state.get("marked") else {},
            **({"deletionTimestamp": "now"} if state.get("deleting") else {}),
        }
        ready = {"type": "Ready", "status": "True" if state.get("ready", True) else "False"}
        return self._add("pods", name, pod_state({"metadata": metadata, "status": {"conditions": [ready]}}))

    def gone(self, kind: str, uid: str) -> Past:
        return self._add(kind, uid, None)

    def later(self, seconds: float) -> Past:
        self.now_s += seconds
        return self


def at_rest() -> Past:
    past = Past().pool().deployment("prefill", 2).deployment("decode", 2)
    for role in ("prefill", "decode"):
        past.pod(f"{role}-0", role).pod(f"{role}-1", role)
    return past


def broken(past: Past, *victims: str) -> set[str]:
    tally = Tally()
    judge = Judge(tally)
    judge.hit(victims)
    # Watches of three kinds deliver in any order; versions decide.
    shuffled = random.Random(1).sample(past.events, len(past.events))
    judge.go_on(shuffled)
    return {each.invariant for each in tally.findings}


def test_a_good_rollout_breaks_nothing() -> None:
    """One of two pods of each role is given up for a new revision, and the other when the new one is ready."""
    past = at_rest().pool({**SPEC, "model": {"id": "n"}}, generation=2, observed=1)
    for role in ("decode", "prefill"):
        past.pod(f"{role}-1", role, marked=True).deployment(role, 1, generation=2).gone("pods", f"{role}-1")
        past.deployment(role, 1, "r2").pod(f"{role}-2", role, "r2", ready=False).pod(f"{role}-2", role, "r2")
    past.pool({**SPEC, "model": {"id": "n"}}, generation=2, observed=2)
    for role in ("decode", "prefill"):
        past.pod(f"{role}-0", role, marked=True).deployment(role, 0, generation=3).gone("pods", f"{role}-0")
        past.deployment(role, 2, "r2", generation=2).gone("deployments", f"{role}-r1").pod(f"{role}-3", role, "r2")
    assert broken(past) == set()


@pytest.mark.parametrize(
    ("past", "rule"),
    [
        (at_rest().deployment("decode", 1, "r2"), rules.SURGE),
        (at_rest().pod("decode-2"), rules.SURGE),
        (at_rest().pool({**SPEC, "decode": {"replicas": 5}}, generation=2).deployment("decode", 4), rules.CAP),
        (at_rest().pod("decode-0", marked=True).pod("decode-1", marked=True), rules.NEEDED),
        (at_rest().gone("pods", "decode-0").pod("decode-1", deleting=True), rules.NEEDED),
        (at_rest().gone("pods", "decode-0").gone("pods", "decode-1"), rules.SERVES),
        (
            at_rest().pod("decode-0", ready=False).later(EXCUSED_S + 1).pod("decode-1", marked=True),
            rules.NEEDED,
        ),
        (at_rest().gone("pools", "u").later(IN_FLIGHT_S + 1).deployment("decode", 1, "r3"), rules.ORPHAN),
        (at_rest().pool(generation=2, observed=2, refused=True), rules.REFUSED),
    ],
)
def test_each_rule_can_be_broken(past: Past, rule: str) -> None:
    """A judge that finds nothing has to be one that could have found something."""
    assert rule in broken(past)


@pytest.mark.parametrize(
    ("past", "victims"),
    [
        # What chaos takes is nobody's fault, and neither is what was decided before it could be known.
        (at_rest().gone("pods", "decode-0").pod("decode-1", marked=True), ("decode-0",)),
        (at_rest().pod("decode-0", ready=False).later(1).pod("decode-1", marked=True), ()),
        # What is left of a larger size may take its time to leave, but not grow.
        (at_rest().pool({**SPEC, "decode": {"replicas": 1}}, generation=2).pod("decode-1", marked=True), ()),
        # The status speaks of the earlier spec still: both are in force.
        (at_rest().pool({**SPEC, "decode": {"replicas": 3}}, 2, 1).pod("decode-0", marked=True), ()),
        (at_rest().gone("pools", "u").later(1).deployment("decode", 1, "r3"), ()),
        (at_rest().pool(generation=2, observed=1, refused=True), ()),
        (
            at_rest().pool(generation=2, observed=2, refused=True, conditions=[{"type": "Stalled", "status": "True"}]),
            (),
        ),
    ],
)
def test_what_is_excused(past: Past, victims: tuple[str, ...]) -> None:
    """No rule is broken by what the contract allows, nor by what chaos did itself."""
    assert broken(past, *victims) == set()


def _wrote(user: str, resource: str = "deployments", status: int = 200) -> AuditEntry:
    return AuditEntry(user, "patch", "", resource, "ns", "x", "pdpool-operator", status, "")


def test_an_old_leader_is_judged_by_the_first_write_of_the_new() -> None:
    """What was on its way when the Lease was lost may still arrive, but nothing after the new one has begun."""
    users = {"a": "a#0", "b": "b#0"}
    start = [_wrote("a", "leases"), _wrote("a"), _wrote("somebody"), _wrote("b", "leases"), _wrote("a")]
    allowed, wrong = Tally(), Tally()
    writers([*start, _wrote("b"), _wrote("a", status=409), _wrote("a", "events"), _wrote("b")], users, allowed)
    assert allowed.findings == []
    assert allowed.checked[rules.WRITER] == 4
    writers([*start, _wrote("b"), _wrote("a")], users, wrong)
    assert [each.invariant for each in wrong.findings] == [rules.WRITER]


def test_a_seed_tells_the_same_story_again() -> None:
    """Acts depend on the seed and the cast alone; each round has what it always has, and ends with valid specs."""
    cast = {name: {**SPEC, "router": {}} for name in ("one", "two")}
    always = ((Kind.API,), (Kind.STOP_LEADER, Kind.INVALID))

    def told(seed: int) -> list[tuple[Any, ...]]:
        story = rounds(random.Random(seed), cast, 9, always=always)
        return list(itertools.islice(story, 6))

    assert told(7) == told(7)
    assert told(7) != told(8)
    last: dict[str, Kind] = {}
    for number, acts in enumerate(told(7)):
        kinds = {act.kind for act in acts}
        assert kinds.issuperset(always[number % 2])
        for act in acts:
            if act.spec is not None:
                last[act.pool] = act.kind
        assert Kind.INVALID not in last.values()
    assert cast["one"] == {**SPEC, "router": {}}
