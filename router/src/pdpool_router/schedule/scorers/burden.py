"""Burden: what is computed again somewhere is paid by everybody who comes after, and pushes out what others use.

Where a server is busy for a share u of its time, a second of work delays those behind it by u / (1 - u) seconds in all
(the busy period of M/G/1): 24 at 96 %. Its own request does not feel that, so greedy time throws prefixes away.
Only what no other conversation has is a burden: a prefix that many share pays for itself wherever it is computed, and
must not pile up where it was first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Burden(msgspec.Struct, frozen=True):
    """The compute term once more for those who come after, as far as it is the conversation's own."""

    name: ClassVar[str] = "burden"
    weight: float = 24.0

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        weight = self.weight
        later = asked.tokens - asked.opening if asked.opening else 0
        if not later:
            return []
        return [
            (own_ms if (most_ms := later * load.token_ms) > own_ms else most_ms) * weight
            for load, own_ms in zip(loads, work_ms, strict=True)
        ]
