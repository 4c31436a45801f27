"""The cache-aware tree, as documented by SMG, vllm-router and SGLang.

Boundary: prefill by the tree; decode by power of two, as their P/D modes pair them. The tree is of what was sent, not
of what an engine holds; its bound is given as many blocks as the engine has, which is generous.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pdpool_sim.rule import Chosen, Reports
from pdpool_sim.rules.simple import power_of_two

if TYPE_CHECKING:
    from pdpool_sim.rule import Setting
    from pdpool_sim.workload import Call

BALANCE_ABSOLUTE: Final = 64
BALANCE_RELATIVE: Final = 1.5
CACHE_THRESHOLD: Final = 0.5


class SentTree:
    """Prefixes sent to one endpoint, evicted least recently used first; chained ids make a flat map a tree."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: tuple[int, ...]) -> int:
        """Leading blocks that were sent before."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def insert(self, blocks: tuple[int, ...]) -> None:
        """A prompt was sent."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._bound:
            self._blocks.popitem(last=False)


class CacheAwareTree(Reports):
    """The longest match above a share of the prompt, unless loads are far apart."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._trees = {engine.uid: SentTree(engine.cache.capacity) for engine in setting.prefill.engines}

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        uid = self._choose(call)
        self._trees[uid].insert(call.blocks)
        return Chosen(uid)

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        return power_of_two(self._setting.decode, self._setting.rng)

    def _choose(self, call: Call) -> str:
        inflight, trees = self._setting.prefill.inflight, self._trees
        most, least = max(inflight.values()), min(inflight.values())
        if most - least > BALANCE_ABSOLUTE and most > BALANCE_RELATIVE * least:
            return min(inflight, key=inflight.__getitem__)
        matches = {uid: tree.match(call.blocks) for uid, tree in trees.items()}
        longest = max(matches, key=matches.__getitem__)
        if matches[longest] * self._setting.block_tokens > CACHE_THRESHOLD * call.prompt_tokens:
            return longest
        return min(trees, key=lambda uid: len(trees[uid]))
