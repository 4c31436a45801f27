"""One task per pool: woken by events, by its deadline, or by a failure's delay; the pool's only writer.

Boundary: decides when a pool is looked at, never what is done. Tasks live only while this replica leads, and none
starts before every kind was listed once: until then an absent child may be one that was not read yet, and would be
applied needlessly.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_operator import telemetry
from pdpool_operator.apply import Writer
from pdpool_operator.intent import Recall
from pdpool_operator.kube import ApiError
from pdpool_operator.monitor import Monitor
from pdpool_operator.observe.loads import Loads
from pdpool_operator.observe.metrics import Pages
from pdpool_operator.observe.references import References
from pdpool_operator.observe.secrets import Secrets
from pdpool_operator.reconcile import LOOK_AGAIN_S, reconcile
from pdpool_operator.scaler import Scaler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdpool_operator.kube import Kube
    from pdpool_operator.observe.cluster import Cluster
    from pdpool_operator.records import Images, PoolRef

COALESCE_S: Final = 0.1
"""Wakes that come this close together are one."""
GAP_S: Final = 0.5
"""Between two reconciles of one pool: a rollout makes many events."""
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
AT_ONCE: Final = 64
"""Looks side by side: more than requests (`kube.IN_FLIGHT`), as some wait for pods; each holds all that it builds."""
EARLIEST: Final = 0.7
"""Share of its deadline after which a pool may be looked at: those that began together must not come due together, as
an edit would wait behind them."""
MOST_WARM: Final = 64
"""Pools, those looked at last, of which what was built is kept: a quarter of a megabyte each (docs/benchmarks.md)."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Worker:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Workers:
    """The tasks of all pools."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        images: Images,
        operator_namespace: str | None = None,
        *,
        secret_namespaces: frozenset[str] = frozenset(),
        key_namespace: str = "default",
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._images = images
        self._operator_namespace = operator_namespace
        self._secrets = Secrets(kube, secret_namespaces, key_namespace, self.wake)
        self._pages = Pages()
        self._workers: dict[PoolRef, _Worker] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._warm: dict[PoolRef, Callable[[], None]] = {}
        """The pools looked at last, the oldest first, and how each forgets what it can build again."""
        self._acting = False

    def wake(self, ref: PoolRef) -> None:
        """Something about the pool may be new."""
        if not self._acting:
            return  # whoever begins to act looks at every pool
        worker = self._workers.get(ref)
        if worker is None:
            if not self._cluster.has_pool(ref):
                return
            worker = self._workers[ref] = _Worker()
            worker.task = asyncio.create_task(self._run(ref, worker.wake), name=f"pool {ref}")
        worker.wake.set()

    async def act(self) -> None:
        """Reconciles pools until cancelled."""
        await self._cluster.completed.wait()
        with self._active():
            for ref in self._cluster.pools():
                self.wake(ref)
            async with self._pages:
                try:
                    await self._secrets.run()
                finally:
                    await self._end()

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        self._acting = True
        telemetry.LEADING.set(1)
        try:
            yield
        finally:
            self._acting = False
            telemetry.LEADING.set(0)

    async def _end(self) -> None:
        self._acting = False
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()

    async def _run(self, ref: PoolRef, wake: asyncio.Event) -> None:
        scaler = Scaler(ref, self._cluster, self._kube, self._pages, wake.set)
        monitor = Monitor(ref, self._cluster, self._pages, wake.set)
        try:
            await self._while_it_exists(ref, wake, scaler, monitor)
        finally:
            self._warm.pop(ref, None)
            await scaler.close()
            await monitor.close()
            telemetry.forget(ref)

    async def _while_it_exists(self, ref: PoolRef, wake: asyncio.Event, scaler: Scaler, monitor: Monitor) -> None:
        writer, loads, recall = Writer(self._kube, self._cluster), Loads(self._pages), Recall()
        references = References(self._kube)

        def rest() -> None:
            recall.rest()
            writer.rest()

        failures = 0
        deadline_s = LOOK_AGAIN_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s * random.uniform(EARLIEST, 1)):  # noqa: S311 - no secret
                    await wake.wait()
            await asyncio.sleep(COALESCE_S)
            async with self._slots:
                # Cleared before the look: what comes during it is looked at next.
                wake.clear()
                if not self._cluster.has_pool(ref):
                    del self._workers[ref]
                    self._secrets.forget(ref)
                    return
                looked = await self._look(
                    ref, writer, scaler, monitor, loads=loads, recall=recall, references=references
                )
            self._keep_warm(ref, rest)
            failures = 0 if looked is not None else failures + 1
            retry_s = min(FIRST_RETRY_S * 2 ** min(failures, 10), MAX_RETRY_S)
            deadline_s = looked if looked is not None else retry_s
            await asyncio.sleep(GAP_S)

    def _keep_warm(self, ref: PoolRef, rest: Callable[[], None]) -> None:
        self._warm.pop(ref, None)
        self._warm[ref] = rest
        if len(self._warm) > MOST_WARM:
            self._warm.pop(next(iter(self._warm)))()

    async def _look(
        self,
        ref: PoolRef,
        writer: Writer,
        scaler: Scaler,
        monitor: Monitor,
        *,
        loads: Loads,
        recall: Recall,
        references: References,
    ) -> float | None:
        """Seconds until the next look; None when this one failed."""
        try:
            with telemetry.RECONCILE_SECONDS.time():
                result = await reconcile(
                    ref,
                    self._cluster,
                    writer,
                    self._images,
                    self._operator_namespace,
                    secrets=self._secrets,
                    references=references,
                    scaler=scaler,
                    loads=loads,
                    monitor=monitor,
                    recall=recall,
                )
        except ApiError as fault:
            _log.warning("reconcile failed", pool=str(ref), fault=str(fault))
            telemetry.RECONCILE_ERRORS.inc()
            return None
        except Exception:  # noqa: BLE001 - one pool's fault must not end the task of it, nor of any other
            _log.exception("reconcile failed", pool=str(ref))
            telemetry.RECONCILE_ERRORS.inc()
            return None
        if result is None:
            return LOOK_AGAIN_S
        if not result.clean:
            telemetry.RECONCILE_ERRORS.inc()
            return None
        return result.look_again_s
