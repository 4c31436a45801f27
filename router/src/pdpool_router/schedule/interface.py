"""What a policy is: `plan` before the prefill leg, `place` after it.

Boundary: types only. Both functions are synchronous and pure: they read a snapshot, and time and chance are
arguments, so that the simulator runs the very same code on a virtual clock. Why two: decode is chosen when prefill
has answered, on what is known then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Decision, Endpoint, Request, Snapshot, Unplaced


class Chance(Protocol):
    """The part of `random.Random` that policies use."""

    def random(self) -> float:
        """A uniform number in [0, 1)."""
        ...


class Policy(Protocol):
    """A way to choose endpoints."""

    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """Two legs or one, and the first endpoint; or why nothing can be chosen."""
        ...

    def place(
        self,
        request: Request,
        ids: Sequence[int] | None,
        snapshot: Snapshot,
        now_s: float,
        rng: Chance,
    ) -> Endpoint | None:
        """The decode endpoint, of the request's `revision`; None where there is none.

        `ids` are the prompt's token ids where the prefill answer told them.
        """
        ...
