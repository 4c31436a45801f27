"""An engine's KV blocks: pinned by running sequences, kept by prefix when idle, evicted least recently used first.

Boundary: blocks are handles; what they mean is the workload's business. As in vLLM: a block is kept after its last
user, leaves are given up before their roots, and only leading blocks match.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class CacheListener(Protocol):
    """Hears of blocks as an engine's KV events tell them."""

    def stored(self, chain: Sequence[int], start: int, end: int) -> None:
        """Blocks `start` to `end` of a chain are there now."""

    def removed(self, block: int) -> None:
        """A block is gone."""


class Holding:
    """The blocks of one sequence."""

    __slots__ = ("anonymous", "chain", "pinned")

    def __init__(self, chain: Sequence[int]) -> None:
        self.chain = chain
        """Handles of the prompt's full blocks, from the root."""
        self.pinned = 0
        """Leading blocks of the chain that are held by handle."""
        self.anonymous = 0
        """Blocks without a handle: being filled, or equal to one that is there already."""


class PrefixCache:
    """A fixed number of blocks."""

    def __init__(self, capacity: int, listener: CacheListener | None = None) -> None:
        self.capacity: Final = capacity
        self._listener = listener
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._anonymous = 0

    @property
    def in_use(self) -> int:
        """Blocks that running sequences hold."""
        return len(self._pins) + self._anonymous

    @property
    def kept(self) -> int:
        """Blocks that nobody holds, but that would be found."""
        return len(self._idle)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1 (as `vllm:kv_cache_usage_perc`)."""
        return self.in_use / self.capacity

    def match(self, chain: Sequence[int]) -> int:
        """Leading blocks of a chain that are there."""
        pins, idle = self._pins, self._idle
        for count, block in enumerate(chain):
            if block not in pins and block not in idle:
                return count
        return len(chain)

    def take(self, holding: Holding, matched: int, fresh: int) -> bool:
        """Pins `matched` leading blocks and takes `fresh` new ones; False, and nothing is changed: there is no room."""
        pins, idle = self._pins, self._idle
        chain = holding.chain
        waking = sum(1 for block in chain[:matched] if block in idle)
        if fresh > self.capacity - len(pins) - self._anonymous - waking:
            return False
        for block in chain[:matched]:
            if block in pins:
                pins[block] += 1
            else:
                del idle[block]
                pins[block] = 1
        holding.pinned = matched
        self._make_room(fresh)
        holding.anonymous = fresh
        self._anonymous += fresh
        return True

    def grow(self, holding: Holding) -> bool:
        """One block more; False where every block is in use."""
        if len(self._pins) + self._anonymous >= self.capacity:
            return False
        self._make_room(1)
        holding.anonymous += 1
        self._anonymous += 1
        return True

    def publish(self, holding: Holding, upto: int) -> None:
        """Gives handles to the blocks of a chain that have been filled: from the first without one up to `upto`."""
        start = holding.pinned
        chain, pins, idle = holding.chain, self._pins, self._idle
        first_new = start
        for position in range(start, upto):
            block = chain[position]
            if block in pins:
                # A copy: pinned under the one handle, so that one block of room comes back at once.
                pins[block] += 1
            elif block in idle:
                del idle[block]
                pins[block] = 1
            else:
                pins[block] = 1
                continue
            self._tell_stored(chain, first_new, position)
            first_new = position + 1
        if upto > start:
            self._tell_stored(chain, first_new, upto)
            holding.pinned = upto
            holding.anonymous -= upto - start
            self._anonymous -= upto - start

    def release(self, holding: Holding) -> None:
        """Lets a sequence's blocks go: those with a handle are kept until their room is needed, leaves first."""
        pins, idle = self._pins, self._idle
        chain = holding.chain
        for position in range(holding.pinned - 1, -1, -1):
            block = chain[position]
            left = pins[block] - 1
            if left:
                pins[block] = left
            else:
                del pins[block]
                idle[block] = None
        self._anonymous -= holding.anonymous
        holding.pinned = holding.anonymous = 0

    def _tell_stored(self, chain: Sequence[int], start: int, end: int) -> None:
        if end > start and self._listener is not None:
            self._listener.stored(chain, start, end)

    def _make_room(self, fresh: int) -> None:
        short = fresh - (self.capacity - len(self._pins) - len(self._idle) - self._anonymous)
        while short > 0:
            block, _ = self._idle.popitem(last=False)
            short -= 1
            if self._listener is not None:
                self._listener.removed(block)
