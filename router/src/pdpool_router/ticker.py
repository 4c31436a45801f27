"""One coarse clock for every deadline: callbacks that run each quarter of a second.

Boundary: it only calls; who is late is found by the owner of the connections, which compares plain floats. Why: a
timer per read or per request would cost more than the request's own work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S: Final = 0.25


class Ticker:
    """Calls back every `period_s` from `start` until `stop`."""

    def __init__(self, *, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._callbacks: list[Callable[[], None]] = []
        self._handle: asyncio.TimerHandle | None = None

    def add(self, callback: Callable[[], None]) -> None:
        """Calls `callback` with every tick."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Begins to tick on the running loop."""
        self._handle = asyncio.get_running_loop().call_later(self._period_s, self._tick)

    def stop(self) -> None:
        """Ticks no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        # Scheduled first: a callback that raises must not stop the clock.
        self._handle = asyncio.get_running_loop().call_later(self._period_s, self._tick)
        for callback in self._callbacks:
            callback()
