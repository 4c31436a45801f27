"""Inflight: requests at an endpoint, whatever they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Inflight(msgspec.Struct, frozen=True):
    """Each request, ours or another's, counts the same."""

    name: ClassVar[str] = "inflight"
    request_ms: float = 1.0

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate; the unit matters only beside other terms."""
        del work_ms
        get, each = asked.inflight.get, self.request_ms
        return [(get(load.uid, 0) + load.others) * each for load in loads]
