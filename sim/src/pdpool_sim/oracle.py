"""Bounds that no routing can beat: the hit rate of one cache for the whole pool, and TTFT without any waiting.

Boundary: for comparison, not rules. There is no load, no time and no split over engines: one LRU cache of the total
size, filled in order of arrival, and each request alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_sim.cache import Holding, PrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdpool_sim.hardware import EngineShape
    from pdpool_sim.workload import Call, Workload


def pooled_hit_rate(workload: Workload, total_blocks: int) -> float:
    """Share of all prompt tokens that one cache of so many blocks would have."""
    asked = sum(call.prompt_tokens for call in workload.calls)
    return sum(held for _, held in _held(workload, total_blocks)) / asked if asked else 0.0


def lone_ttfts(workload: Workload, total_blocks: int, prefill: EngineShape) -> list[float]:
    """Seconds that each prompt's uncached tokens take alone in one step, in ascending order."""
    return sorted(
        prefill.costs.prefill_s(call.prompt_tokens - held, held) for call, held in _held(workload, total_blocks)
    )


def _held(workload: Workload, total_blocks: int) -> Iterator[tuple[Call, int]]:
    """Each call and the tokens of it that the one cache holds when it comes."""
    cache, size = PrefixCache(total_blocks), workload.block_tokens
    for call in workload.calls:
        holding = Holding(call.blocks + call.answer_blocks)
        matched = cache.match(call.blocks[: (call.prompt_tokens - 1) // size])
        yield call, matched * size
        if cache.take(holding, matched, len(holding.chain) - matched):
            cache.publish(holding, len(holding.chain))
            cache.release(holding)
