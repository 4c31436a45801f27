"""Time as an argument: the stand-in engine's only source of it, so that tests can make leases run out at will."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and a way to let some of them pass."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this clock."""
        ...


class RealClock:
    """The machine's clock."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Seconds as advanced so far."""
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by `seconds`; at once for zero."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers in order; each gets some turns of the loop before the next."""
        end_s = self._now_s + seconds
        # What was just started must reach its sleep before time passes.
        await self._turns()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self._now_s, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            await self._turns()
        self._now_s = end_s

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
