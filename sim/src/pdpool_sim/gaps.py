"""Gaps between tokens, counted in bins: a simulated hour has millions of them.

Boundary: counting only. Bins are 2 % wide, which is far less than engines differ.
"""

from __future__ import annotations

import math
from typing import Final

BINS_PER_E: Final = 50


class Gaps:
    """How many gaps there were of about which length."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float, times: int) -> None:
        """So many gaps of about this length."""
        if times > 0:
            place = round(math.log(max(seconds, 1e-6)) * BINS_PER_E)
            self._counts[place] = self._counts.get(place, 0) + times

    def merge(self, other: Gaps) -> None:
        """Adds another's."""
        for place, times in other._counts.items():
            self._counts[place] = self._counts.get(place, 0) + times

    @property
    def total(self) -> int:
        """How many gaps."""
        return sum(self._counts.values())

    def quantile(self, share: float) -> float:
        """The gap that so large a share of gaps do not exceed, in seconds; NaN without any."""
        left = share * self.total
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return math.exp(place / BINS_PER_E)
        return math.nan
