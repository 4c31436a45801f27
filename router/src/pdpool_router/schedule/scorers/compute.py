"""Compute: the prompt's tokens that an endpoint does not hold, over its learned speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Compute(msgspec.Struct, frozen=True):
    """Uncached tokens times the endpoint's time for one."""

    name: ClassVar[str] = "compute"

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del asked, loads
        return list(work_ms)
