"""`/livez`, `/readyz` and `/metrics` of the operator.

Boundary: answers from what the re-list knows. Not ready: nothing could be read for two minutes. Not alive: the same,
although the API server answers a plain GET: only then would a restart help, so an outage of the API restarts nobody.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pdpool_operator import telemetry
from pdpool_operator.records import WATCHED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pdpool_operator.kube import Kube
    from pdpool_operator.observe.cluster import Cluster
    from pdpool_operator.observe.relist import Relist

STALE_S: Final = 120.0


class Probes:
    """The answers."""

    def __init__(
        self, kube: Kube, cluster: Cluster, relist: Relist, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._relist = relist
        self._clock = clock
        self._began = clock()

    async def ready(self, _request: web.Request) -> web.Response:
        """200 when every kind was listed once, and again within the last two minutes."""
        if not self._cluster.complete:
            missing = ", ".join(str(each) for each in WATCHED if each not in self._relist.serving)
            return web.Response(status=503, text=f"not listed yet: {missing}\n")
        if self._stale():
            return web.Response(status=503, text=f"nothing could be listed for {STALE_S:.0f} s\n")
        return web.Response(text="ok\n")

    async def live(self, _request: web.Request) -> web.Response:
        """503 only when nothing could be listed although the API server answers."""
        if self._stale() and await self._kube.answers():
            return web.Response(status=503, text="the API server answers, and lists are stuck\n")
        return web.Response(text="ok\n")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        telemetry.POOLS.set(len(self._cluster.pools()))
        return web.Response(body=generate_latest(telemetry.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _stale(self) -> bool:
        return self._clock() - max(self._relist.good_at, self._began) > STALE_S


@contextlib.asynccontextmanager
async def serving(probes: Probes, port: int, host: str | None = None) -> AsyncIterator[int]:
    """Serves while inside; yields the port (a free one was chosen when `port` is 0)."""
    app = web.Application()
    app.add_routes(
        [web.get("/readyz", probes.ready), web.get("/livez", probes.live), web.get("/metrics", probes.metrics)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # No host: every address, IPv4 and IPv6, as kubelets of either family probe.
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
