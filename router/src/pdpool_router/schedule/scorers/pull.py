"""Pull: the KV that a decode endpoint lacks, over its learned transfer rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Pull(msgspec.Struct, frozen=True):
    """Tokens that decode lacks times its time to pull one token's KV."""

    name: ClassVar[str] = "pull"

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del work_ms
        tokens, cached = asked.tokens, asked.cached
        if not cached:
            return [tokens * load.pull_ms for load in loads]
        get = cached.get
        return [(tokens - get(load.uid, 0)) * load.pull_ms for load in loads]
