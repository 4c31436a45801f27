"""What a role's signals say together: replicas needed, for growth and for shrinkage, and which signal leads.

Boundary: pure; knows nothing of bounds, windows and budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from pdpool_api.scaling_spec import GPU_SIGNALS
from pdpool_operator.autoscale.demand import View
from pdpool_operator.autoscale.measures import Measure, Source, source_of
from pdpool_operator.autoscale.memory import RISING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdpool_api.names import Role
    from pdpool_operator.autoscale.limits import RoleLimits, Target
    from pdpool_operator.autoscale.measures import Observation, RoleReading
    from pdpool_operator.autoscale.memory import RoleMemory

TOLERANCE: Final = 0.1
"""A need this close to the size, as a share of it, changes nothing."""
MOST_AHEAD: Final = 2.0
"""A rising load is trusted to grow so many times, whatever its slope says."""
_EXACT: Final = 1e-9
"""Sums of fractions end a hair above whole numbers."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The signal that asks for most."""

    type: str
    words: str


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas that a role needs."""

    known: bool
    up: float = 0.0
    """By what was read, GPU signals aside."""
    gpu: float = 0.0
    """By GPU signals."""
    down: float = 0.0
    """By what was read and what may be hidden; all signals."""
    leading_up: Leading = Leading("", "")
    leading_down: Leading = Leading("", "")
    unknown: str = ""
    """Unknown signals, and why."""
    unattributed: bool = False
    demands: Mapping[str, float] = field(default_factory=dict)


def need(role: Role, limits: RoleLimits, observation: Observation) -> Need:
    """What the signals of one role ask for."""
    reading = observation.of(role)
    view = View(role, reading, observation.gateway, observation.partial, observation.blind)
    ups: dict[str, float] = {}
    downs: dict[str, float] = {}
    words: dict[str, str] = {}
    unknown: list[str] = []
    quiet: list[str] = []
    for target in limits.targets:
        kind = str(target.signal.TYPE)
        demand = target.signal.demand(view, target.target)
        if demand is None:
            # A latency that nobody produces comes and goes with the traffic: that is no fault to report.
            is_quiet = not target.signal.HOLDS and not _faults(target, reading)
            (quiet if is_quiet else unknown).append(f"{kind} ({_why(target, reading)})")
            if target.signal.HOLDS:
                downs[kind], words[kind] = float(reading.ready), unheard(kind)
            continue
        if Measure.QUEUED in target.signal.NEEDS - observation.gateway.keys() and Measure.QUEUED in reading.faults:
            unknown.append(f"{kind} of the routers ({reading.faults[Measure.QUEUED]})")
        ups[kind], downs[kind] = demand.known / target.target, demand.cautious / target.target
        words[kind] = demand.words
    own = {kind: each for kind, each in ups.items() if kind not in GPU_SIGNALS}
    return Need(
        known=bool(ups),
        up=max(own.values(), default=0.0),
        gpu=max((each for kind, each in ups.items() if kind in GPU_SIGNALS), default=0.0),
        down=max(downs.values(), default=0.0),
        leading_up=_leading(own or ups, words),
        leading_down=_leading(downs, words),
        unknown=", ".join(unknown if ups else [*unknown, *quiet]),
        unattributed=reading.unattributed and any(each.split(" ")[0] in GPU_SIGNALS for each in unknown),
        demands=ups,
    )


def proposal(found: Need, current: int, ahead: float) -> int:
    """The size that demand asks for, before any bound; `ahead` is the need that is expected, at least `found.up`."""
    own = rounded(max(found.up, ahead), current)
    up = max(own, min(rounded(found.gpu, current), max(current, own)))
    if up > current:
        return up
    return min(current, max(up, rounded(found.down, current)))


def rounded(needed: float, current: int) -> int:
    """Replicas for a need: whole ones, and the present size when that is close enough."""
    if current > 0 and abs(needed / current - 1.0) <= TOLERANCE + _EXACT:
        return current
    return math.ceil(needed - _EXACT)


def expected(memory: RoleMemory, limits: RoleLimits) -> float:
    """The need when a replica that is asked for now will be ready; no more than now unless the readings rise.

    A straight line through the last readings, held to `MOST_AHEAD` times the present.
    """
    ahead_s = limits.lookahead_s if limits.lookahead_s >= 0 else (memory.start_s or 0.0)
    readings = memory.needs
    if not ahead_s or len(readings) < RISING or not _rises(readings):
        return readings[-1][1]
    (began, first), (ended, last) = readings[0], readings[-1]
    slope = (last - first) / (ended - began)
    return min(last + slope * ahead_s, MOST_AHEAD * last)


def unheard(kind: str) -> str:
    """What is said of a signal that holds a size because it is unknown."""
    return f"{kind} unknown"


def start_s(reading: RoleReading, memory: RoleMemory) -> float | None:
    """How long a replica takes to start: the median of those that are ready; else what was learned before."""
    known = [pod.start_s for pod in reading.pods if pod.start_s is not None]
    return median(known) if known else memory.start_s


def _rises(readings: Sequence[tuple[float, float]]) -> bool:
    return all(before[1] < after[1] and before[0] < after[0] for before, after in pairwise(readings))


def _leading(ratios: Mapping[str, float], words: Mapping[str, str]) -> Leading:
    if not ratios:
        return Leading("", "")
    kind = max(ratios, key=lambda each: ratios[each])
    return Leading(kind, words[kind])


def _faults(target: Target, reading: RoleReading) -> list[str]:
    found = [reading.faults[each] for each in sorted(target.signal.NEEDS) if each in reading.faults]
    return list(dict.fromkeys(found))


def _why(target: Target, reading: RoleReading) -> str:
    sources = sorted({source_of(each) for each in target.signal.NEEDS})
    if Source.GPU in sources and reading.unattributed:
        return "no series of GPUs names a pod of this role"
    if faults := _faults(target, reading):
        return "; ".join(faults)
    return "no replica is ready" if not reading.ready else f"not told by {' or '.join(sources)}"
