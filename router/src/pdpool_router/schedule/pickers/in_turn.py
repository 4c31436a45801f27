"""In turn: each candidate as often as any other, whatever it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked, Chance


class InTurn:
    """By the count of choices made so far: the one piece of state, kept per policy object."""

    def __init__(self) -> None:
        self._made = 0

    def pick(self, asked: Asked, costs: Sequence[float], loads: Sequence[Load], own_ms: float, rng: Chance) -> int:
        """The position of the chosen candidate."""
        del asked, loads, own_ms, rng
        self._made += 1
        return self._made % len(costs)
