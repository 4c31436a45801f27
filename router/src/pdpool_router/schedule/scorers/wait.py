"""Wait: until an engine begins with one prompt more, its fixed time for a prompt included."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Wait(msgspec.Struct, frozen=True):
    """Prompt tokens that stand before this prompt, over the endpoint's learned speed."""

    name: ClassVar[str] = "wait"

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del asked, work_ms
        return [load.wait_ms for load in loads]
