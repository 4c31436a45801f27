"""Who is at fault when decode fails on KV that a prefill handed over: the giver or the taker.

Boundary: evidence and a verdict; what follows is `Endpoints`' business. Decode's 500 looks the same whether decode is
broken or the KV cannot be pulled. What tells them apart is what each of the two did lately with somebody else: a taker
that succeeds without this giver is well, and so is a giver whose KV others take. Where that does not tell them apart
the giver counts: it is replaced by another or by decode's own computing, which shows soon whether decode was the one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container

MEMORY_S: Final = 30.0
NOBODY: Final = ""
"""The giver where decode computed the prompt itself."""
_NEVER: Final = float("-inf")
_Pairs = dict[tuple[str, str], float]


class Blame:
    """When each pair of giver and taker last succeeded and last failed."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._good: _Pairs = {}
        self._bad: _Pairs = {}

    def succeeded(self, giver: str, taker: str) -> None:
        """Decode answered with this giver's KV; `NOBODY`'s: with its own."""
        self._good[giver, taker] = self._clock()

    def failed(self, giver: str, taker: str) -> str:
        """Decode failed on this giver's KV: who is at fault, as far as anybody can tell."""
        is_takers = self._repute(taker, giver) < self._repute(giver, taker)
        self._bad[giver, taker] = self._clock()
        return taker if is_takers else giver

    def keep(self, uids: Container[str]) -> None:
        """Forgets every incarnation but these."""
        for pairs in (self._good, self._bad):
            for pair in [pair for pair in pairs if not all(uid in uids or uid == NOBODY for uid in pair)]:
                del pairs[pair]

    def _repute(self, uid: str, without: str) -> int:
        """What it did last with somebody else: 1 succeeded, -1 failed, 0 nothing that is known or recent."""
        good_s, bad_s = _last(self._good, uid, without), _last(self._bad, uid, without)
        if max(good_s, bad_s) <= self._clock() - MEMORY_S:
            return 0
        return 1 if good_s > bad_s else -1


def _last(pairs: _Pairs, uid: str, without: str) -> float:
    # Walked only where something failed.
    return max((at_s for pair, at_s in pairs.items() if uid in pair and without not in pair), default=_NEVER)
