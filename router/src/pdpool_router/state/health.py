"""Which incarnations fail, from what requests and probes see.

Boundary: counts connect errors, timeouts, breaks and 5xx (the caller says what failed); answers of 4xx never come
here. An endpoint that fails a few times in a row is left out; it comes back when a probe succeeds or after a pause,
when one request may try it: a pause doubles up to a bound, so that recovery is seen within 30 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Container

FAILURES_TO_LEAVE: Final = 3
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0


class _Record(msgspec.Struct):
    failures: int = 0
    out_until_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    out: bool = False
    dead: bool = False
    """Nothing listens there."""


class Health:
    """Failures in a row per uid, and who is out because of them."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._changes = 0
        self._next_return_s = float("inf")

    def version(self) -> int:
        """A number that changes when `usable` may answer differently."""
        if self._next_return_s <= self._clock():
            self._return_due()
        return self._changes

    def usable(self, uid: str) -> bool:
        """Whether an incarnation may be chosen."""
        record = self._records.get(uid)
        return record is None or not record.out

    def answers(self, uid: str) -> bool:
        """Whether an incarnation is there at all, however badly it answers."""
        record = self._records.get(uid)
        return record is None or not (record.out and record.dead)

    def succeeded(self, uid: str) -> None:
        """An answer came."""
        record = self._records.pop(uid, None)
        if record is not None and record.out:
            self._changes += 1

    def failed(self, uid: str, *, certain: bool = False) -> None:
        """A failure of the endpoint; `certain` (nothing listens there) needs no repetition."""
        record = self._records.setdefault(uid, _Record())
        record.failures += 1
        if record.failures < FAILURES_TO_LEAVE and not certain:
            return
        now_s = self._clock()
        if record.failures > 1 and record.out_until_s:
            record.pause_s = min(record.pause_s * 2, LONGEST_PAUSE_S)
        record.out_until_s = now_s + record.pause_s
        self._next_return_s = min(self._next_return_s, record.out_until_s)
        if not record.out or record.dead != certain:
            record.out = True
            record.dead = certain
            self._changes += 1

    def keep(self, uids: Container[str]) -> None:
        """Forgets every incarnation but these, also what failed after it was gone."""
        for uid in [uid for uid in self._records if uid not in uids]:
            del self._records[uid]

    def _return_due(self) -> None:
        now_s = self._clock()
        later: list[float] = []
        for record in self._records.values():
            if not record.out:
                continue
            if record.out_until_s <= now_s:
                # Half open: a single further failure takes it out again, for longer.
                record.out = False
                record.failures = FAILURES_TO_LEAVE - 1
                self._changes += 1
            else:
                later.append(record.out_until_s)
        self._next_return_s = min(later, default=float("inf"))
