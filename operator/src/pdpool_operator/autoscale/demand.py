"""What a signal asks for: the total over a role's replicas, twice.

Boundary: pure. A pod without metrics counts as 0 when growth is decided and as exactly on target when shrinkage is, so
that what is not known neither grows nor shrinks a role. Where a router told nothing, what its fellows tell is the least
that there is: it may grow a role, and shrinks none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_api.names import Role
    from pdpool_operator.autoscale.measures import Measure, PodReading, RoleReading


@dataclass(frozen=True, slots=True)
class View:
    """What a signal may look at: one role, and what the routers say of the pool."""

    role: Role
    reading: RoleReading
    gateway: Mapping[Measure, float]
    partial: bool = False
    """Some router told nothing."""
    blind: bool = False
    """What the routers know is not known, or not all of it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The total of a signal's quantity over all replicas of a role."""

    known: float
    """What was read."""
    cautious: float
    """What was read, and what may be hidden in pods that told nothing."""
    words: str
    """Total and target, for a person."""


def over_pods(
    view: View,
    target: float,
    value: Callable[[PodReading], float | None],
    noun: str,
    *,
    extra: float | None = None,
    is_needed: Callable[[PodReading], bool] = lambda _: False,
) -> Demand | None:
    """The sum over the pods that stay; None: nobody told anything.

    Args:
        view: the role.
        target: what one replica should have.
        value: of one pod; None: unknown.
        noun: what is counted.
        extra: what no pod has yet; None: unknown.
        is_needed: of a ready pod that told its part: it may hide more, and counts as on target where shrinkage is
            decided.
    """
    values = [(pod, value(pod)) for pod in view.reading.staying]
    found = [each for _, each in values if each is not None]
    if not found and (extra is None or (view.reading.ready and not extra)):
        return None
    known = math.fsum(found) + (extra or 0.0)
    # Where none is ready, those that came so far hide what they cannot take: an outage is no lack of demand.
    may_hide = [pod for pod, each in values if each is None and (pod.ready or not (found or pod.unschedulable))]
    needed = [each for pod, each in values if each is not None and pod.ready and is_needed(pod)]
    hidden = len(may_hide) * target + math.fsum(max(0.0, target - each) for each in needed)
    return Demand(known, known + hidden, f"{amount(known)} {noun} / {amount(target)} per replica")


def from_latency(view: View, target_ms: float, value_ms: float | None, name: str) -> Demand | None:
    """Latency times the replicas that produced it; None: there was no traffic, or no replica."""
    ready = view.reading.ready
    if value_ms is None or not ready:
        return None
    total = value_ms * ready
    cautious = max(total, target_ms * ready) if view.partial else total
    return Demand(total, cautious, f"{name} {amount(value_ms)} ms with {ready} ready / {amount(target_ms)} ms")


def amount(value: float) -> str:
    """A number for a person: whole, or three digits."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004 - three digits
