"""What must hold at every version of the store, and of every write of an operator; pure.

Boundary: reads states and entries of the audit log; knows the rules of the contract (sections 2 and 3), not how the
operator keeps them. What chaos itself took away excuses what follows from it, for a while and for that pool alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from e2e.chaos.history import DeploymentState, Event, Json, PodState, PoolState, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from e2e.cluster import AuditEntry

EXCUSED_S: Final = 15.0
"""How long what was taken from a pool excuses a decision: the operator may have decided before it knew."""
IN_FLIGHT_S: Final = 3.0
"""A write that was on its way when its pool was deleted may still arrive."""

WRITER: Final = "one writer: none of an old leader after the first of the new"
CAP: Final = "accelerators ≤ maxGpus"
SURGE: Final = "replicas of a role ≤ desired + maxSurge"
NEEDED: Final = "no pod is taken that desired less maxUnavailable needs"
SERVES: Final = "a pool that served is never taken to nothing"
ORPHAN: Final = "a pool that is gone gets no Deployment"
REFUSED: Final = "a refused edit is said"
CALM_READY: Final = "Ready after calm, pairs of one revision only"
CALM_QUIET: Final = "no write once quiet"
INVARIANTS: Final = (WRITER, CAP, SURGE, NEEDED, SERVES, ORPHAN, REFUSED, CALM_READY, CALM_QUIET)


@dataclass(frozen=True)
class Finding:
    """Something that did not hold."""

    invariant: str
    words: str
    version: int = 0

    def __str__(self) -> str:
        at = f" (at version {self.version})" if self.version else ""
        return f"{self.invariant}: {self.words}{at}"


@dataclass
class Tally:
    """How often what was looked at, and what was found."""

    checked: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def check(self, invariant: str, holds: bool, words: str, version: int = 0) -> None:  # noqa: FBT001 - the verdict
        """Counts a look; notes what does not hold."""
        self.checked[invariant] += 1
        if not holds:
            self.findings.append(Finding(invariant, words, version))


@dataclass(frozen=True)
class Want:
    """What a spec says of one role."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def needed(self) -> int:
        """How many of it serve at any time."""
        return self.replicas - self.unavailable


def wants(spec: Json) -> dict[str, Want]:
    """What a spec asks for, by role."""
    if spec.get("mode", "Disaggregated") == "Aggregated":
        return {"aggregated": _want(spec["decode"])}
    return {role: _want(spec[role]) for role in ("prefill", "decode")}


def _want(role: Json) -> Want:
    pace = role.get("rollout") or {}
    return Want(int(role.get("replicas", 1)), int(pace.get("maxSurge", 0)), int(pace.get("maxUnavailable", 1)))


class Judge:
    """Goes through events in the order of the store, and judges each state between two of them."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._world = World()
        self._specs: defaultdict[str, dict[int, Json]] = defaultdict(dict)
        """By uid of a pool and generation: the specs that are valid."""
        self._ceilings: dict[tuple[str, str], int] = {}
        """By uid of a pool and role: how many there were, where that was more than the specs in force allow."""
        self._gone: dict[str, float] = {}
        self._damaged: dict[str, float] = {}
        """By name of a pool: when something was taken from it that no operator took."""
        self._victims: set[str] = set()
        self._serving: set[str] = set()
        """Uids of pools of which a revision serves."""

    def hit(self, uids: Iterable[str]) -> None:
        """Pods that chaos takes, before it does."""
        self._victims.update(uids)

    def shaken(self, pool: str, at_s: float) -> None:
        """Chaos did something to a pool that is seen in no pod, and may cost it some."""
        self._damaged[pool] = max(at_s, self._damaged.get(pool, at_s))

    def go_on(self, events: Iterable[Event]) -> None:
        """Judges what came next; events must be all of a stretch of versions."""
        for event in sorted(events, key=lambda each: each.version):
            before = self._world.take(event)
            if event.state is None and before is None:
                continue  # of a kind of object that is not kept
            if event.kind == "pools":
                self._pool(event, before)
            elif event.kind == "deployments":
                self._deployment(event, before)
            else:
                self._pod(event, before)

    # --- what is new -----------------------------------------------------------------------------------------------

    def _pool(self, event: Event, before: object) -> None:
        state = event.state
        if not isinstance(state, PoolState):
            self._gone[event.uid] = event.at_s
            return
        if state.refused and state.observed == state.generation:
            words = f"{state.name} is not Stalled at generation {state.generation}"
            self._tally.check(REFUSED, state.stalled, words, event.version)
        if not state.refused:
            self._specs[state.uid].setdefault(state.generation, state.spec)
        if before is None:
            return
        self._sizes(state, event.version)

    def _deployment(self, event: Event, before: object) -> None:
        state = event.state if isinstance(event.state, DeploymentState) else before
        assert isinstance(state, DeploymentState)
        changed = before is None or (isinstance(before, DeploymentState) and before.generation != state.generation)
        if event.state is not None and changed and not state.deleting:
            late_s = event.at_s - self._gone.get(state.owner, event.at_s)
            words = f"{state.name} was written {late_s:.1f} s after its pool had gone"
            self._tally.check(ORPHAN, late_s <= IN_FLIGHT_S, words, event.version)
        if pool := self._world.pools.get(state.owner):
            self._sizes(pool, event.version)

    def _pod(self, event: Event, before: object) -> None:
        state = event.state if isinstance(event.state, PodState) else before
        assert isinstance(state, PodState)
        pool = self._world.pool_named(state.pool)
        if pool is None or state.born < pool.born:
            return
        if isinstance(before, PodState) and before.serves:
            after = event.state if isinstance(event.state, PodState) else None
            if after is None or not after.serves:
                self._loss(pool, before, after, event)
        (self._serving.add if self._serves(pool) else self._serving.discard)(pool.uid)
        self._sizes(pool, event.version)

    # --- what must hold --------------------------------------------------------------------------------------------

    def _in_force(self, pool: PoolState) -> list[Json]:
        """The specs that a decision made now may rest on: the one that the status speaks of, and those after it."""
        valid = self._specs[pool.uid]
        spoken_of = max((each for each in valid if each <= pool.observed), default=0)
        return [spec for generation, spec in valid.items() if generation >= spoken_of]

    def _sizes(self, pool: PoolState, version: int) -> None:
        specs = self._in_force(pool)
        if not specs or pool.deleting:
            return
        gpus = 0
        asked = [wants(each) for each in specs]
        for role in ("prefill", "decode", "aggregated"):
            decided, of_role = self._decided(pool, role)
            gpus += of_role
            bound = max((each[role].replicas + each[role].surge for each in asked if role in each), default=0)
            allowed = max(bound, self._ceilings.get((pool.uid, role), 0))
            self._tally.check(SURGE, decided <= allowed, f"{pool.name} has {decided} {role} for {allowed}", version)
            self._ceilings[pool.uid, role] = max(bound, decided)
        cap = max(int(each.get("maxGpus", gpus)) for each in specs)
        self._tally.check(CAP, gpus <= cap, f"{pool.name} holds {gpus} for {cap}", version)

    def _decided(self, pool: PoolState, role: str) -> tuple[int, int]:
        """Replicas that were asked for or are there because they were, and what they hold."""
        there = Counter(each.revision for each in self._world.pods_of(pool, role))
        asked: Counter[str] = Counter()
        each_holds = 1
        for each in self._world.deployments.values():
            if each.owner == pool.uid and each.role == role and not each.deleting:
                asked[each.revision] += each.replicas
                each_holds = each.gpus
        count = sum(max(there[revision], asked[revision]) for revision in there | asked)
        return count, count * each_holds

    def _loss(self, pool: PoolState, before: PodState, after: PodState | None, event: Event) -> None:
        taken = after is None or after.deleting or after.marked
        if not taken or before.uid in self._victims:
            self._damaged[pool.name] = event.at_s
            return
        asked = [wants(each) for each in self._in_force(pool)]
        is_excused = event.at_s - self._damaged.get(pool.name, float("-inf")) < EXCUSED_S
        if pool.deleting or is_excused or not asked:
            return
        if all(before.role in each for each in asked):
            left = sum(each.serves for each in self._world.pods_of(pool, before.role))
            need = min(each[before.role].needed for each in asked)
            words = f"{pool.name} lost {before.name} and has {left} {before.role} serving, of {need} needed"
            self._tally.check(NEEDED, left >= need, words, event.version)
        if pool.uid in self._serving and all(want.needed > 0 for each in asked for want in each.values()):
            words = f"{pool.name} lost {before.name}, and no revision of it serves"
            self._tally.check(SERVES, self._serves(pool), words, event.version)

    def _serves(self, pool: PoolState) -> bool:
        """Whether some revision can answer: one role that does it all, decode alone, or a pair where it may not."""
        alone = pool.spec.get("router", {}).get("routing", {}).get("onPrefillUnavailable", "Local") == "Local"
        roles: defaultdict[str, set[str]] = defaultdict(set)
        for each in self._world.pods_of(pool):
            if each.serves:
                roles[each.revision].add(each.role)
        return any(
            "aggregated" in found or ("decode" in found and (alone or "prefill" in found)) for found in roles.values()
        )


def writers(entries: Iterable[AuditEntry], users: Mapping[str, str], tally: Tally) -> None:
    """Judges who wrote: `users` names the replica behind each user of an operator.

    Only whoever acts writes the Lease, so the last to do so is the leader. What an old one had on its way when it
    lost the Lease may still arrive, until the new one has written something.
    """
    holder, has_begun = "", False
    for each in entries:
        replica = users.get(each.user)
        if replica is None or not each.is_write or not each.succeeded:
            continue
        if each.resource == "leases":
            if each.user != holder:
                holder, has_begun = each.user, False
            continue
        if each.resource == "events":
            continue
        words = (
            f"{replica} wrote {each.resource} {each.namespace}/{each.name} after {users.get(holder, 'nobody')} began"
        )
        tally.check(WRITER, each.user == holder or not has_begun, words)
        has_begun = has_begun or each.user == holder
