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

    def terms(self, asked: Asked, loads: Sequence[Load]) -> list[float]:
        """Milliseconds per candidate."""
        tokens, cached = asked.tokens, asked.cached
        if not cached:
            return [tokens * load.token_ms for load in loads]
        get = cached.get
        return [(tokens - get(load.uid, 0)) * load.token_ms for load in loads]
