"""Who may run now: the seats of one rank (`--max-num-seqs`), given first come first served, and what waits for them.

Boundary: counting and waiting; knows neither jobs nor blocks. A pull under way holds no seat, as in vLLM.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Stage = Literal["waiting_to_start", "in_progress", "completed_waiting"]


class Seats:
    """Seats for `most` sequences; `running` are taken, `waiting` is the queue's length."""

    def __init__(self, most: int) -> None:
        self.running = 0
        # Second legs by how far their pull is.
        self.fetching: dict[Stage, int] = {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0}
        self._most = most
        self._queue: deque[asyncio.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a seat or for blocks."""
        return len(self._queue)

    def wake(self) -> None:
        """Let the first in the queue look again: a seat or blocks became free."""
        if self._queue:
            self._queue[0].set()

    async def take(self, fits: Callable[[], bool]) -> None:
        """Wait until there is a seat and `fits` holds; then it is taken."""
        if self._queue or self.running >= self._most or not fits():
            turn = asyncio.Event()
            self._queue.append(turn)
            try:
                while not (self._queue[0] is turn and self.running < self._most and fits()):
                    turn.clear()
                    await turn.wait()
            finally:
                self._queue.remove(turn)
                self.wake()
        self.running += 1

    def leave(self) -> None:
        """Give a seat back."""
        self.running -= 1
        self.wake()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Count a second leg in a stage of its pull."""
        self.fetching[stage] += 1
        try:
            yield
        finally:
            self.fetching[stage] -= 1

    def gauges(self) -> list[tuple[str, float, str]]:
        """The values of vLLM's gauges about requests: (name, value, label)."""
        deferred = self.fetching["in_progress"]
        return [
            ("num_requests_running", self.running, ""),
            ("num_requests_waiting", self.waiting + deferred, ""),
            ("num_requests_waiting_by_reason", self.waiting, "capacity"),
            ("num_requests_waiting_by_reason", deferred, "deferred"),
            *(("num_requests_kv_fetch_by_stage", count, stage) for stage, count in self.fetching.items()),
        ]
