"""Asks engines whether they live: `GET /health` of each endpoint, those that are left out more often.

Boundary: it reports to `Health` and decides nothing. Why: what `GET /health` of the router says must be true without
traffic, and an endpoint that was left out comes back as soon as it answers.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from pdpool_router.faults import ConnectFailed, EngineFault

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint
    from pdpool_router.state.endpoints import Endpoints

ALL_EVERY_S: Final = 5.0
PER_ENDPOINT_S: Final = 0.02
"""So that a thousand endpoints cost what a few hundred do."""
FAILING_EVERY_S: Final = 1.0
TIMEOUT_S: Final = 3.0
MAX_AT_ONCE: Final = 32


class Pinger(Protocol):
    """Asks one engine."""

    async def healthy(self, endpoint: Endpoint, timeout_s: float) -> bool:
        """Whether `GET /health` is answered, and not by 5xx.

        Raises:
            EngineFault: it is not answered.
        """
        ...


class Prober:
    """Asks all endpoints in rounds."""

    def __init__(self, endpoints: Endpoints, pinger: Pinger) -> None:
        self._endpoints = endpoints
        self._pinger = pinger
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self) -> None:
        """Asks until cancelled."""
        next_all_s = 0.0
        while True:
            everything = self._endpoints.all()
            now_s = monotonic()
            if now_s >= next_all_s:
                next_all_s = now_s + max(ALL_EVERY_S, len(everything) * PER_ENDPOINT_S)
                due = everything
            else:
                due = [endpoint for endpoint in everything if not self._endpoints.health.usable(endpoint.uid)]
            await asyncio.gather(*(self._ask(endpoint) for endpoint in due))
            await asyncio.sleep(FAILING_EVERY_S)

    async def _ask(self, endpoint: Endpoint) -> None:
        health = self._endpoints.health
        async with self._gate:
            try:
                healthy = await self._pinger.healthy(endpoint, TIMEOUT_S)
            except ConnectFailed:
                health.failed(endpoint.uid, certain=True)
                return
            except EngineFault:
                # Busy is not dead: silence of one probe says little, and requests tell more.
                return
        if not healthy:
            health.failed(endpoint.uid, certain=True)
        else:
            health.probed(endpoint.uid)
