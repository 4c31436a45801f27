"""The virtual clock: what happens next, in order of time, then of asking.

Boundary: nothing here knows engines or requests. Time only moves when `run` takes the next event, so a simulated hour
costs what its events cost, and equal seeds give equal runs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Action = Callable[[], None]


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """It will not happen."""
        self.action = None


class Clock:
    """Events in order of time; those of one moment in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._asked = 0
        self._events: Final[list[tuple[float, int, Event]]] = []

    def at(self, time_s: float, action: Action) -> Event:
        """Asks for an action at a time, which is not in the past.

        Raises:
            ValueError: the time is in the past.
        """
        if time_s < self.now_s:
            raise ValueError(f"{time_s} is before {self.now_s}")
        event = Event(action)
        self._asked += 1
        heapq.heappush(self._events, (time_s, self._asked, event))
        return event

    def run(self, until_s: float = float("inf")) -> None:
        """Lets everything happen up to a time, that included."""
        events = self._events
        while events and events[0][0] <= until_s:
            time_s, _, event = heapq.heappop(events)
            action = event.action
            if action is not None:
                self.now_s = time_s
                action()
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)
