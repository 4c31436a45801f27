"""What a spec allows the tick: bounds, windows, steps, the cap of accelerators; defaults applied.

Boundary: pure; from a spec in its decided mode to numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pdpool_api import accelerators
from pdpool_api.names import Role
from pdpool_api.scaling_spec import SLO_SIGNALS, RoleAutoscaling, SignalType
from pdpool_operator.autoscale import signals
from pdpool_operator.autoscale.measures import Measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.pool import InferencePoolSpec
    from pdpool_api.scaling_spec import Signal

AT_ZERO_INTERVAL_S: Final = 2.0
"""How often the queue of a pool at zero is read."""
_ROUTER_STEP: Final = 4
_ROUTER_WINDOW_S: Final = 300.0
_ACTIVITY: Final = frozenset({Measure.QUEUED, Measure.INFLIGHT, Measure.SERVED_TOKENS, Measure.RUNNING})
"""What tells that nobody uses a pool."""


@dataclass(frozen=True, slots=True)
class Target:
    """A signal, and what one replica should have of it."""

    signal: signals.Signal
    target: float
    query: str = ""


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """One role; a fixed one has equal bounds and no target."""

    least: int
    most: int
    targets: tuple[Target, ...] = ()
    paused: bool = False
    dry_run: bool = False
    up_window_s: float = 0.0
    up_step: int = 4
    """0: no limit."""
    down_window_s: float = 300.0
    down_step: int = 0
    lookahead_s: float = 0.0
    """Below 0: the start time that was learned."""
    gpus: int = 0
    """Accelerators of one replica."""
    field: str = ""
    """Path in the spec, for messages."""

    @property
    def scaled(self) -> bool:
        """True when the size follows demand."""
        return bool(self.targets)


@dataclass(frozen=True, slots=True)
class Limits:
    """A whole pool."""

    roles: Mapping[Role, RoleLimits] = field(default_factory=dict)
    max_gpus: int | None = None
    """Of all engines together, without what a rollout needs for its surge."""
    least_ratio: float = 0.0
    """Prefill replicas per decode replica; 0: no bound."""
    most_ratio: float = 0.0
    interval_s: float = 15.0

    @property
    def engines(self) -> dict[Role, RoleLimits]:
        """The engine roles, fixed ones included."""
        return {role: each for role, each in self.roles.items() if role is not Role.ROUTER}

    @property
    def scaled(self) -> bool:
        """True when the size of any role follows demand."""
        return any(each.scaled for each in self.roles.values())

    @property
    def to_zero(self) -> bool:
        """True when the pool may go to zero."""
        return bool(self.engines) and all(each.scaled and each.least == 0 for each in self.engines.values())

    @property
    def needs(self) -> frozenset[Measure]:
        """What must be read for a tick."""
        of_signals = (target.signal.NEEDS for each in self.roles.values() for target in each.targets)
        return frozenset().union(*of_signals, _ACTIVITY if self.to_zero else frozenset())


def limits(spec: InferencePoolSpec) -> Limits:
    """The limits of a pool; mode Auto is decided before.

    Raises:
        ArgumentError: an argument gives a size that its field would not take.
    """
    roles = {role: _of_role(spec, role) for role in spec.roles}
    ratio = spec.autoscaling.ratio
    return Limits(
        roles={**roles, Role.ROUTER: _of_router(spec)},
        max_gpus=None if spec.max_gpus is None else spec.max_gpus - _kept_for_rollouts(spec, roles),
        least_ratio=ratio.min_prefill_per_decode,
        most_ratio=ratio.max_prefill_per_decode,
        interval_s=float(spec.autoscaling.interval_seconds),
    )


def _of_role(spec: InferencePoolSpec, role: Role) -> RoleLimits:
    of_role = spec.role(role)
    given, gpus, path = of_role.autoscaling, accelerators.of_replica(spec, role), spec.field_of(role)
    if given is None:
        size = of_role.desired_replicas
        return RoleLimits(size, size, gpus=gpus, field=path)
    return RoleLimits(
        least=given.min_replicas,
        most=given.max_replicas,
        targets=_targets(spec, role, given),
        paused=given.paused,
        dry_run=given.dry_run,
        up_window_s=given.scale_up.stabilization_seconds,
        up_step=given.scale_up.max_step,
        down_window_s=given.scale_down.stabilization_seconds,
        down_step=given.scale_down.max_step,
        lookahead_s=given.scale_up.lookahead_seconds,
        gpus=gpus,
        field=f"{path}.autoscaling",
    )


def _of_router(spec: InferencePoolSpec) -> RoleLimits:
    given = spec.router.scaled
    if given is None:
        return RoleLimits(spec.router.desired_replicas, spec.router.desired_replicas, field="spec.router")
    return RoleLimits(
        least=given.min_replicas,
        most=given.max_replicas,
        targets=(Target(signals.inflight, given.target_inflight),),
        up_step=_ROUTER_STEP,
        down_window_s=_ROUTER_WINDOW_S,
        field="spec.router.autoscaling",
    )


_DEFAULTS: Final = {
    Role.PREFILL: {SignalType.QUEUE_DEPTH: 4.0},
    Role.DECODE: {SignalType.QUEUE_DEPTH: 4.0, SignalType.KV_CACHE_USAGE: 0.8},
    Role.AGGREGATED: {SignalType.QUEUE_DEPTH: 4.0, SignalType.KV_CACHE_USAGE: 0.8},
}
"""Signals of a role that names none. On decode a queue alone would shrink a role that is full and keeps up."""


def _targets(spec: InferencePoolSpec, role: Role, given: RoleAutoscaling) -> tuple[Target, ...]:
    if not given.signals:
        return tuple(Target(signals.BY_TYPE[each], target) for each, target in _DEFAULTS[role].items())
    return tuple(Target(signals.BY_TYPE[each.type], _target(spec, each), each.query) for each in given.signals)


def _target(spec: InferencePoolSpec, given: Signal) -> float:
    of_slo = spec.slo_of(given.type) if given.type in SLO_SIGNALS else None
    found = given.target if given.target is not None else of_slo
    assert found is not None  # the spec was checked
    return found


def _kept_for_rollouts(spec: InferencePoolSpec, roles: Mapping[Role, RoleLimits]) -> int:
    """Accelerators that growth may not take: a role whose `maxUnavailable` is 0 is replaced only by a surge."""
    stuck = [role for role in roles if not spec.role(role).rollout.max_unavailable and roles[role].gpus]
    return max((roles[role].gpus for role in stuck), default=0)
