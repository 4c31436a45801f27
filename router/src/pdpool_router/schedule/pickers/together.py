"""Together: the least costly candidate, and among those about as good the one that the conversation belongs to.

Which one a conversation belongs to is a rendezvous hash of the conversation and the endpoint: every router finds the
same without asking another, and when an endpoint comes or goes only its own conversations move.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Load
    from pdpool_router.schedule.interface import Asked, Chance


class Together(msgspec.Struct, frozen=True):
    """Costs that differ by less than a share of the request's own work count as equal."""

    slack: float = 0.1

    def pick(self, asked: Asked, costs: Sequence[float], loads: Sequence[Load], own_ms: float, rng: Chance) -> int:
        """The position of the chosen candidate."""
        bound = min(costs) + self.slack * own_ms
        near = [at for at, cost in enumerate(costs) if cost <= bound]
        if len(near) == 1:
            return near[0]
        conversation = asked.conversation
        if not conversation:
            return near[int(rng.random() * len(near))]
        return max(near, key=lambda at: (_belongs(conversation, loads[at].uid), loads[at].uid))


@lru_cache(maxsize=65_536)
def _key(uid: str) -> bytes:
    return uid.encode()


def _belongs(conversation: int, uid: str) -> int:
    return xxh3_64_intdigest(_key(uid), conversation)
