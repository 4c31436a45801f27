"""Whether a pool that may go to zero is idle, and whether one at zero must wake.

Boundary: pure. Idle is what is known to be idle: every router tells, requests in them and in engines are zero, and no
token was served since the last look. Probes and scrapes change none of these, so they keep nothing awake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_operator.autoscale.measures import Measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.names import Role
    from pdpool_operator.autoscale.limits import Limits, RoleLimits
    from pdpool_operator.autoscale.measures import Observation, RoleReading
    from pdpool_operator.autoscale.memory import Memory
    from pdpool_operator.autoscale.need import Need

NOTHING: Final = 0.01
"""A need below this is none: a few blocks of KV that an engine keeps for itself."""


def idle_since(
    observation: Observation, needs: Mapping[Role, Need], memory: Memory, limits: Limits, now: float
) -> float | None:
    """Since when the pool is known to be idle; None: it is not, nobody can tell, or it may not go to zero."""
    if not limits.to_zero or not _idle(observation, needs, memory, limits):
        return None
    return now if memory.idle_since is None else memory.idle_since


def _idle(observation: Observation, needs: Mapping[Role, Need], memory: Memory, limits: Limits) -> bool:
    told = observation.gateway
    if observation.partial or any(told.get(each) != 0 for each in (Measure.QUEUED, Measure.INFLIGHT)):
        return False
    served = told.get(Measure.SERVED_TOKENS)
    if memory.served_tokens is not None and served is not None and served > memory.served_tokens:
        return False
    # A role without a ready replica hides nothing: what the routers hold is known to be nothing.
    return all(
        not observation.of(role).ready
        or (needs[role].known and needs[role].down <= NOTHING and not _may_run(observation.of(role)))
        for role in limits.engines
    )


def _may_run(reading: RoleReading) -> bool:
    return any(pod.values.get(Measure.RUNNING) != 0 for pod in reading.pods if pod.ready)


def sizes(
    settled: Mapping[Role, int],
    current: Mapping[Role, int],
    asked: Mapping[Role, int],
    observation: Observation,
    limits: Limits,
    *,
    idle: float | None,
    now: float,
) -> dict[Role, int]:
    """The engine roles of a pool that may go to zero: there, on the way there, or awake."""
    roles = limits.engines.keys()
    if not any(current[role] for role in roles):
        if observation.gateway.get(Measure.QUEUED, 0.0) <= 0:
            return dict.fromkeys(roles, 0)
        return {role: _first(asked[role], limits.roles[role].up_step) for role in roles}
    window_s = max(limits.roles[role].down_window_s for role in roles)
    is_over = idle is not None and now - idle >= window_s
    if is_over and all(_may_leave(settled[role], limits.roles[role]) for role in roles):
        return dict.fromkeys(roles, 0)
    return {role: settled[role] for role in roles}


def _first(asked: int, step: int) -> int:
    return max(1, min(asked, step) if step else asked)


def _may_leave(size: int, limits: RoleLimits) -> bool:
    """True when the rest may go in one step."""
    return not limits.down_step or size <= limits.down_step
