"""What a policy is: `plan` before the prefill leg, `place` after it; and what scorers and pickers are.

Boundary: types only. Both functions are synchronous and pure: they read a snapshot, and time and chance are
arguments, so that the simulator runs the very same code on a virtual clock. Why two: decode is chosen when prefill
has answered, on what is known then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from pdpool_router.records import Decision, Load, Match, Request, Snapshot, TokenKeys, Unplaced


class Asked(msgspec.Struct, frozen=True):
    """What scorers may know of a request."""

    tokens: int
    """Tokens of the prompt, as far as can be told."""
    cached: Mapping[str, int]
    """uid → tokens of it that the endpoint holds; absent: none."""
    inflight: Mapping[str, int]
    """uid → requests of ours in flight there."""
    conversation: int = 0
    """What stays the same over the turns of a conversation; 0: not known."""
    opening: int = 0
    """Tokens up to the end of the conversation's first message, which others may share; 0: not known.

    What comes after them no other conversation has.
    """


class Chance(Protocol):
    """The part of `random.Random` that policies use."""

    def random(self) -> float:
        """A uniform number in [0, 1)."""
        ...


class Scorer(Protocol):
    """One term of the sum."""

    @property
    def name(self) -> str:
        """What explanations call it."""
        ...

    def terms(self, asked: Asked, loads: Sequence[Load], work_ms: Sequence[float]) -> list[float]:
        """Milliseconds that each candidate costs on this account; empty: nothing, for none of them.

        `work_ms` is what the tokens that each lacks take to compute there: several terms are made of it. Empty where
        nothing is computed, which is at decode after a hop.
        """
        ...


class Picker(Protocol):
    """From costs to a candidate."""

    def pick(self, asked: Asked, costs: Sequence[float], loads: Sequence[Load], own_ms: float, rng: Chance) -> int:
        """The position of the chosen candidate; `own_ms` is what the request's own work takes at the least costly."""
        ...


class Policy(Protocol):
    """A way to choose endpoints."""

    reads_prefixes: bool
    """Prompts need keys."""

    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """Two legs or one, and the first endpoint; or why nothing can be chosen."""
        ...

    def place(
        self,
        request: Request,
        ids: TokenKeys | None,
        snapshot: Snapshot,
        now_s: float,
        rng: Chance,
        *,
        match: Match | None = None,
    ) -> Decision | None:
        """The decode endpoint, of the request's `revision`; None where there is none.

        `ids` are the prompt's token ids where the prefill answer told them; else `match` is what `plan` found, if
        it still holds.
        """
        ...

    def explain(self, request: Request, snapshot: Snapshot, now_s: float) -> dict[str, Any]:
        """Every candidate with each term of the sum, for people."""
        ...
