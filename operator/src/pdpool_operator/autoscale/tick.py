"""The tick: from what was read, what is remembered and what is allowed to the sizes of a pool's roles.

Boundary: pure; readings, memory, limits and time in, sizes and memory out. The line that is followed:

    need (signals) → proposal (tolerance) → bounds → ratio → budget → window → step → what is free now → zero → words

Safe in the dangerous direction: what is not known neither grows nor shrinks; totals are taken over the replicas and
compared with what is decided already, so pods on their way are capacity that was bought, and constant readings never
multiply; a role shrinks to what carries the whole load, that of the leavers included.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pdpool_operator.autoscale import budget, windows, zero
from pdpool_operator.autoscale.course import Course, Seen
from pdpool_operator.autoscale.explain import sizing
from pdpool_operator.autoscale.limits import AT_ZERO_INTERVAL_S
from pdpool_operator.autoscale.measures import Measure
from pdpool_operator.autoscale.memory import Memory, RoleMemory
from pdpool_operator.autoscale.need import expected, need, proposal, start_s
from pdpool_operator.autoscale.ratio import in_ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdpool_api.names import Role
    from pdpool_operator.autoscale.limits import Limits, RoleLimits
    from pdpool_operator.autoscale.measures import Observation
    from pdpool_operator.sizes import Sizing

STUCK_S: Final = 600.0
"""How long replicas that no node could take are not asked for again, while the budget is short."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one tick says."""

    memory: Memory
    roles: Mapping[Role, Sizing] = field(default_factory=dict)
    """The autoscaled roles."""


def tick(observation: Observation, memory: Memory, limits: Limits, now: float) -> Decision:
    """One decision.

    Args:
        observation: what was read.
        memory: what the tick before left; `Memory()` at the beginning.
        limits: what the spec allows.
        now: seconds; only differences count, and `Sizing.scaled_at`.
    """
    if memory.at is not None and now < memory.at:
        memory = _without_times(memory)
    seen = {role: _seen(role, each, observation, memory) for role, each in limits.roles.items()}
    idle = zero.idle_since(observation, {role: each.need for role, each in seen.items()}, memory, limits, now)
    held = {role for role, each in limits.roles.items() if each.paused or not each.scaled}
    tried = {role for role, each in limits.roles.items() if each.dry_run} - held
    courses = _courses(seen, held | tried, observation, limits, idle=idle, now=now)
    if tried:
        would = _courses(seen, held, observation, limits, idle=idle, now=now)
        courses |= {role: would[role] for role in tried}
    told = {role: sizing(course, observation, now) for role, course in courses.items()}
    after = Memory(
        at=now,
        roles={role: _after(courses[role], each) for role, each in told.items()},
        idle_since=idle,
        served_tokens=observation.gateway.get(Measure.SERVED_TOKENS, memory.served_tokens),
    )
    return Decision(after, {role: each for role, each in told.items() if limits.roles[role].scaled})


def interval_s(memory: Memory, limits: Limits) -> float:
    """Seconds until the next tick."""
    return min(AT_ZERO_INTERVAL_S, limits.interval_s) if limits.to_zero and memory.at_zero else limits.interval_s


def _seen(role: Role, limits: RoleLimits, observation: Observation, memory: Memory) -> Seen:
    reading = observation.of(role)
    before = memory.roles.get(role)
    if not limits.scaled:
        current = limits.least
    elif before is None or limits.dry_run:
        # The live workload is the truth where nothing is remembered, and where nothing may be changed.
        remembered = limits.least if before is None else before.size
        current = remembered if reading.size is None else reading.size
    else:
        current = before.size
    kept = before or RoleMemory(size=current)
    found = need(role, limits, observation)
    if not current and not found.known and Measure.QUEUED in observation.gateway:
        found = replace(found, known=True, unknown="")  # at zero the routers tell all that there is to know
    return Seen(
        role=role,
        limits=limits,
        memory=replace(kept, start_s=start_s(reading, kept)),
        reading=reading,
        current=current,
        need=found,
    )


def _courses(
    seen: Mapping[Role, Seen],
    held: set[Role],
    observation: Observation,
    limits: Limits,
    *,
    idle: float | None,
    now: float,
) -> dict[Role, Course]:
    """Every role from what it needs to the size that it gets; held ones keep theirs, and take part in the budget."""
    proposed = {role: each.current if role in held else _proposed(each, now) for role, each in seen.items()}
    bounded = {role: size if role in held else _within(size, seen[role].limits) for role, size in proposed.items()}
    in_bounds = in_ratio(bounded, limits, held)
    pressures = {role: each.pressure for role, each in seen.items()}
    short = not budget.fits(in_bounds, limits)
    stuck = _stuck(seen.values(), now) if short else {}
    stuck = {role: most for role, most in stuck.items() if role not in held}
    asked = budget.shared(_lower(in_bounds, stuck, limits), pressures, limits, held)
    noted = {role: _noted(each, asked[role], stuck.get(role), limits, now) for role, each in seen.items()}
    settled = {
        role: windows.settled(asked[role], each.current, noted[role], each.limits, now)
        for role, each in seen.items()
        if role not in held
    }
    # At once, whatever the windows say: bounds, what no node takes, the cap.
    settled = {role: _within(settled[role], seen[role].limits) if role in settled else proposed[role] for role in seen}
    current = {role: each.current for role, each in seen.items()}
    kept = {role: min(size, current[role]) for role, size in _lower(settled, stuck, limits).items()}
    kept = budget.shared(kept, pressures, limits, held)
    settled = {role: kept[role] if kept[role] < current[role] else settled[role] for role in seen}
    if limits.to_zero and not held & limits.engines.keys():
        settled |= zero.sizes(settled, current, asked, observation, limits, idle=idle, now=now)
    sizes = budget.affordable(settled, current, pressures, limits, observation)
    return {
        role: Course(
            seen=each,
            memory=noted[role],
            proposed=proposed[role],
            bounded=bounded[role],
            in_ratio=in_bounds[role],
            asked=asked[role],
            settled=settled[role],
            size=sizes[role],
            max_gpus=limits.max_gpus,
        )
        for role, each in seen.items()
    }


def _proposed(seen: Seen, now: float) -> int:
    """What demand asks for; an unknown demand asks for what is there."""
    if not seen.need.known:
        return seen.current
    ahead = expected(windows.with_need(seen.memory, seen.need.up, now), seen.limits)
    return proposal(seen.need, seen.current, ahead)


def _within(size: int, limits: RoleLimits) -> int:
    # A pool goes to zero as a whole, when it is idle: a role by itself keeps one replica.
    return min(max(size, limits.least, 1), limits.most)


def _stuck(seen: Iterable[Seen], now: float) -> dict[Role, int]:
    """The most replicas that nodes take, of roles where that is known: those without the unschedulable ones."""
    found = {}
    for each in seen:
        staying, remembered = each.reading.staying, each.memory.stuck
        if any(pod.unschedulable for pod in staying):
            found[each.role] = sum(1 for pod in staying if not pod.unschedulable)
        elif remembered is not None and now < remembered[0]:
            found[each.role] = remembered[1]
    return found


def _lower(sizes: Mapping[Role, int], most: Mapping[Role, int], limits: Limits) -> dict[Role, int]:
    return {
        role: min(size, max(1, limits.roles[role].least, most[role])) if role in most else size
        for role, size in sizes.items()
    }


def _noted(seen: Seen, asked: int, stuck: int | None, limits: Limits, now: float) -> RoleMemory:
    memory = windows.noted(
        seen.memory,
        seen.limits,
        now,
        limits.interval_s,
        asked=asked if seen.need.known else None,
        need=seen.need.up,
    )
    if stuck is not None and any(pod.unschedulable for pod in seen.reading.staying):
        return replace(memory, stuck=(now + STUCK_S, stuck))
    return memory


def _after(course: Course, said: Sizing) -> RoleMemory:
    return replace(
        course.memory,
        size=said.size,
        wanted=course.size,
        reason=said.reason,
        message=said.message,
        limit=course.limit,
        scaled_at=said.scaled_at,
    )


def _without_times(memory: Memory) -> Memory:
    """After a clock that went back: sizes and words stay, windows begin anew."""
    roles = {role: replace(each, asked=(), since=None, needs=(), stuck=None) for role, each in memory.roles.items()}
    return Memory(at=None, roles=roles, served_tokens=memory.served_tokens)
