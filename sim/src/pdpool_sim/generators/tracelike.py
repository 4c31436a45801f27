"""A workload with the statistics of the conversation trace, for where the trace itself is not at hand.

Boundary: marginals and reuse, not the very requests. The trace is Mooncake's (FAST'25, kvcache-ai/Mooncake,
Apache-2.0); its figures are in `docs/simulator.md`: 12,031 requests in 59 minutes, prompts of 12,035 tokens on average
(median 6,909, 5 % above 39,552, 1 % above 85,401), answers of 343, 37 % of prompt tokens seen before.
"""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING, Final

from pdpool_sim.generators.text import Blocks, total
from pdpool_sim.workload import TRACE_BLOCK_TOKENS, Call, Workload, in_order

if TYPE_CHECKING:
    from random import Random

    from pdpool_sim.generators.text import Piece

PROMPTS: Final = (
    (0, 891),
    (0.05, 901),
    (0.25, 2306),
    (0.5, 6909),
    (0.75, 15_368),
    (0.9, 27_367),
    (0.95, 39_552),
    (0.99, 85_401),
    (1, 126_195),
)
ANSWERS: Final = (
    (0, 1),
    (0.05, 10),
    (0.25, 156),
    (0.5, 350),
    (0.75, 472),
    (0.9, 597),
    (0.95, 698),
    (0.99, 1120),
    (1, 2000),
)
"""Quantiles of the trace."""
CONTINUED: Final = 0.36
"""How often a request continues one before it."""
GAP_S: Final = 70.0
"""Mean time between the turns of one conversation, at one request a second (the trace has 3.4 a second)."""


def trace_like(rng: Random, count: int) -> Workload:
    """Conversations whose prompts and answers have the trace's lengths; all share one first block."""
    blocks, calls = Blocks(TRACE_BLOCK_TOKENS), list[Call]()
    open_: list[tuple[float, int, list[Piece]]] = []
    at_s = 0.0
    for number in range(count):
        at_s += rng.expovariate(1)
        ready = [index for index, (due_s, _, _) in enumerate(open_) if due_s <= at_s]
        wanted = round(_drawn(PROMPTS, rng.random()))
        pieces: list[Piece] = [("system", TRACE_BLOCK_TOKENS)]
        session = number
        if ready and rng.random() < CONTINUED:
            _, session, pieces = open_.pop(rng.choice(ready))
            wanted = max(wanted // 6, 50) + total(pieces)
        pieces = [*pieces, (f"said {number}", max(30, min(126_000, wanted) - total(pieces)))]
        output = max(1, round(_drawn(ANSWERS, rng.random())))
        size, opening = total(pieces), total(pieces[:2])
        calls.append(Call(number, at_s, size, output, blocks.ids(pieces), session=str(session), opening_tokens=opening))
        open_.append((at_s + rng.expovariate(1 / GAP_S), session, [*pieces, (f"answered {number}", output)]))
        if len(open_) > 400:  # noqa: PLR2004 - conversations that are never taken up again
            open_.pop(0)
    return in_order("trace-like", TRACE_BLOCK_TOKENS, calls)


def _drawn(quantiles: tuple[tuple[float, float], ...], at: float) -> float:
    """The value at a quantile, linear between those that are given."""
    place = min(bisect([share for share, _ in quantiles], at), len(quantiles) - 1)
    (low, small), (high, large) = quantiles[place - 1], quantiles[place]
    return small + (large - small) * (at - low) / (high - low)
