"""Latency at a percentile, from histograms that only ever count up.

Boundary: no I/O; the time is an argument. What counts is what was added during the last window: without traffic
there is no latency. A router that began anew is counted from its beginning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW_S: Final = 60.0
"""Long enough for a percentile to mean something, short enough to follow the load."""

Buckets = dict[float, float]
"""Upper bound in seconds, the last infinite → observations up to it."""


@dataclass(slots=True)
class Latency:
    """The recent observations of one quantity, over all routers of a pool."""

    window_s: float = WINDOW_S
    _seen: list[tuple[float, Mapping[str, Buckets]]] = field(default_factory=list)

    def percentile_ms(self, now: float, routers: Mapping[str, Buckets], percentile: float) -> float | None:
        """Milliseconds below which `percentile` of the recent observations lie; None: there were none.

        Args:
            now: seconds.
            routers: by incarnation of a router, its buckets as they are now.
            percentile: 0 to 100.
        """
        oldest = [each for each in self._seen if each[0] <= now - self.window_s][-1:]
        self._seen = [*oldest, *(each for each in self._seen if now - self.window_s < each[0] < now), (now, routers)]
        added: Buckets = {}
        for router, buckets in routers.items():
            before = next(seen[router] for _, seen in self._seen if router in seen)
            if buckets.get(math.inf, 0.0) < before.get(math.inf, 0.0):
                before = {}  # it began anew
            for bound, count in buckets.items():
                added[bound] = added.get(bound, 0.0) + count - before.get(bound, 0.0)
        return _at(added, percentile)


def _at(buckets: Buckets, percentile: float) -> float | None:
    """Linear inside a bucket, as histograms are read everywhere; above the last bound, that bound."""
    total = buckets.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank, below, lower = total * percentile / 100, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank:
            if math.isinf(bound) or count == below:
                return lower * 1000
            return (lower + (bound - lower) * (rank - below) / (count - below)) * 1000
        below, lower = count, bound
    return lower * 1000
