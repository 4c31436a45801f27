"""What a scaling rule sees and answers.

Boundary: shapes. Everything that any of the rules reads stands in `Seen`; None is what could not be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pdpool_sim.run import Slo
    from pdpool_sim.scaling.fluid import Flows
    from pdpool_sim.scaling.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Rates:
    """What one replica can do, as a profiler would have measured it."""

    prefill_tokens_s: float
    """Prompt tokens a second."""
    decode_tokens_s: float
    """Output tokens a second within the ITL of the SLO."""
    kv_tokens: int
    """Of a decode replica."""
    context_tokens: int
    """Longest prompt that a request may have."""
    max_seqs: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """What every rule must keep to."""

    least: int
    most: int
    slo: Slo
    rates: Rates


@dataclass(frozen=True, slots=True)
class Seen:
    """A moment."""

    now: float
    prefill: Replicas
    decode: Replicas
    flows: Flows | None
    """None: nothing could be read."""
    prompt_tokens: float
    """Mean prompt of late."""
    output_tokens: float


class Scaler(Protocol):
    """A scaling rule."""

    interval_s: int

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """Sizes of prefill and decode; what is outside the bounds is cut."""
