"""The index of blocks against a naive model, under any order of events, drops, clears and bounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pdpool_router.kv.index import BlockIndex, Holder, handle_of

HOLDERS = 4
CHAIN = 6
# Two chains that share their first three keys; handles differ per holder, as with engines of different hash seeds.
CHAINS = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 14, 15, 16))
KEYS = sorted({key for chain in CHAINS for key in chain})


def matches(index: BlockIndex, keys: tuple[int, ...]) -> dict[str, int]:
    return {holder.uid: depth for depth, mask in index.match(keys) for holder in index.holders(mask)}


class IndexAgainstModel(RuleBasedStateMachine):
    """Copies per holder and block are the whole truth."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(10**6)
        self.holders: list[Holder] = [self.index.add(f"e{n}") for n in range(HOLDERS)]
        self.model: list[Counter[int]] = [Counter() for _ in range(HOLDERS)]
        self.gone: list[Holder] = []

    @rule(at=st.integers(0, HOLDERS - 1), keys=st.lists(st.sampled_from(KEYS), max_size=8))
    def store(self, at: int, keys: list[int]) -> None:
        self.index.store(self.holders[at], [key * 100 + at for key in keys], keys)
        self.model[at].update(keys)

    @rule(at=st.integers(0, HOLDERS - 1), keys=st.lists(st.sampled_from(KEYS), max_size=8))
    def remove(self, at: int, keys: list[int]) -> None:
        self.index.remove(self.holders[at], [key * 100 + at for key in keys])
        for key in keys:
            if self.model[at][key] > 0:
                self.model[at][key] -= 1

    @rule(at=st.integers(0, HOLDERS - 1))
    def clear(self, at: int) -> None:
        self.index.clear(self.holders[at])
        self.model[at].clear()

    @rule(at=st.integers(0, HOLDERS - 1))
    def replace(self, at: int) -> None:
        self.gone.append(self.holders[at])
        self.index.drop(self.holders[at])
        self.holders[at] = self.index.add(f"e{at}")
        self.model[at].clear()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def late_events(self, keys: list[int]) -> None:
        """What is said of a holder that is gone is without effect (Q60, Q61)."""
        for holder in self.gone:
            self.index.store(holder, keys, keys)
            self.index.remove(holder, keys)
            self.index.clear(holder)
            self.index.drop(holder)

    @rule()
    def sweep(self) -> None:
        self.index.sweep()

    @invariant()
    def matches_are_true(self) -> None:
        for chain in CHAINS:
            expected = {}
            for at in range(HOLDERS):
                depth = 0
                while depth < len(chain) and self.model[at][chain[depth]] > 0:
                    depth += 1
                if depth:
                    expected[f"e{at}"] = depth
            assert matches(self.index, chain) == expected
        assert self.index.size == sum(sum(1 for n in model.values() if n > 0) for model in self.model)

    @invariant()
    def swept_is_empty(self) -> None:
        """Once nothing is held and everything is swept, nothing is kept."""
        if not self.index.size:
            while self.index.sweep():
                pass
            assert not self.index._masks


TestIndexAgainstModel = IndexAgainstModel.TestCase
TestIndexAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=300), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_whatever_is_stored(stored: list[tuple[int, int]], bound: int) -> None:
    """Never more blocks than the bound; what is left is told truly, and engines' later removals do no harm."""
    index = BlockIndex(bound)
    holders = [index.add(f"e{n}") for n in range(3)]
    for at, key in stored:
        index.store(holders[at], [key], [key])
        assert index.size == sum(len(holder.blocks) for holder in holders) <= bound
    for at, key in stored:
        held = key in holders[at].blocks
        assert (f"e{at}" in matches(index, (key,))) == held
    for at, key in stored:
        index.remove(holders[at], [key] * len(stored))
    assert index.size == 0
    assert not index._masks


def test_what_is_asked_for_outlives_what_is_not() -> None:
    """A prefix that requests keep asking for stays, however much else is stored."""
    index = BlockIndex(1000)
    holder = index.add("e")
    hot = list(range(50))
    index.store(holder, hot, hot)
    for start in range(1000, 20_000, 100):
        fresh = list(range(start, start + 100))
        index.store(holder, fresh, fresh)
        assert matches(index, tuple(hot)) == {"e": 50}
    assert index.size <= 1000
    assert index.evictions > 15_000


def test_copies_are_counted() -> None:
    """A block stored three times is there until its third removal."""
    index = BlockIndex(10)
    holder = index.add("e")
    for _ in range(3):
        index.store(holder, [7], [1])
    for left in (2, 1):
        index.remove(holder, [7])
        assert matches(index, (1,)) == {"e": 1}, left
    index.remove(holder, [7])
    assert matches(index, (1,)) == {}


@pytest.mark.parametrize(("name", "handle"), [(5, 5), (2**64 - 1, 2**60 - 1), (b"\x00" * 31 + b"\x05", 5), (b"", 0)])
def test_names_of_blocks_may_be_numbers_or_bytes(name: Any, handle: int) -> None:
    """Either becomes a number that takes little memory."""
    assert handle_of(name) == handle


def test_many_lives_use_few_bits() -> None:
    """Bits of holders that are gone are used again once swept, so that masks stay short."""
    index = BlockIndex(10**6)
    for life in range(300):
        holder = index.add(f"e{life}")
        index.store(holder, [1, 2, life], [1, 2, life])
        index.drop(holder)
        index.sweep()
    assert len(index._holders) < 5
    assert matches(index, (1, 2)) == {}
