"""One role on its way through a tick: what was seen of it, and what each stage made of its size (frozen).

Boundary: shapes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdpool_api.names import ENGINE_ROLES

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_operator.autoscale.limits import RoleLimits
    from pdpool_operator.autoscale.measures import RoleReading
    from pdpool_operator.autoscale.memory import RoleMemory
    from pdpool_operator.autoscale.need import Need


@dataclass(frozen=True, slots=True)
class Seen:
    """One role before anything is decided."""

    role: Role
    limits: RoleLimits
    memory: RoleMemory
    reading: RoleReading
    current: int
    """Replicas that are decided already."""
    need: Need

    @property
    def pressure(self) -> float:
        """Replicas needed, not rounded: what the bottleneck is told by. What is unknown keeps what it has."""
        return max(self.need.up, self.need.gpu) if self.need.known else float(self.current)


@dataclass(frozen=True, slots=True)
class Course:
    """One role after every stage."""

    seen: Seen
    memory: RoleMemory
    """With this reading."""
    proposed: int
    bounded: int
    in_ratio: int
    asked: int
    settled: int
    size: int
    max_gpus: int | None

    @property
    def limit(self) -> str:
        """What keeps the size from what demand asks for; empty: nothing."""
        limits = self.seen.limits
        if self.proposed > self.bounded:
            return f"maxReplicas {limits.most}"
        if self.proposed < self.bounded and limits.least > 1:
            return f"minReplicas {limits.least}"
        if self.bounded != self.in_ratio:
            return "spec.autoscaling.ratio"
        short = self.asked < self.in_ratio or self.size < self.settled
        return f"maxGpus {self.max_gpus}" if short and self.seen.role in ENGINE_ROLES else ""
