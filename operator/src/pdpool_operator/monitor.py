"""The health of one pool while it lives: reads its engines and routers now and then, and wakes it when a verdict turns.

Boundary: when is read, and what is remembered; the verdicts are `health`'s. A reconcile never waits for a reading: it
takes the verdicts of the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api import names
from pdpool_api.conditions import ConditionType, Reason
from pdpool_api.engines import vllm
from pdpool_api.engines.vllm import metrics
from pdpool_api.names import ROUTER_METRICS_PREFIX, Role
from pdpool_operator import health
from pdpool_operator.health import History, Transfers
from pdpool_operator.observe import workload
from pdpool_operator.observe.prometheus import UnreadError
from pdpool_operator.records import HealthVerdict, PoolHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_api.pool import InferencePoolSpec
    from pdpool_operator.observe.cluster import Cluster
    from pdpool_operator.observe.exposition import Page
    from pdpool_operator.observe.metrics import Pages
    from pdpool_operator.records import Json, Observed, PoolRef

PERIOD_S: Final = 20.0
_GAUGES: Final = ("kv_events_missing", "index_approximate")
_USE_PREFIXES: Final = ("KvAware", "Prefix")
"""Policies that ask what engines have cached."""
_COUNTERS: Final = {
    "done": metrics.TRANSFERS,
    "seconds": metrics.TRANSFER_SECONDS,
    "bytes": metrics.TRANSFER_BYTES,
    "failed": metrics.FAILED_TRANSFERS,
    "expired": metrics.EXPIRED_TRANSFERS,
}
_UNREAD_TRANSFER: Final = HealthVerdict("Unknown", Reason.NO_TRAFFIC, "no hand-off was seen in the last five minutes")
_UNREAD_ROUTING: Final = HealthVerdict("Unknown", Reason.ROUTERS_UNREAD, "no ready router says what it sees")

_log = structlog.get_logger(__name__)


class Monitor:
    """The verdicts on one pool."""

    def __init__(
        self,
        ref: PoolRef,
        cluster: Cluster,
        pages: Pages,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` asks for a reconcile."""
        self._ref = ref
        self._cluster = cluster
        self._pages = pages
        self._wake = wake
        self._clock = clock
        self._uid = ""
        self._spec: InferencePoolSpec | None = None
        self._history = History()
        self._routing = _UNREAD_ROUTING
        self._stood = _UNREAD_TRANSFER
        """What the status said of transfers when this replica began to read them."""
        self._began_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def verdicts(self, observed: Observed, spec: InferencePoolSpec) -> PoolHealth:
        """What the last reading says of the pool, whose mode is decided; reading begins with the first call."""
        if observed.uid != self._uid:
            self._uid, self._history, self._began_s = observed.uid, History(), self._clock()
            # A replica that has just taken over knows less than what is said already.
            self._stood = _said_before(observed, ConditionType.TRANSFER_HEALTHY) or _UNREAD_TRANSFER
            self._routing = _said_before(observed, ConditionType.ROUTING_HEALTHY) or _UNREAD_ROUTING
        self._spec = spec
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"monitor {self._ref}")
        return self._said(spec)

    async def close(self) -> None:
        """Ends it, with the pool or with the lead of this replica."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.read()
            except Exception:  # noqa: BLE001 - the next reading may be better
                _log.exception("reading of health failed", pool=str(self._ref))

    async def read(self) -> None:
        """One reading; the pool is woken where a verdict turns."""
        spec, observed = self._spec, self._cluster.observed(self._ref)
        if spec is None or observed is None or observed.uid != self._uid:
            return
        before = self._said(spec)
        engines, routers = await asyncio.gather(self._engines(observed, spec), self._routers(observed))
        history = self._history.with_reading(engines, self._clock())
        self._history = health.transfer(history, spec.transfer.bandwidth_gbps)
        routing = spec.router.routing
        wants_events = routing.index.source == "Events" and routing.policy in _USE_PREFIXES
        self._routing = health.routing(routers, wants_events=wants_events)
        if self._said(spec) != before:
            self._wake()

    def _said(self, spec: InferencePoolSpec) -> PoolHealth:
        transfer = self._history.verdict
        is_young = self._clock() - self._began_s < health.WINDOW_S
        if transfer is None or (is_young and transfer.reason == Reason.NO_TRAFFIC):
            transfer = self._stood
        return PoolHealth(transfer if spec.disaggregated else None, self._routing)

    async def _engines(self, observed: Observed, spec: InferencePoolSpec) -> dict[str, Transfers]:
        roles = spec.roles if spec.disaggregated else ()
        pods = [(pod, vllm.http_port(spec, role)) for role in roles for pod in workload.serving(observed, role)]
        wanted = [name for each in _COUNTERS.values() for name in each.names]
        pages = await asyncio.gather(*(self._page(pod, port, wanted) for pod, port in pods))
        return {
            pod["metadata"]["uid"]: _transfers(page)
            for (pod, _), page in zip(pods, pages, strict=True)
            if page is not None
        }

    async def _routers(self, observed: Observed) -> list[dict[str, float | None]]:
        wanted = [ROUTER_METRICS_PREFIX + name for name in _GAUGES]
        pods = workload.serving(observed, Role.ROUTER)
        pages = await asyncio.gather(*(self._page(pod, names.ROUTER_ADMIN_PORT, wanted) for pod in pods))
        return [
            {name: page.total(ROUTER_METRICS_PREFIX + name) for name in _GAUGES} for page in pages if page is not None
        ]

    async def _page(self, pod: Json, port: int, wanted: Iterable[str]) -> Page | None:
        address = workload.address(pod, port)
        if address is None:
            return None
        try:
            return await self._pages.page(address, wanted)
        except UnreadError as fault:
            _log.debug("not read", pool=str(self._ref), fault=str(fault))
            return None


def _said_before(observed: Observed, kind: ConditionType) -> HealthVerdict | None:
    for each in (observed.pool.get("status") or {}).get("conditions", ()):
        if each["type"] == kind:
            return HealthVerdict(each["status"], each["reason"], each["message"])
    return None


def _transfers(page: Page) -> Transfers:
    """Counters of one engine; those that it does not tell count as 0, as an engine without transfers tells none."""
    return Transfers(**{name: page.total(*each.names) or 0.0 for name, each in _COUNTERS.items()})
