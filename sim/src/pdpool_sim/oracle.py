"""The best hit rate that caches of a total size allow: one LRU cache for the whole pool, filled in order of arrival.

Boundary: a bound for comparison, not a rule. It has no load, no time and no split over engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_sim.cache import Holding, PrefixCache

if TYPE_CHECKING:
    from pdpool_sim.workload import Workload


def pooled_hit_rate(workload: Workload, total_blocks: int) -> float:
    """Share of all prompt tokens that one cache of so many blocks would have."""
    cache, size = PrefixCache(total_blocks), workload.block_tokens
    hits = asked = 0
    for call in workload.calls:
        holding = Holding(call.blocks + call.answer_blocks)
        matched = cache.match(call.blocks[: (call.prompt_tokens - 1) // size])
        hits += matched * size
        asked += call.prompt_tokens
        if cache.take(holding, matched, len(holding.chain) - matched):
            cache.publish(holding, len(holding.chain))
            cache.release(holding)
    return hits / asked if asked else 0.0
