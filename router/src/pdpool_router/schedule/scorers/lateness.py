"""Lateness: the longer a prompt takes in all, the more each further second hurts.

A short remainder may well wait for the engine that holds the rest; a prompt that takes seconds anyway must not wait as
well, or it becomes the slowest of all. The square of the time says so, and keeps `Burden` from holding large prompts
in long queues.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Lateness(msgspec.Struct, frozen=True):
    """Waiting and computing, squared, over a time that is about as long as users like to wait."""

    name: ClassVar[str] = "lateness"
    patience_ms: float = 3000.0

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del asked
        patience_ms = self.patience_ms
        times_ms = map(add, [load.wait_ms for load in loads], work_ms)
        return [time_ms * time_ms / patience_ms for time_ms in times_ms]
