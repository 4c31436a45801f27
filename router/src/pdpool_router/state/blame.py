"""Who is at fault when decode fails on KV that a prefill handed over: the giver or the taker.

Boundary: evidence and a verdict; what follows is `Endpoints`' business. Decode's 500 looks the same whether decode is
broken or the KV cannot be pulled. What tells them apart is what each of the two did lately with somebody else: a taker
that succeeds without this giver is well, and so is a giver whose KV others take. Where that does not tell them apart
the giver counts: it is replaced by another or by decode's own computing, which shows soon whether decode was the one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container

MEMORY_S: Final = 30.0
NOBODY: Final = ""
"""The giver where decode computed the prompt itself."""


class _Last(NamedTuple):
    other: str
    at_s: float


_Latest = dict[str, tuple[_Last, ...]]
"""uid → what was last, newest first, of two different partners: so that one without a given partner is known."""


class Blame:
    """The latest successes and failures of each giver and taker with different partners."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._good: _Latest = {}
        self._bad: _Latest = {}

    def succeeded(self, giver: str, taker: str) -> None:
        """Decode answered with this giver's KV; `NOBODY`'s: with its own."""
        self._note(self._good, giver, taker)

    def failed(self, giver: str, taker: str) -> str:
        """Decode failed on this giver's KV: who is at fault, as far as anybody can tell."""
        is_takers = self._repute(taker, giver) < self._repute(giver, taker)
        self._note(self._bad, giver, taker)
        return taker if is_takers else giver

    def keep(self, uids: Container[str]) -> None:
        """Forgets every incarnation but these."""
        for latest in (self._good, self._bad):
            for uid in [uid for uid in latest if uid not in uids]:
                del latest[uid]

    def _repute(self, uid: str, without: str) -> int:
        """What it did last with somebody else: 1 succeeded, -1 failed, 0 nothing that is known or recent."""
        good_s, bad_s = _when(self._good, uid, without), _when(self._bad, uid, without)
        if max(good_s, bad_s) <= self._clock() - MEMORY_S:
            return 0
        return 1 if good_s > bad_s else -1

    def _note(self, latest: _Latest, giver: str, taker: str) -> None:
        now_s = self._clock()
        for uid, other in ((giver, taker), (taker, giver)):
            if uid != NOBODY:
                before = latest.get(uid, ())
                rest = before[1:] if before and before[0].other == other else before[:1]
                latest[uid] = (_Last(other, now_s), *rest)


def _when(latest: _Latest, uid: str, without: str) -> float:
    return next((last.at_s for last in latest.get(uid, ()) if last.other != without), float("-inf"))
