"""What is being gathered for one observation, from whatever source.

Boundary: shapes; a value that is unknown is not taken in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdpool_operator.autoscale import Measure, Observation, RoleReading
from pdpool_operator.observe import workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdpool_api.names import Role
    from pdpool_operator.autoscale import Limits
    from pdpool_operator.records import Observed


@dataclass(slots=True)
class Readings:
    """Values by where they belong, and why there are none."""

    pods: dict[str, dict[Measure, float]] = field(default_factory=dict)
    """By the name of a pod."""
    gateway: dict[Measure, float] = field(default_factory=dict)
    queries: dict[Role, float] = field(default_factory=dict)
    faults: dict[Measure, str] = field(default_factory=dict)
    """The first fault of each measure, without credentials."""
    query_faults: dict[Role, str] = field(default_factory=dict)
    unattributed: set[Role] = field(default_factory=set)
    unheard: set[str] = field(default_factory=set)
    """Routers that serve and told nothing."""

    def tell(self, pod: str, measure: Measure, value: float | None) -> None:
        """Takes in a value of a pod; None, NaN: unknown."""
        if value is not None and not math.isnan(value):
            self.pods.setdefault(pod, {})[measure] = value

    def tell_of_routers(self, measure: Measure, value: float | None) -> None:
        """Takes in what the routers say of the pool; None, NaN: unknown."""
        if value is not None and not math.isnan(value):
            self.gateway[measure] = value

    def fault(self, measures: Iterable[Measure], words: str) -> None:
        """Takes in why these were not told; what was said of them before stands."""
        for measure in measures:
            self.faults.setdefault(measure, words)

    def take_over(self, other: Readings) -> None:
        """Takes in what another reading knows of the same measures, and knows better."""
        for pod, values in other.pods.items():
            self.pods.setdefault(pod, {}).update(values)
        self.gateway.update(other.gateway)
        self.unheard = other.unheard

    def observation(self, observed: Observed, limits: Limits) -> Observation:
        """The pool as the tick wants it."""
        return Observation(
            roles={role: self._of(observed, role) for role in limits.roles},
            gateway=dict(self.gateway),
            partial=bool(self.unheard),
        )

    def _of(self, observed: Observed, role: Role) -> RoleReading:
        pods = workload.pods(observed, role)
        faults = dict(self.faults)
        if role in self.query_faults:
            faults[Measure.QUERY] = self.query_faults[role]
        return RoleReading(
            size=workload.size(observed, role),
            pods=tuple(workload.reading(pod, self.pods.get(pod["metadata"]["name"], {})) for pod in pods),
            query=self.queries.get(role),
            faults=faults,
            unattributed=role in self.unattributed,
        )
