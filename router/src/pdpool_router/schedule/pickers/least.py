"""Least: the smallest cost; equals by chance, so that several routers do not all begin at the same endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked, Chance


class Least(msgspec.Struct, frozen=True):
    """The least costly candidate."""

    def pick(self, asked: Asked, costs: Sequence[float], loads: Sequence[Load], own_ms: float, rng: Chance) -> int:
        """The position of the chosen candidate."""
        del asked, loads, own_ms
        least = min(costs)
        tied = [at for at, cost in enumerate(costs) if cost == least]
        return tied[0] if len(tied) == 1 else tied[int(rng.random() * len(tied))]
