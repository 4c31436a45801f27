"""The planner against a simulated cluster: what holds whatever happens, and how single stories end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.records import Desired, Pace
from pdpool_operator.rollout import next_step
from pdpool_operator.rollout.capacity import PLACES, Capacity, Pairing, bearable, capacity, needed
from pdpool_operator.rollout.members import COST_SPENT
from tests.operator.simulated import SimulatedCluster, desired, stamp

if TYPE_CHECKING:
    from collections.abc import Callable

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED


@dataclass
class Story:
    """A cluster, what is wanted of it, and the checks of every move that somebody chose to make."""

    cluster: SimulatedCluster
    want: Desired
    acted: Desired | None = None
    """What the operator last acted on."""
    strict: list[Pairing] = field(default_factory=lambda: [Pairing.SINGLE])

    def look(self) -> None:
        """One look of the operator, checked."""
        plan = next_step(self.cluster.observed(), self.want, self.cluster.now_s)
        assert len({each.name for each in plan.notes}) == len(plan.notes)
        room = {where: self._room(where) for where in PLACES}
        gpus = self.cluster.decided_gpus()
        self.acted = self.want
        self.checked(lambda: self.cluster.execute(plan))
        for where, (before, most) in room.items():
            assert self.cluster.decided(_roles(where)) <= max(before, most), where
        if self.want.max_gpus is not None:
            assert self.cluster.decided_gpus() <= max(gpus, self.want.max_gpus)

    def _room(self, where: Role) -> tuple[int, int]:
        most = sum(
            self.want.replicas[role] + self.want.paces[role].max_surge
            for role in _roles(where)
            if role in self.want.paces
        )
        return self.cluster.decided(_roles(where)), most

    def checked(self, move: Callable[[], Any]) -> None:
        """A move of the operator or of Kubernetes takes nothing that is needed."""
        before, held = self.cluster.serving(), self.cluster.decided_gpus()
        move()
        assert self.acted is not None
        need = needed(self.acted)
        if self._is_over_cap(max(held, self.cluster.decided_gpus())):
            return
        # Where a role changes within its revision, that role alone is looked at.
        is_plain = all(need.values()) and not any(len(each.sets) > 1 for each in self.cluster.deployments.values())
        for pairing in (*self.strict, *([Pairing.ROUTED] if is_plain else [])):
            had, has = self._capacity(before, pairing), self._capacity(self.cluster.serving(), pairing)
            assert bearable(had, has, need), (pairing, had, has, need)

    def _is_over_cap(self, held: int) -> bool:
        """A cap that leaves room for no replica of the desired revision comes before everything else."""
        assert self.acted is not None
        largest = max(pace.accelerators for pace in self.acted.paces.values())
        return self.acted.max_gpus is not None and held + largest > self.acted.max_gpus

    def _capacity(self, serving: list[tuple[str, Role, int]], pairing: Pairing) -> Capacity:
        assert self.acted is not None
        return capacity(filter(self._is_of_use, serving), pairing, alone=self.acted.serves_alone)

    def _is_of_use(self, serving: tuple[str, Role, int]) -> bool:
        """False for older replicas whose partners are all gone."""
        revision, role, _ = serving
        assert self.acted is not None
        partner = {P: D, D: P}.get(role)
        if revision == self.acted.revision or partner is None or (role is D and self.acted.serves_alone):
            return True
        every = self.cluster.deployments.values()
        return any(each.live or each.replicas for each in every if (each.revision, each.role) == (revision, partner))

    def control(self, number: int) -> None:
        every = list(self.cluster.deployments.values())
        if every:
            self.checked(lambda: self.cluster.control(every[number % len(every)]))

    def settle(self) -> None:
        """Everybody moves, checked, until nothing is left to do."""
        self.cluster.calm(self.look)

    def ready(self, role: Role, revision: str | None = None) -> int:
        return sum(n for rev, each, n in self.cluster.serving() if each is role and revision in (None, rev))


def _roles(where: Role) -> tuple[Role, ...]:
    return (P,) if where is P else (D, A)


def story(revision: str = "a", *, gpus: int | None = None, **given: Any) -> Story:
    """A pool at rest."""
    found = Story(SimulatedCluster(gpus), desired(revision, **given))
    found.settle()
    return found


PAIR = {P: 2, D: 3}
PACES = {P: Pace(accelerators=1), D: Pace(accelerators=1)}


def test_a_new_pool_gets_its_sizes() -> None:
    """Both roles are asked for at once, and nothing else."""
    found = story(sizes=PAIR, paces=PACES)
    assert (found.ready(P), found.ready(D)) == (2, 3)
    assert len(found.cluster.deployments) == 2


def test_a_new_revision_takes_over_without_a_spare_accelerator() -> None:
    """Five accelerators, five replicas: the old ones make room one by one, and nobody waits for ever (Q95)."""
    found = story(sizes=PAIR, paces=PACES, gpus=5)
    found.strict = [Pairing.SINGLE, Pairing.WHOLE]
    found.want = desired("b", PAIR, PACES)
    found.settle()
    assert {each.revision for each in found.cluster.deployments.values()} == {"b"}
    assert (found.ready(P), found.ready(D)) == (2, 3)


def test_one_replica_without_a_surge_is_replaced() -> None:
    """One accelerator and one replica: an outage is the price, a deadlock is not (Q95)."""
    one, pace = {A: 1}, {A: Pace(accelerators=1)}
    found = story(sizes=one, paces=pace, gpus=1)
    found.want = desired("b", one, pace)
    found.settle()
    assert found.ready(A, "b") == 1


def test_edits_in_a_row_never_take_what_serves() -> None:
    """Good A, bad B, bad C, and back to A: two of three serve all along, and nothing is left over (Q09)."""
    found = story(sizes={P: 1, D: 3}, paces=PACES)
    found.cluster.bad = {("b", "t"), ("c", "t")}
    for revision in ("b", "c", "a"):
        found.want = desired(revision, {P: 1, D: 3}, PACES)
        found.settle()
        assert found.ready(D, "a") >= 2
        assert found.ready(P, "a") == 1
    assert found.ready(D, "a") == 3
    assert {each.revision for each in found.cluster.deployments.values()} == {"a"}
    assert not [pod for each in found.cluster.deployments.values() for pod in each.live if pod.aside]


def test_a_bad_revision_leaves_the_rest_of_the_old_one() -> None:
    """What maxUnavailable left keeps serving in pairs for as long as nobody corrects the new one."""
    found = story(sizes=PAIR, paces=PACES)
    found.cluster.bad = {("b", "t")}
    found.want = desired("b", PAIR, PACES)
    found.settle()
    assert (found.ready(P, "a"), found.ready(D, "a")) == (1, 2)
    assert found.cluster.decided((D,)) == 3


@pytest.mark.parametrize(
    ("pace", "sizes"),
    [
        (Pace(0, 1, 1), {P: 1, D: 3}),
        (Pace(1, 0, 1), {P: 1, D: 3}),
        (Pace(0, 1, 1), {P: 2, D: 2}),
        (Pace(1, 1, 1), {P: 2, D: 4}),
    ],
)
def test_a_revision_follows_a_bad_change_of_one_role(pace: Pace, sizes: dict[Role, int]) -> None:
    """A change within the revision whose pods never come up holds what may be missing: it is taken back for the next.

    No size takes just the pods that fail, as Kubernetes chooses among both templates.
    """
    paces = {P: pace, D: pace}
    found = story(sizes=sizes, paces=paces)
    found.cluster.bad = {("a", "u")}
    found.want = desired("a", sizes, paces, template={P: "t", D: "u"})
    found.settle()
    assert found.ready(D) == needed(found.want)[D]
    found.want = desired("b", sizes, paces)
    found.settle()
    assert {each.revision for each in found.cluster.deployments.values()} == {"b"}
    assert (found.ready(P), found.ready(D)) == (sizes[P], sizes[D])


def test_a_cap_takes_a_replica_of_a_stopped_change() -> None:
    """A cap below what an older Deployment holds that was stopped amid its own change: it yields, nothing waits."""
    paces = {P: Pace(1, 1, 1), D: Pace(1, 0, 2)}
    found = story("b", sizes={P: 1, D: 1}, paces=paces)
    found.cluster.bad = {("b", "u")}
    found.want = desired("b", {P: 1, D: 1}, paces, template="u")
    found.settle()
    found.cluster.bad = set()
    paces = {P: Pace(1, 1, 1), D: Pace(2, 1, 1)}
    found.want = desired("a", {P: 1, D: 3}, paces, max_gpus=4)
    found.settle()
    assert (found.ready(P, "a"), found.ready(D, "a")) == (1, 3)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_change_that_is_taken_back_amid_its_surge_goes_on(*, is_marked: bool) -> None:
    """Stopped for another revision with one replica too many, and wanted again: it finishes the change, then shrinks.

    Which pod a smaller size would take of two templates nobody can say, and no replica may be missing.
    """
    sizes, paces = {A: 3}, {A: Pace(max_surge=1, max_unavailable=0, accelerators=1)}
    found = story(sizes=sizes, paces=paces, max_gpus=4)
    (each,) = found.cluster.deployments.values()
    found.want = desired("a", sizes, paces, template="u", max_gpus=4)
    while len(each.of("u")) < 2:
        found.look()
        found.cluster.control(each)
        found.cluster.end(each)
        found.cluster.schedule()
        for pod in each.live:
            found.cluster.start(each, pod)
    found.want = desired("b", sizes, paces, max_gpus=4)
    found.look()
    found.cluster.control(each)
    assert (each.paused, each.replicas, each.sets) == (True, 4, {"t": 2, "u": 2})
    if is_marked:
        marks = {names.ANNOTATION_DRAINING: stamp(found.cluster.now_s), names.ANNOTATION_DELETION_COST: COST_SPENT}
        each.of("t")[0].annotations = dict(marks)
    found.want = desired("a", sizes, paces, max_gpus=4)
    found.settle()
    assert found.cluster.serving() == [("a", A, 3)]
    assert {pod.template for pod in each.live} == {"t"}


def test_what_was_stopped_is_never_asked_for_more() -> None:
    """A smaller size of an older Deployment that Kubernetes has not seen yet stands, though its pods are there."""
    paces = {A: Pace(max_surge=1, max_unavailable=0)}
    found = story(sizes={A: 2}, paces=paces)
    (each,) = found.cluster.deployments.values()
    found.want = desired("a", {A: 2}, paces, template="u")
    found.look()
    found.cluster.control(each)
    found.cluster.control(each)
    found.want = desired("b", {A: 2}, paces)
    found.look()
    found.cluster.control(each)
    assert (each.paused, len(each.sets)) == (True, 2)
    each.replicas, each.generation = 1, each.generation + 1
    found.look()
    assert each.replicas == 1


def test_a_surge_comes_before_anything_goes() -> None:
    """With maxUnavailable 0 the new revision is up before the old one loses a replica."""
    paces = {P: Pace(1, 0, 1), D: Pace(1, 0, 1)}
    found = story(sizes=PAIR, paces=paces)
    found.strict = [Pairing.SINGLE, Pairing.WHOLE]
    found.want = desired("b", PAIR, paces)
    found.settle()
    assert (found.ready(P, "b"), found.ready(D, "b")) == (2, 3)


@pytest.mark.parametrize(("surge", "cap", "gpus"), [(0, 4, None), (1, None, 5)], ids=["cap", "room"])
def test_pods_that_nobody_can_end_hold_up_no_rollout(surge: int, cap: int | None, gpus: int | None) -> None:
    """Kubernetes replaced a pod of a lost node, which stays: it is not waited for, nor do its accelerators count.

    Four accelerators are left for four replicas: by the cap, or on the nodes (the fifth is the lost pod's).
    """
    sizes, paces = {P: 2, D: 2}, dict.fromkeys((P, D), Pace(max_surge=surge, accelerators=1))
    found = story(sizes=sizes, paces=paces, max_gpus=cap, gpus=gpus)
    lost = next(each.pods[0] for each in found.cluster.deployments.values() if each.role is P)
    lost.ready, lost.ending, lost.lost_s = False, True, found.cluster.now_s
    found.settle()
    assert (found.ready(P), found.ready(D)) == (2, 2)
    found.want = desired("b", sizes, paces, max_gpus=cap)
    found.settle()
    found.cluster.now_s += 60
    found.settle()
    assert (found.ready(P, "b"), found.ready(D, "b")) == (2, 2)


@pytest.mark.parametrize("alone", [True, False])
def test_the_only_prefill_is_replaced_last(*, alone: bool) -> None:
    """One prefill and many decodes: the only partner goes when nothing else can move, and then the rest follows."""
    sizes = {P: 1, D: 4}
    found = story(sizes=sizes, paces=PACES, alone=alone)
    found.want = desired("b", sizes, PACES, alone=alone)
    seen = []

    def look() -> None:
        found.look()
        seen.append((found.ready(P, "a"), found.ready(D, "b")))

    found.cluster.calm(look)
    assert (found.ready(P, "b"), found.ready(D, "b")) == (1, 4)
    assert next(decode for prefill, decode in seen if prefill == 0) == 1


def test_a_smaller_size_takes_the_least_loaded() -> None:
    """The pod that leaves is marked, waits for its requests, and is exactly the one that goes."""
    found = story(sizes={A: 3}, paces={A: Pace()})
    (each,) = found.cluster.deployments.values()
    for number, pod in enumerate(each.pods):
        pod.requests = 5 - number
    victim = each.pods[2]
    found.want = desired("a", {A: 2}, {A: Pace()})
    found.look()
    assert [pod.name for pod in each.live if pod.aside] == [victim.name]
    assert victim.annotations[names.ANNOTATION_DRAINING] == stamp(found.cluster.now_s)
    for _ in range(5):
        found.cluster.now_s += 10
        found.look()
        found.control(0)
        assert each.replicas == 3
    victim.requests = 0
    for _ in range(2):
        found.look()
        found.control(0)
    assert each.replicas == 2
    assert victim.ending
    found.settle()
    assert found.ready(A) == 2


def test_a_pod_leaves_at_the_latest_when_its_time_is_over() -> None:
    """Requests that never end hold nothing up for longer than drainSeconds."""
    found = story(sizes={A: 2}, paces={A: Pace(drain_s=60)})
    (each,) = found.cluster.deployments.values()
    for pod in each.pods:
        pod.requests = 1
    found.want = desired("a", {A: 1}, {A: Pace(drain_s=60)})
    found.look()
    found.cluster.now_s += 61
    found.look()
    found.look()
    assert each.replicas == 1


def test_pods_that_are_not_ready_never_hold_up_a_smaller_size() -> None:
    """They go first and at once, and what serves is not even marked."""
    found = story(sizes={A: 3}, paces={A: Pace()})
    (each,) = found.cluster.deployments.values()
    each.pods[0].ready = each.pods[0].started = False
    found.control(0)
    found.want = desired("a", {A: 2}, {A: Pace()})
    found.look()
    assert each.replicas == 2
    assert not any(pod.aside for pod in each.pods)


def test_a_size_that_comes_back_keeps_the_marked_pod() -> None:
    """A pod whose leaving is called off gets requests again."""
    found = story(sizes={A: 3}, paces={A: Pace()})
    (each,) = found.cluster.deployments.values()
    for pod in each.pods:
        pod.requests = 1
    found.want = desired("a", {A: 1}, {A: Pace()})
    found.look()
    assert sum(pod.aside for pod in each.pods) == 2
    found.want = desired("a", {A: 3}, {A: Pace()})
    found.look()
    assert not any(pod.annotations for pod in each.pods)
    assert each.replicas == 3


def test_a_mark_by_hand_is_left_alone() -> None:
    """Whoever takes a pod out of the rotation himself keeps it there."""
    found = story(sizes={A: 2}, paces={A: Pace()})
    (each,) = found.cluster.deployments.values()
    each.pods[0].annotations = {names.ANNOTATION_DRAINING: stamp(found.cluster.now_s)}
    before = dict(each.pods[0].annotations)
    found.settle()
    assert each.pods[0].annotations == before
    assert each.replicas == 2


def test_a_deployment_that_was_taken_away_is_asked_for_as_before() -> None:
    """Its pods may still be there: what is applied must be what was, to be known again."""
    found = story(sizes=PAIR, paces=PACES)
    seen = found.cluster.observed()
    plan = next_step(replace(seen, children={}), found.want, found.cluster.now_s)
    assert [child.body["spec"]["replicas"] for child in plan.apply] == [2, 3]
    assert plan.apply == next_step(seen, found.want, found.cluster.now_s).apply


def test_a_change_of_the_mode_moves_from_the_old_roles_to_the_new_one() -> None:
    """Aggregated replicas fill the place of decode; the pairs serve until they are there."""
    found = story(sizes=PAIR, paces=PACES, gpus=5)
    found.want = desired("b", {A: 5}, {A: Pace(accelerators=1)})
    found.settle()
    assert found.ready(A) == 5
    assert len(found.cluster.deployments) == 1
    found.want = desired("c", PAIR, PACES)
    found.settle()
    assert (found.ready(P), found.ready(D), found.ready(A)) == (2, 3, 0)


def test_a_change_within_the_revision_keeps_the_deployment() -> None:
    """Another template rolls inside the Deployment of its role, within what may be missing."""
    found = story(sizes=PAIR, paces=PACES)
    before = set(found.cluster.deployments)
    found.want = desired("a", PAIR, PACES, template="t2")
    found.settle()
    assert set(found.cluster.deployments) == before
    assert all(pod.template == "t2" for each in found.cluster.deployments.values() for pod in each.live)


# --- whatever happens ----------------------------------------------------------------------------------------------

paces = st.builds(
    Pace,
    max_surge=st.integers(0, 2),
    max_unavailable=st.integers(0, 2),
    drain_s=st.sampled_from([0, 30]),
).filter(lambda pace: pace.max_surge or pace.max_unavailable)


GPUS = {"a": 1, "b": 2, "c": 0, "x": 1, "y": 2, "z": 0}
"""Accelerators of one replica, by revision."""


@st.composite
def wanted(draw: st.DrawFn) -> Desired:
    roles = draw(st.sampled_from([(P, D), (P, D), (A,)]))
    sizes = {role: draw(st.integers(0, 4)) for role in roles}
    revision = draw(st.sampled_from("abc" if P in roles else "xyz"))
    of_roles = {role: replace(draw(paces), accelerators=GPUS[revision]) for role in roles}
    # A cap that leaves no surge to a role of which no replica may be missing is refused before anything is planned.
    is_capped = all(pace.max_unavailable for pace in of_roles.values()) and draw(st.booleans())
    total = sum(sizes[role] * pace.accelerators for role, pace in of_roles.items())
    return desired(
        revision,
        sizes,
        of_roles,
        template={role: draw(st.sampled_from(["t", "u"])) for role in roles},
        alone=draw(st.booleans()),
        max_gpus=total + draw(st.integers(0, 3)) if is_capped else None,
    )


MOVES = ("look", "look", "look", "control", "control", "control", "start", "start", "end", "wait", "edit", "fail")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_nothing_that_is_needed_is_ever_taken(data: st.DataObject) -> None:
    """Over random edits, failures and orders of events: capacity, sizes, one end, and rest.

    No move of the operator or of a controller takes a replica that is needed; no size grows beyond what is desired and
    its surge; and once the edits end and what is wanted is good, it alone is there at its sizes, whatever else is not.
    """
    found = Story(SimulatedCluster(), data.draw(wanted()))
    found.cluster.bad = data.draw(st.sets(st.sampled_from([(r, t) for r in "abcxyz" for t in "tu"]), max_size=3))
    found.look()
    for _ in range(data.draw(st.integers(5, 60))):
        _move(found, data)
    found.cluster.bad -= {(child.revision, child.body["spec"]["template"]) for child in found.want.children}
    found.settle()
    assert {each.revision for each in found.cluster.deployments.values() if each.replicas} <= {found.want.revision}
    assert {role: found.ready(role) for role in found.want.replicas} == found.want.replicas
    assert len(found.cluster.deployments) == len(found.want.replicas)


def _move(found: Story, data: st.DataObject) -> None:
    move = data.draw(st.sampled_from(MOVES))
    number = data.draw(st.integers(0, 30))
    pods = [(each, pod) for each in found.cluster.deployments.values() for pod in each.live]
    each, pod = pods[number % len(pods)] if pods else (None, None)
    note(f"{move} {number}")
    if move == "look":
        found.look()
    elif move == "control":
        found.control(number)
    elif move == "wait":
        found.cluster.now_s += 10
    elif move == "edit":
        for one in list(found.cluster.deployments.values()):
            found.checked(lambda one=one: found.cluster.control(one))  # type: ignore[misc]
        found.want = data.draw(wanted())
    elif move == "end":
        for one in found.cluster.deployments.values():
            found.cluster.end(one)
    elif each is not None and pod is not None:
        if move == "start":
            # Starts take minutes and controllers moments: what was decided has happened by then.
            found.checked(lambda: found.cluster.control(each))
            found.cluster.schedule()
            found.cluster.start(each, pod)
            pod.requests = number % 3
        else:
            _fail(each, pod, number)


def _fail(each: Any, pod: Any, number: int) -> None:
    # Which of two ReplicaSets a size then takes a pod from cannot be told from pods: see docs/rollout.md.
    is_mixed = len(each.sets) > 1
    if number % 3 == 0 and not is_mixed:
        pod.ending = True
    else:
        pod.ready, pod.started = False, number % 3 == 1
