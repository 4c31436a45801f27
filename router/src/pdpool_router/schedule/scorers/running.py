"""Running: what the requests that an engine runs already cost one request more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Running(msgspec.Struct, frozen=True):
    """Requests there, ours and others', times the learned time of one decode step."""

    name: ClassVar[str] = "running"

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del asked, work_ms
        return [load.running_ms for load in loads]
