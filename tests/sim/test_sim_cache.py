"""The simulator's prefix cache against a naive one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdpool_sim.cache import Holding, PrefixCache


class Naive:
    """Blocks as lists: least recently released first, leaves before roots; slow and obvious."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.users: dict[int, int] = {}
        self.idle: list[int] = []

    def match(self, chain: tuple[int, ...]) -> int:
        count = 0
        while count < len(chain) and (chain[count] in self.users or chain[count] in self.idle):
            count += 1
        return count

    def begin(self, chain: tuple[int, ...]) -> bool:
        matched = self.match(chain)
        kept = [block for block in self.idle if block not in chain[:matched]]
        if len(self.users) + len([b for b in chain if b not in self.users]) > self.capacity:
            return False
        for block in chain[:matched]:
            self.users[block] = self.users.get(block, 0) + 1
        self.idle = kept
        fresh = len(chain) - matched
        while len(self.users) + len(self.idle) + fresh > self.capacity:
            self.idle.pop(0)
        for block in chain[matched:]:
            if block in self.idle:
                self.idle.remove(block)
            self.users[block] = self.users.get(block, 0) + 1
        return True

    def end(self, chain: tuple[int, ...]) -> None:
        for block in reversed(chain):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle.append(block)


class Heard:
    """What KV events tell."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def stored(self, chain: Any, start: int, end: int) -> None:
        for block in chain[start:end]:
            assert block not in self.blocks, "stored twice"
            self.blocks.add(block)

    def removed(self, block: int) -> None:
        self.blocks.remove(block)


def chain_of(words: list[int]) -> tuple[int, ...]:
    """Chained ids: equal exactly as far as the words before agree."""
    chain: list[int] = []
    for word in words:
        chain.append(hash((tuple(chain), word)))
    return tuple(chain)


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(chain_of), min_size=1, max_size=30)


@given(prompts, st.integers(5, 12), st.randoms(use_true_random=False))
def test_holds_the_blocks_that_a_naive_lru_holds(chains: list[tuple[int, ...]], capacity: int, rng: Any) -> None:
    """Any order of beginnings and ends leaves the blocks of the naive cache, never more than fit, as events told."""
    heard = Heard()
    cache, naive = PrefixCache(capacity, heard), Naive(capacity)
    running: list[Holding] = []
    for chain in chains:
        while running and rng.random() < 0.5:
            holding = running.pop(rng.randrange(len(running)))
            naive.end(tuple(holding.chain))
            cache.release(holding)
        matched = cache.match(chain)
        assert matched == naive.match(chain)
        holding = Holding(chain)
        took = cache.take(holding, matched, len(chain) - matched)
        # A copy of a block that another still fills takes room until it is published: then the naive one has room.
        if took:
            assert naive.begin(chain)
            cache.publish(holding, len(chain))
            running.append(holding)
        assert cache.in_use + cache.kept <= capacity
        assert heard.blocks == set(naive.users) | set(naive.idle)
        assert cache.in_use == len(naive.users)
    for holding in running:
        naive.end(tuple(holding.chain))
        cache.release(holding)
    assert cache.in_use == 0
    assert {chain[0] for chain in chains if cache.match(chain)} <= heard.blocks


def test_refuses_what_does_not_fit_and_changes_nothing() -> None:
    """A sequence without room leaves pins, idle blocks and room as they were."""
    cache = PrefixCache(4)
    first = Holding((1, 2))
    assert cache.take(first, 0, 2)
    cache.publish(first, 2)
    cache.release(first)
    other = Holding((1, 2, 3, 4, 5))
    assert not cache.take(other, 2, 3)
    assert (cache.in_use, cache.kept) == (0, 2)
    assert cache.match((1, 2, 3)) == 2
