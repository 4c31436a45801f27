"""How accelerators are shared between the roles of a pool when there are fewer than the roles ask for.

Boundary: pure. Each replica goes to the role that is the bottleneck: the one whose need is largest against what it has
got. What is taken from one role reaches the other only when its pods are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pdpool_api.names import Role
    from pdpool_operator.autoscale.limits import Limits
    from pdpool_operator.autoscale.measures import Observation


def fits(sizes: Mapping[Role, int], limits: Limits) -> bool:
    """True when the engines of these sizes stay within the cap."""
    if limits.max_gpus is None:
        return True
    return sum(each.gpus * sizes[role] for role, each in limits.engines.items()) <= limits.max_gpus


def shared(
    asked: Mapping[Role, int], needs: Mapping[Role, float], limits: Limits, held: Collection[Role]
) -> dict[Role, int]:
    """Sizes within the cap, as close to what is asked for as it allows.

    Args:
        asked: sizes that demand asks for.
        needs: replicas that each role needs, not rounded: what the bottleneck is told by.
        limits: bounds and cap.
        held: roles whose size is given.
    """
    if fits(asked, limits):
        return dict(asked)
    floors = {
        role: asked[role] if role in held else min(asked[role], max(1, each.least))
        for role, each in limits.engines.items()
    }
    return {**asked, **_filled(floors, asked, needs, limits, _left(floors, limits))}


def affordable(
    sizes: Mapping[Role, int],
    current: Mapping[Role, int],
    needs: Mapping[Role, float],
    limits: Limits,
    observation: Observation,
) -> dict[Role, int]:
    """Sizes whose growth fits beside everything that is still there, leaving pods included."""
    if limits.max_gpus is None:
        return dict(sizes)
    engines = limits.engines
    starts = {role: min(sizes[role], current[role]) for role in engines}
    held = sum(each.gpus * _held(role, starts[role], observation) for role, each in engines.items())
    return {**sizes, **_filled(starts, sizes, needs, limits, limits.max_gpus - held)}


def _held(role: Role, size: int, observation: Observation) -> int:
    """Replicas of a role that hold accelerators, or will: leaving pods, and what is there or decided."""
    pods = observation.of(role).pods
    leaving = sum(1 for pod in pods if pod.leaving)
    placed = sum(1 for pod in pods if not pod.leaving and not pod.unschedulable)
    return max(size, placed) + leaving


def _left(sizes: Mapping[Role, int], limits: Limits) -> int:
    assert limits.max_gpus is not None
    return limits.max_gpus - sum(each.gpus * sizes[role] for role, each in limits.engines.items())


def _filled(
    starts: Mapping[Role, int], most: Mapping[Role, int], needs: Mapping[Role, float], limits: Limits, left: int
) -> dict[Role, int]:
    """`starts` and one replica after the other for the role that lacks most, while accelerators are left."""
    sizes = dict(starts)
    while True:
        able = [role for role, each in limits.engines.items() if sizes[role] < most[role] and each.gpus <= left]
        if not able:
            return sizes
        poorest = max(able, key=lambda role: needs[role] / sizes[role] if sizes[role] else float("inf"))
        sizes[poorest] += 1
        left -= limits.roles[poorest].gpus
