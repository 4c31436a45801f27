"""Following one publisher's numbered batches: what was missed is asked for again, what cannot be had is forgotten.

Boundary: pure; sockets call in, and what is to be done goes out through four callbacks. Rules:

- A connection, first or again, begins with an empty index and a replay from 0: an engine publishes nothing at start,
  so that nothing else tells an old life from a new one.
- A number that was skipped is asked for again; meanwhile live batches wait. A replay that begins later than asked has
  lost something, perhaps removals: the index is emptied and grows again from there.
- A live number that is smaller than the live one before is a new life; so is one that a replay told already, unless it
  is the very same batch, late.
- Without a replay, or when it does not end, the index is emptied and grows from what comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pdpool_api.engines.vllm.kv_events import Batch

MOST_WAITING: Final = 20_000
"""Live batches that wait for a replay; more: it is given up."""


class Follows(Protocol):
    """What a follower has done."""

    def apply(self, batch: Batch) -> None:
        """The next batch."""
        ...

    def forget(self) -> None:
        """Everything told so far is void."""
        ...

    def ask(self, start: int) -> None:
        """A replay from this number on; one asked for before is void."""
        ...

    def gap(self) -> None:
        """Batches were missed."""
        ...


class Follower:
    """The state of one publisher."""

    def __init__(self, target: Follows, *, replays: bool) -> None:
        self._target = target
        self._replays = replays
        self._next: int | None = None
        self._last_live = -1
        self._replayed: dict[int, float] = {}
        """When batches were made that a replay told and that have not come live: they still may."""
        self._waiting: list[tuple[int, Batch]] | None = None
        """Live batches behind a replay; None: none is under way."""

    @property
    def replaying(self) -> bool:
        """A replay is under way."""
        return self._waiting is not None

    def connected(self) -> None:
        """The publisher is heard, for the first time or again."""
        self._last_live = -1
        self._begin()

    def live(self, number: int, batch: Batch) -> None:
        """A batch as it is published."""
        made_s = self._replayed.pop(number, None)
        late = made_s == batch.at_s and number > self._last_live
        restarted = number <= self._last_live or (made_s is not None and not late)
        self._last_live = number
        if restarted:
            self._begin(at=number)
        elif late and self._waiting is None:
            return
        elif self._replayed and self._next is not None and number >= self._next:
            self._replayed.clear()  # live batches come in order: none of those will
        if self._waiting is not None:
            self._waiting.append((number, batch))
            if len(self._waiting) > MOST_WAITING:
                self.replay_ended(whole=False)
            return
        if self._next is not None and number > self._next:
            self._target.gap()
            if self._replays:
                self._waiting = [(number, batch)]
                self._target.ask(self._next)
                return
            self._target.forget()
        self._target.apply(batch)
        self._next = number + 1

    def replayed(self, number: int, batch: Batch) -> None:
        """A batch again."""
        if self._waiting is None or (self._next is not None and number < self._next):
            return
        if self._next is not None and number > self._next:
            # What is missing before this cannot be had any more.
            self._target.forget()
        self._target.apply(batch)
        self._next = number + 1
        if number > self._last_live:
            self._replayed[number] = batch.at_s

    def replay_ended(self, *, whole: bool) -> None:
        """The replay is over; `whole`: it came to its end."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if not whole:
            self._target.forget()
            self._next = None
        for number, batch in waiting:
            if self._next is not None:
                if number < self._next:
                    self._replayed.pop(number, None)
                    continue
                if number > self._next:
                    self._target.gap()
                    self._target.forget()
            self._target.apply(batch)
            self._next = number + 1

    def _begin(self, at: int = 0) -> None:
        self._target.forget()
        self._replayed.clear()
        self._waiting = None
        self._next = None
        if self._replays:
            self._next = 0
            self._waiting = []
            self._target.ask(0)
        elif at:
            self._next = at
