"""Pools for tests of the tick: limits and readings as values, and a clock that a test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdpool_api.pool import InferencePool
from pdpool_operator import autoscale
from pdpool_operator.autoscale import Limits, Measure, Memory, Observation, PodReading, RoleReading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_api.names import Role
    from pdpool_operator.autoscale import Decision

INTERVAL_S = 15.0
PROMETHEUS = {"source": "Direct", "prometheus": {"url": "http://prometheus:9090"}}


def limits(
    prefill: Mapping[str, Any] | int | None = None, decode: Mapping[str, Any] | int | None = None, **spec: Any
) -> Limits:
    """Limits of a pool; a number is a fixed size, a mapping the role's `autoscaling`. Without prefill: aggregated."""
    roles: dict[str, Any] = {}
    for name, given in (("prefill", prefill), ("decode", 1 if decode is None else decode)):
        if isinstance(given, int):
            roles[name] = {"replicas": given}
        elif given is not None:
            roles[name] = {"autoscaling": dict(given)}
    mode = "Aggregated" if prefill is None else "Disaggregated"
    raw = {"metadata": {"name": "p"}, "spec": {"model": {"id": "m"}, "mode": mode, **roles, **spec}}
    return autoscale.limits(InferencePool.parse(raw, strict=True).spec)


def pods(count: int, *, prefix: str = "p", first: int = 0, **values: float | None) -> tuple[PodReading, ...]:
    """Ready pods with equal readings; None: unknown."""
    told = {Measure[name.upper()]: value for name, value in values.items() if value is not None}
    return tuple(PodReading(f"{prefix}{number}", values=told) for number in range(first, first + count))


def starting(count: int, *, first: int = 100, unschedulable: bool = False) -> tuple[PodReading, ...]:
    """Pods that are not ready yet, and tell nothing."""
    return tuple(
        PodReading(f"s{number}", ready=False, unschedulable=unschedulable) for number in range(first, first + count)
    )


def reading(*each: PodReading, size: int | None = None, **more: Any) -> RoleReading:
    return RoleReading(size=len(each) if size is None else size, pods=tuple(each), **more)


class Clock:
    """A pool whose time a test moves: ticks every interval, on what `observe` says of the sizes at that time."""

    def __init__(self, of: Limits, observe: Callable[[float, dict[Role, int]], Observation]) -> None:
        self.limits = of
        self.observe = observe
        self.memory = Memory()
        self.now = 1000.0
        self.sizes: dict[Role, int] = {}
        self.last: Decision | None = None
        self.history: list[tuple[float, dict[Role, int]]] = []

    def run(self, seconds: float) -> dict[Role, int]:
        """Ticks for so long; the sizes at its end."""
        end = self.now + seconds
        while self.now < end:
            decision = autoscale.tick(self.observe(self.now, dict(self.sizes)), self.memory, self.limits, self.now)
            self.memory, self.last = decision.memory, decision
            self.sizes = {role: each.size for role, each in decision.memory.roles.items()}
            self.history.append((self.now, self.sizes))
            self.now += autoscale.interval_s(self.memory, self.limits)
        return self.sizes

    def changes(self, role: Role) -> list[int]:
        """The sizes of a role, each once for as long as it stood."""
        found: list[int] = []
        for _, sizes in self.history:
            if not found or found[-1] != sizes[role]:
                found.append(sizes[role])
        return found

    def restart(self) -> None:
        """The operator forgets."""
        self.memory = Memory()


def of_load(
    role: Role, measure: Measure, total: Callable[[float], float | None], *, start_s: float = 0.0
) -> Callable[[float, dict[Role, int]], Observation]:
    """A role whose total load is given and evenly spread over replicas that are ready after `start_s`."""
    born: dict[int, float] = {}

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        size = sizes.get(role, 1)
        for number in range(size):
            born.setdefault(number, now)
        for number in [each for each in born if each >= size]:
            del born[number]
        ready = max(1, sum(1 for at in born.values() if now - at >= start_s))
        load = total(now)
        values = {} if load is None else {measure: load / ready}
        each = [
            PodReading(f"p{number}", ready=number < ready, values=values if number < ready else {})
            for number in range(size)
        ]
        return Observation(roles={role: RoleReading(size=size, pods=tuple(each))})

    return observe
