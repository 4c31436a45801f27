"""How many accelerators a pool's spec asks for.

Boundary: pure. Builders, checks and the decision of mode Auto count here, so that a pod's limits and the arithmetic
about them cannot differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import hardware
from pdpool_api.engines import engine

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec


def resource(spec: InferencePoolSpec, role: Role) -> str | None:
    """The extended resource of the role's accelerators; None: its hardware has none."""
    return hardware.profile(spec.role(role).hardware).resource


def of_replica(spec: InferencePoolSpec, role: Role) -> int:
    """Accelerators of one replica: what its resources say, else tensor x pipeline x data.

    Raises:
        ArgumentError: an argument gives a size that its field would not take.
    """
    name = resource(spec, role)
    if name is None:
        return 0
    given = spec.role(role).resources or {}
    for part in ("limits", "requests"):
        amount = str((given.get(part) or {}).get(name, ""))
        if amount.isdecimal():
            return int(amount)
    return engine(spec).parallelism(spec, role).accelerators


def of_pool(spec: InferencePoolSpec) -> int:
    """Accelerators of all desired replicas.

    Raises:
        ArgumentError: see `of_replica`.
    """
    return sum(spec.role(role).desired_replicas * of_replica(spec, role) for role in spec.roles)


def surges(spec: InferencePoolSpec) -> dict[Role, int]:
    """Replicas that each role may have beyond the desired ones: `rollout.maxSurge`, within `maxGpus`.

    Where both roles compete for what the cap leaves, the first of `spec.roles` is served first.

    Raises:
        ArgumentError: see `of_replica`.
    """
    found: dict[Role, int] = {}
    left = None if spec.max_gpus is None else spec.max_gpus - of_pool(spec)
    for role in spec.roles:
        wanted, each = spec.role(role).rollout.max_surge, of_replica(spec, role)
        found[role] = wanted if left is None or not each else min(wanted, max(left, 0) // each)
        left = None if left is None else left - found[role] * each
    return found
