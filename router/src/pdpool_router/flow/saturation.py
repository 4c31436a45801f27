"""PURE: how many prompt tokens the stage that is short can still take.

Boundary: a figure from a snapshot; who waits for it is `admission`. Engines serve first come, first served, so that a
long line in them would undo priorities and fair shares, and would be lost with the engine. They get enough to stay
busy (`FULL_MS` of prompts each), and the rest waits in the router. A decode engine that has not begun to answer
`FULL_LEGS` requests gets no more: each of them pins KV at prefill until its lease ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_router.records import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Endpoint, Snapshot

FULL_MS: Final = 5_000.0
FULL_LEGS: Final = 256
_LEAST_TOKENS: Final = 8_192.0  # however slow an engine is, it can have one ordinary prompt


def spare_tokens(snapshot: Snapshot) -> float:
    """Prompt tokens that may go on; 0: none, infinite: there is nobody to be short."""
    answering = snapshot.aggregated or snapshot.decode
    if answering and all(_load(snapshot, each).unstarted >= FULL_LEGS for each in answering):
        return 0.0
    computing: Sequence[Endpoint] = snapshot.aggregated or snapshot.prefill or snapshot.decode
    if not computing:
        return float("inf")
    return sum(max(0.0, _capacity(load) - load.unstarted_tokens) for load in (_load(snapshot, it) for it in computing))


def _load(snapshot: Snapshot, endpoint: Endpoint) -> Load:
    return snapshot.loads.get(endpoint.uid) or Load(endpoint.uid)


def _capacity(load: Load) -> float:
    return max(_LEAST_TOKENS, FULL_MS / load.token_ms) if load.token_ms else float("inf")
