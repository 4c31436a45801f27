"""What the router counts: plain integers and arrays, read at scrape time.

Boundary: counting only; `edge/admin.py` turns it into metrics. Why no metrics library here: its objects take a lock
and several calls per observation, and some of these stand on the path of every chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORT_S: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_TOKEN_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.5,
)
_FIRST_S: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_WHOLE_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)


class Histogram:
    """Counts of observations, in seconds, per upper bound."""

    __slots__ = ("_counts", "_new", "_sum_s", "bounds_s", "observe")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s: Final = tuple(bounds_s)
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0
        self._new: list[float] = []
        self.observe: Final = self._new.append
        """Notes one observation: no more than that, since it stands on the path of every chunk."""

    def settle(self) -> None:
        """Counts what was noted; called by the ticker, so that notes are few."""
        counts, bounds_s = self._counts, self.bounds_s
        for value_s in self._new:
            counts[bisect_left(bounds_s, value_s)] += 1
        self._sum_s += sum(self._new)
        self._new.clear()

    @property
    def counts(self) -> list[int]:
        """One per bound, not cumulative; the last: above all bounds."""
        self.settle()
        return self._counts

    @property
    def sum_s(self) -> float:
        """Sum of all observations."""
        self.settle()
        return self._sum_s


class Telemetry:
    """Every counter of the router; attributes are incremented where things happen."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        """(model, status) → answers; the model is a configured name or `other`."""
        self.ttft = Histogram(_FIRST_S)
        """Arrival of the whole request to the first byte of the answer's body."""
        self.itl = Histogram(_TOKEN_S)
        """Gap between two reads of a stream."""
        self.e2e = Histogram(_WHOLE_S)
        self.overhead = Histogram(_SHORT_S)
        """The router's own part of the time to the first byte: what is left of it without waiting for engines."""
        self.handoff = Histogram(_FIRST_S)
        """The prefill leg: request written to answer whole."""
        # Known from the start: the rate of a series whose first value is above zero does not see that first value.
        self.retries: defaultdict[str, int] = defaultdict(int, dict.fromkeys(("prefill", "decode", "pair", "whole"), 0))
        self.local_prefills: defaultdict[str, int] = defaultdict(int, dict.fromkeys(("no_prefill", "no_kv"), 0))
        self.queued: dict[str, int] = {}
        """model → requests that wait for room, or for the pool to wake."""
        self.truncated_streams = 0
        self.orphaned_prefills = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.prefix_query_tokens = 0
        """Prompt tokens that were looked up."""
        self.prefix_hit_tokens = 0
        """Those that the chosen endpoint was believed to hold."""
        self.predicted_cached_tokens = 0
        """Predicted for prompts of which the engine told how many were cached."""
        self.actual_cached_tokens = 0
        """What the engines told of those."""
        self.prediction_error = Histogram(_TOKEN_S)
        """Predicted against real time of a leg until its engine answered, without sign."""
        self.kv_event_gaps = 0

    def settle(self) -> None:
        """Counts what histograms noted; called by the ticker."""
        for one in vars(self).values():
            if isinstance(one, Histogram):
                one.settle()
