"""What engines say of their load: their metrics pages, one after the other, spread evenly over an interval.

Boundary: asks, reads the few lines that choices need, and tells `Loads`; what an unknown figure means is decided
there. The interval grows with the number of endpoints, so that a thousand of them cost what fifty do.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api.engines.vllm import metrics, readings
from pdpool_router.faults import EngineFault
from pdpool_router.state.loads import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.feeds.kv_events import Fetcher
    from pdpool_router.records import Endpoint
    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.state.loads import Loads

SHORTEST_INTERVAL_S: Final = 1.0
PER_ENDPOINT_S: Final = 0.02
TIMEOUT_S: Final = 3.0
_MAX_AT_ONCE: Final = 32
_OK: Final = 200
_log = structlog.get_logger("pdpool_router")


def interval_s(endpoints: int) -> float:
    """Seconds between two looks at one endpoint."""
    return max(SHORTEST_INTERVAL_S, endpoints * PER_ENDPOINT_S)


def report_of(page: bytes) -> Report:
    """The figures of one page."""
    return Report(
        running=readings.total(page, metrics.RUNNING),
        waiting=readings.total(page, metrics.WAITING),
        kv_usage=readings.highest(page, metrics.KV_USAGE),
    )


class EngineMetrics:
    """Looks at every endpoint in turn."""

    def __init__(
        self, endpoints: Endpoints, loads: Loads, fetcher: Fetcher, block_size_told: Callable[[str, int], None]
    ) -> None:
        self._endpoints = endpoints
        self._loads = loads
        self._fetcher = fetcher
        self._block_size_told = block_size_told
        self._gate = asyncio.Semaphore(_MAX_AT_ONCE)
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Looks until cancelled."""
        looking: set[asyncio.Task[None]] = set()
        try:
            while True:
                everything = self._endpoints.all()
                pause_s = interval_s(len(everything)) / max(len(everything), 1)
                for endpoint in everything:
                    task = asyncio.get_running_loop().create_task(self._look(endpoint))
                    looking.add(task)
                    task.add_done_callback(looking.discard)
                    await asyncio.sleep(pause_s)
                if not everything:
                    await asyncio.sleep(SHORTEST_INTERVAL_S)
        finally:
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _look(self, endpoint: Endpoint) -> None:
        async with self._gate:
            before = self._own(endpoint)
            try:
                status, page = await self._fetcher.fetch(endpoint, metrics.PATH, TIMEOUT_S)
            except EngineFault:
                self._say(endpoint, "not answered")
                return
        if status != _OK:
            self._say(endpoint, f"status {status}")
            return
        report = report_of(page)
        if report.requests is None:
            self._say(endpoint, "no figures of requests")
        elif endpoint.uid in self._silent:
            self._silent.discard(endpoint.uid)
            _log.info("engine metrics are read again", endpoint=endpoint.name)
        # What began or ended while the page was on its way must not look like somebody else's.
        self._loads.report(endpoint.uid, report, monotonic(), max(before, self._own(endpoint)))
        size = readings.block_tokens(page, metrics.CACHE_CONFIG)
        if size is not None:
            self._block_size_told(endpoint.uid, size)

    def _own(self, endpoint: Endpoint) -> int:
        load = self._loads.loads.get(endpoint.uid)
        return load.requests if load is not None else 0

    def _say(self, endpoint: Endpoint, reason: str) -> None:
        if endpoint.uid not in self._silent:
            self._silent.add(endpoint.uid)
            _log.warning("engine metrics are unknown, its peers' are assumed", endpoint=endpoint.name, reason=reason)
