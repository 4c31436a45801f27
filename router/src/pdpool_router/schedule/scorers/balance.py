"""Balance: an engine that was given more than its part lately is not given more for the sake of what it holds.

By time alone everybody goes where a shared system prompt is cached already: each saves a little, and one engine ends up
with all new conversations and all that follows from them, since nobody waits as long as the others are idle too.
Computing the beginning once more elsewhere pays for itself with the next ones. So a prompt costs more where more than
the mean was given lately. What only its conversation has still keeps it where it is (`Burden`), unless that engine does
far more than others.

Only where it can be told what others may share: a prompt without messages stays where its prefix is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked


class Balance(msgspec.Struct, frozen=True):
    """What the whole prompt takes to compute, by how far above the mean the engine is."""

    name: ClassVar[str] = "balance"
    weight: float = 8.0
    """At an eighth above the mean a first turn costs once more what all of it takes to compute."""
    least_ms: float = 500.0
    """Added to the mean, so that the first few requests make no excess."""
    later_turns: bool = True
    """Also later turns, as far as an engine is more than a quarter and `least_ms` above the mean."""

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds per candidate."""
        del work_ms
        opening, tokens = asked.opening, asked.tokens
        later = opening < tokens
        if not opening or (later and not self.later_turns):
            return []
        mean_ms = sum([load.recent_ms for load in loads]) / len(loads)
        scale = tokens * self.weight / (mean_ms + self.least_ms)
        bound_ms = 1.25 * mean_ms + self.least_ms if later else mean_ms
        return [
            excess_ms * scale * load.token_ms if (excess_ms := load.recent_ms - bound_ms) > 0 else 0.0 for load in loads
        ]
