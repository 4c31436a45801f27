"""The autoscaling of one pool while it lives: reads on the pool's interval, ticks, and wakes the pool when it matters.

Boundary: when is read, and what is remembered; the decision is `autoscale.tick`, the reading `observe.metrics`. A
reconcile never waits for metrics: it takes the sizes of the last tick. A tick that changes neither a size nor a word
wakes nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_operator import autoscale, telemetry
from pdpool_operator.autoscale import Memory, Observation, RoleReading
from pdpool_operator.observe import workload
from pdpool_operator.observe.metrics import Pages, PoolMetrics
from pdpool_operator.sizes import Sizing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec
    from pdpool_operator.autoscale import Limits
    from pdpool_operator.kube import Kube
    from pdpool_operator.observe.cluster import Cluster
    from pdpool_operator.records import Observed, PoolRef
    from pdpool_operator.sizes import Sizes

FAILED_S: Final = 5.0

_log = structlog.get_logger(__name__)


class Scaler:
    """The sizes of one pool's autoscaled roles."""

    def __init__(
        self,
        ref: PoolRef,
        cluster: Cluster,
        kube: Kube,
        pages: Pages,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake` asks for a reconcile."""
        self._ref = ref
        self._cluster = cluster
        self._metrics = PoolMetrics(pages, kube)
        self._wake = wake
        self._clock = clock
        self._spec: InferencePoolSpec | None = None
        self._limits: Limits | None = None
        self._uid = ""
        self._memory = Memory()
        self._sizes: Sizes = {}
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def sizes(self, observed: Observed, spec: InferencePoolSpec) -> Sizes:
        """The sizes that hold now, of the autoscaled roles.

        Args:
            observed: the pool as it is.
            spec: its spec, images resolved and mode decided.

        Raises:
            ArgumentError: an argument gives a size that its field would not take.
        """
        if observed.uid != self._uid:
            self._stop()  # another life of a pool of this name
            self._uid = observed.uid
        limits = autoscale.limits(spec)
        if not limits.scaled:
            self._stop()
            return {}
        if limits != self._limits:
            self._limits = limits
            self._sizes = self._held(observed, limits)
            self._hurry.set()
        self._spec = spec
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"scaler {self._ref}")
        return {role: self._allowed(observed, role, each) for role, each in self._sizes.items()}

    def _allowed(self, observed: Observed, role: Role, said: Sizing) -> Sizing:
        """A dry run writes no size, so that somebody else may: what the workload has by now holds."""
        assert self._limits is not None
        live = workload.size(observed, role) if self._limits.roles[role].dry_run else None
        return said if live is None else replace(said, size=live)

    async def close(self) -> None:
        """Ends it, with the pool or with the lead of this replica."""
        task = self._task
        self._stop()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task, self._limits, self._memory, self._sizes = None, None, Memory(), {}
        self._metrics.close()
        telemetry.tell_sizes(self._ref, {})

    def _held(self, observed: Observed, limits: Limits) -> Sizes:
        """The sizes under new limits until the next tick: what there is, within the bounds, and these as the reason."""
        roles = {role: RoleReading(size=workload.size(observed, role)) for role in limits.roles}
        found = autoscale.tick(Observation(roles), Memory(roles=self._memory.roles), limits, self._clock()).roles
        held: dict[Role, Sizing] = {}
        for role, each in found.items():
            said = self._sizes.get(role, Sizing(each.size, each.before, read=False))
            why = each if each.size != each.before else said
            held[role] = replace(
                said,
                size=each.size,
                before=each.before,
                reason=why.reason,
                message=why.message,
                scaled_at=why.scaled_at,
            )
        return held

    async def _run(self) -> None:
        while True:
            self._hurry.clear()
            try:
                wait_s = await self._tick()
            except Exception:  # noqa: BLE001 - sizes hold; the next reading may be better
                _log.exception("tick failed", pool=str(self._ref))
                wait_s = self._limits.interval_s if self._limits is not None else FAILED_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()

    async def _tick(self) -> float:
        """One reading and one decision; seconds until the next."""
        spec, limits = self._spec, self._limits
        observed = self._cluster.observed(self._ref, self._clock())
        if spec is None or limits is None or observed is None:
            return FAILED_S
        observation = await self._metrics.read(observed, spec, limits, self._clock())
        if limits is not self._limits:
            return 0.0  # the spec changed meanwhile
        with telemetry.TICK_SECONDS.time():
            decision = autoscale.tick(observation, self._memory, limits, self._clock())
        self._memory = decision.memory
        telemetry.tell_sizes(self._ref, decision.roles)
        for role, each in decision.roles.items():
            if each.size != each.before:
                said = {"before": each.before, "size": each.size, "reason": each.reason, "message": each.message}
                _log.info("scaled", pool=str(self._ref), role=role.value, **said)
        if any(_differs(self._sizes.get(role), each) for role, each in decision.roles.items()):
            self._wake()
        self._sizes = decision.roles
        return autoscale.interval_s(self._memory, limits)


def _differs(before: Sizing | None, after: Sizing) -> bool:
    """True when something is to be done or said."""
    return before is None or _told(before) != _told(after)


def _told(sizing: Sizing) -> tuple[object, ...]:
    return (sizing.size, sizing.read, sizing.reason, sizing.message, sizing.unknown, sizing.missing)
