"""Which incarnations fail, from what requests and probes see, and how one comes back.

Boundary: counts connect errors, timeouts, breaks and 5xx (the caller says what failed); answers of 4xx never come
here. The states of an incarnation:

    well → out       a few failures in a row, or nothing listens there
    out → on trial   after a pause that doubles up to a bound, so that recovery is seen within 30 s; or, where nothing
                     listened, as soon as a probe is answered. One request at a time may try it
    on trial → out   one failure
    on trial → warm  one answer: from then on it may have twice as many requests every half second
    warm → well      after a few seconds; a failure begins the count anew

A probe that is answered never counts for a request that is not: an engine that answers `/health` and nothing else
stays out. Why the ramp: an engine that comes back empty would else get everything at once from every router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

FAILURES_TO_LEAVE: Final = 3
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
RAMP_S: Final = 5.0
DOUBLING_S: Final = 0.5
_NEVER: Final = float("inf")


class _Record(msgspec.Struct):
    pause_s: float
    """How long it is out, the next time."""
    failures: int = 0
    out_until_s: float = _NEVER
    """End of the pause; of use while it is out."""
    out: bool = False
    dead: bool = False
    """Nothing listens there."""
    on_trial: bool = False
    warm_since_s: float = _NEVER


class Health:
    """What is known of each incarnation that is not simply well, by uid."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self.doubts: Final[Collection[str]] = self._records
        """Incarnations that are not simply well; none, nearly always, and then there is nothing to ask or to tell."""
        self._members: Container[str] | None = None
        """Incarnations that there are; None: nobody told."""
        self._recovering: dict[str, _Record] = {}
        self._changes = 0
        self._next_change_s = _NEVER

    def version(self) -> int:
        """A number that changes when `usable` may answer differently."""
        if self._next_change_s <= self._clock():
            self._change_what_is_due()
        return self._changes

    def usable(self, uid: str) -> bool:
        """Whether an incarnation may be chosen, if it is not `full`."""
        record = self._records.get(uid)
        return record is None or not record.out

    def answers(self, uid: str) -> bool:
        """Whether an incarnation is there at all, however badly it answers."""
        record = self._records.get(uid)
        return record is None or not (record.out and record.dead)

    def on_trial(self, uid: str) -> bool:
        """Whether nobody knows yet that an incarnation that failed is well again."""
        record = self._records.get(uid)
        return record is not None and record.on_trial

    @property
    def recovering(self) -> bool:
        """Some incarnation is on trial or warm: `full` says more than `usable`."""
        return bool(self._recovering)

    def full(self, requests: Mapping[str, int]) -> frozenset[str]:
        """Those that recover and have as many requests as they may have now."""
        now_s = self._clock()
        return frozenset(
            uid for uid, record in self._recovering.items() if requests.get(uid, 0) >= _allowance(record, now_s)
        )

    def answered(self, uid: str) -> None:
        """A request is being answered: a trial is passed, though a failure may still come."""
        record = self._records.get(uid)
        if record is not None and record.on_trial:
            self._warm(uid, record)

    def succeeded(self, uid: str) -> None:
        """A request was answered to its end."""
        record = self._records.get(uid)
        if record is None:
            return
        if record.out or record.on_trial:
            self._warm(uid, record)
        record.failures = 0
        if record.warm_since_s == _NEVER:
            del self._records[uid]

    def probed(self, uid: str) -> None:
        """A probe was answered: somebody is there, and may be tried where nobody was."""
        record = self._records.get(uid)
        if record is not None and record.out and record.dead:
            self._try(uid, record)
            self._changes += 1

    def failed(self, uid: str, *, certain: bool = False) -> None:
        """A failure of the endpoint; `certain` (nothing listens there) needs no repetition."""
        if self._members is not None and uid not in self._members:
            return  # it would be doubted for ever
        record = self._records.setdefault(uid, _Record(FIRST_PAUSE_S))
        record.failures += 1
        if record.failures < FAILURES_TO_LEAVE and not certain and not record.on_trial:
            return
        now_s = self._clock()
        if record.on_trial or record.out:
            record.pause_s = min(record.pause_s * 2, LONGEST_PAUSE_S)
        self._recovering.pop(uid, None)
        record.on_trial = False
        record.warm_since_s = _NEVER
        record.out_until_s = now_s + record.pause_s
        self._next_change_s = min(self._next_change_s, record.out_until_s)
        if not record.out or record.dead != certain:
            record.out = True
            record.dead = certain
            self._changes += 1

    def keep(self, uids: Container[str]) -> None:
        """Forgets every incarnation but these, and hears of no other from now on."""
        self._members = uids
        for uid in [uid for uid in self._records if uid not in uids]:
            del self._records[uid]
            self._recovering.pop(uid, None)

    # --- within --------------------------------------------------------------------------------------------------
    def _try(self, uid: str, record: _Record) -> None:
        record.out = False
        record.on_trial = True
        self._recovering[uid] = record

    def _warm(self, uid: str, record: _Record) -> None:
        record.out = record.dead = record.on_trial = False
        record.failures = 0
        record.warm_since_s = self._clock()
        self._recovering[uid] = record
        self._next_change_s = min(self._next_change_s, record.warm_since_s + RAMP_S)
        self._changes += 1

    def _change_what_is_due(self) -> None:
        now_s = self._clock()
        later: list[float] = []
        for uid, record in list(self._records.items()):
            if record.out:
                if record.out_until_s > now_s:
                    later.append(record.out_until_s)
                    continue
                self._try(uid, record)
                self._changes += 1
            elif record.warm_since_s != _NEVER:
                if record.warm_since_s + RAMP_S > now_s:
                    later.append(record.warm_since_s + RAMP_S)
                    continue
                record.warm_since_s = _NEVER
                record.pause_s = FIRST_PAUSE_S
                del self._recovering[uid]
                if not record.failures:
                    del self._records[uid]
                self._changes += 1
        self._next_change_s = min(later, default=_NEVER)


def _allowance(record: _Record, now_s: float) -> float:
    """Requests that an incarnation that recovers may have at once."""
    if record.on_trial:
        return 1
    return float(2 ** (1 + int((now_s - record.warm_since_s) / DOUBLING_S)))
