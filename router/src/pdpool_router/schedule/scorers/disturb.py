"""Disturb: a prompt computed where others decode makes every one of them wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Disturb(msgspec.Struct, frozen=True):
    """The compute term once more for each request that runs there, weighed."""

    name: ClassVar[str] = "disturb"
    weight: float = 0.05
    """What a millisecond of another request's wait counts against one of this request's own."""

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del asked
        weight = self.weight
        return [own_ms * weight * (load.requests + load.others) for load, own_ms in zip(loads, work_ms, strict=True)]
