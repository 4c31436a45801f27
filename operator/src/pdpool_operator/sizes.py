"""What an autoscaling tick says of each role, for those who build, write and report it (frozen).

Boundary: shapes only; the tick is in `autoscale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pdpool_api.conditions import Reason
from pdpool_api.names import Role


@dataclass(frozen=True, slots=True)
class Sizing:
    """One autoscaled role: its size, and why."""

    size: int
    """Replicas that should run."""
    before: int
    """Replicas that should have run until now."""
    reason: str = ""
    """A type of signal, or a `SizeReason`."""
    message: str = ""
    """The same for a person; it changes with a decision or a reason, not with every reading."""
    scaled_at: float | None = None
    """When demand last changed the size, in seconds since the epoch; None: not in this life of the operator."""
    unknown: str = ""
    """Why no signal is known, naming the source without credentials; empty: one is."""
    missing: str = ""
    """Signals that are unknown beside known ones, and why; empty: none."""
    unattributed: bool = False
    """Series of GPUs exist, and none of them names a pod of the pool."""
    demands: Mapping[str, float] = field(default_factory=dict)
    """Replicas that each known signal asks for: total / target, not rounded."""
    read: bool = True
    """False: nothing was read yet; what was said of the role stands."""


Sizes: TypeAlias = Mapping[Role, Sizing]
"""Of the autoscaled roles only."""


def active(sizes: Sizes) -> tuple[bool, Reason, str] | None:
    """Condition ScalingActive: whether it is True, its reason, its message; None: nothing new can be said of it."""
    if not sizes or not all(each.read for each in sizes.values()):
        return None
    unknown = {role: each for role, each in sizes.items() if each.unknown}
    words = {role: each.unknown or each.missing for role, each in sizes.items() if each.unknown or each.missing}
    message = "; ".join(f"{role}: {said}" for role, said in words.items())
    is_gpu = all(each.unattributed for each in unknown.values()) and any(each.unattributed for each in sizes.values())
    otherwise = Reason.SIGNALS_UNKNOWN if unknown else Reason.SCALING
    return not unknown, Reason.GPU_METRICS_UNATTRIBUTED if is_gpu else otherwise, message
