"""A request's leg at one engine: what it needs, what it holds, how far it is.

Boundary: a record that its engine writes. A leg that pulls gets its prompt's KV from elsewhere; a leg that keeps its
blocks holds them after its end until somebody has pulled them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pdpool_sim.cache import Holding

if TYPE_CHECKING:
    from collections.abc import Sequence


class Owner(Protocol):
    """Hears what becomes of a leg."""

    def admitted(self, leg: Leg) -> None:
        """It has a seat and blocks, and `cached_tokens` is known; its engine now waits for `arrived` if it pulls."""

    def started(self, leg: Leg) -> None:
        """Its first token is there."""

    def finished(self, leg: Leg) -> None:
        """Its last token is there."""


class Leg:
    """One leg."""

    __slots__ = (
        "base_tokens",
        "cached_tokens",
        "computed_tokens",
        "expected_tokens",
        "growth_step",
        "has_token",
        "holding",
        "joined_step",
        "keeps_blocks",
        "last_step",
        "left_tokens",
        "owner",
        "paused_s",
        "prompt_tokens",
        "pulls",
        "target_tokens",
    )

    def __init__(
        self,
        owner: Owner,
        prompt_tokens: int,
        output_tokens: int,
        chain: Sequence[int],
        *,
        pulls: bool = False,
        keeps_blocks: bool = False,
    ) -> None:
        self.owner = owner
        self.prompt_tokens = prompt_tokens
        self.target_tokens = prompt_tokens
        """Tokens that must have KV before the next token is made; more than the prompt after a pre-emption."""
        self.left_tokens = output_tokens
        """Tokens to make, counted when it last joined the batch."""
        self.holding = Holding(chain)
        self.pulls = pulls
        self.keeps_blocks = keeps_blocks
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.expected_tokens = 0
        """What whoever sent it expected to be computed; 0 once it is."""
        self.has_token = False
        self.joined_step = 0
        """Step of its engine after which it joined the decoding batch."""
        self.base_tokens = 0
        """Places in the cache that its first decoding step needs."""
        self.last_step = 0
        """Step of its engine that makes its last token."""
        self.growth_step = 0
        """Step of its engine after which it needs a further block."""
        self.paused_s = -1.0
        """When it was pre-empted; negative: it is not."""
