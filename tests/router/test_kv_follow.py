"""Following a publisher through losses, restarts and short memories: what is believed is never more than the truth."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdpool_api.engines.vllm.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored
from pdpool_router.kv import events
from pdpool_router.kv.follow import Follower
from pdpool_router.kv.knowledge import Prefixes

BLOCKS = st.integers(0, 9)


def stored(block: int) -> BlockStored:
    return BlockStored([block], None, [block], 1)


class Believer:
    """A follower's target with a real index."""

    def __init__(self) -> None:
        self.known = Prefixes(1000)
        self.asked: list[int] = []
        self.gaps = 0
        self.forgotten = 0

    def apply(self, batch: Batch) -> None:
        events.apply(self.known, self.known.told("e", 0), batch)

    def forget(self) -> None:
        self.forgotten += 1
        self.known.blocks.clear(self.known.told("e", 0))

    def ask(self, start: int) -> None:
        self.asked.append(start)

    def gap(self) -> None:
        self.gaps += 1

    def believes(self) -> set[int]:
        return set(self.known.told("e", 0).blocks)


class PublisherAndFollower(RuleBasedStateMachine):
    """An engine whose live messages may be lost, that forgets old ones for replay, and that may begin a new life."""

    def __init__(self) -> None:
        super().__init__()
        self.believer = Believer()
        self.replays = True
        self.follower = Follower(self.believer, replays=True)
        self.short = False
        self.failed = False
        self.now_s = 0.0
        self._new_life()
        self.follower.connected()

    def _new_life(self) -> None:
        self.truth: dict[int, int] = {}
        self.number = 0
        self.buffer: deque[tuple[int, Batch]] = deque(maxlen=4 if self.short else None)

    @rule(short=st.booleans(), replays=st.booleans())
    @precondition(lambda self: not self.number)
    def configure(self, *, short: bool, replays: bool) -> None:
        self.short = short
        self.believer = Believer()
        self.follower = Follower(self.believer, replays=replays)
        self._new_life()
        self.follower.connected()
        self.replays = replays

    @rule(store=st.lists(BLOCKS, max_size=3), remove=st.lists(BLOCKS, max_size=3), heard=st.booleans())
    def publish(self, store: list[int], remove: list[int], *, heard: bool) -> None:
        batch = self._batch()
        for block in remove:
            if self.truth.get(block):
                self.truth[block] -= 1
                batch.events.append(BlockRemoved([block]))
        for block in store:
            self.truth[block] = self.truth.get(block, 0) + 1
            batch.events.append(stored(block))
        self._send(batch, heard=heard)

    def _batch(self) -> Batch:
        self.now_s += 1
        return Batch(self.now_s, [])

    def _send(self, batch: Batch, *, heard: bool) -> None:
        self.buffer.append((self.number, batch))
        if heard:
            self.follower.live(self.number, batch)
        self.number += 1

    @rule(heard=st.booleans())
    def clear(self, *, heard: bool) -> None:
        self.truth.clear()
        batch = self._batch()
        batch.events.append(AllBlocksCleared())
        self._send(batch, heard=heard)

    @rule(noticed=st.booleans(), first=st.booleans())
    def restart(self, *, noticed: bool, first: bool) -> None:
        """A new life: the connection is made anew, or (behind an address that stays) only the numbers begin again."""
        before = self.number
        self.failed = False
        self._new_life()
        if noticed or not before or not first:
            self.follower.connected()
        else:
            self._send(self._batch(), heard=True)

    @rule(fails=st.booleans())
    @precondition(lambda self: self.follower.replaying)
    def replay(self, *, fails: bool) -> None:
        """The replay that was asked for is answered, from what is still remembered; or it never ends."""
        start = self.believer.asked[-1]
        for number, batch in self.buffer:
            if number >= start:
                self.follower.replayed(number, batch)
        self.failed = self.failed or fails
        self.follower.replay_ended(whole=not fails)

    def held(self) -> set[int]:
        return {block for block, copies in self.truth.items() if copies > 0}

    @rule()
    def settle(self) -> None:
        """One more live batch shows what was missed; after its replay nothing false is believed."""
        self._send(self._batch(), heard=True)
        if self.follower.replaying:
            start = self.believer.asked[-1]
            for number, batch in self.buffer:
                if number >= start:
                    self.follower.replayed(number, batch)
            self.follower.replay_ended(whole=True)
        assert self.believer.believes() <= self.held()
        if self.replays and not self.short and not self.failed:
            assert self.believer.believes() == self.held()

    @invariant()
    def nothing_odd(self) -> None:
        assert self.believer.known.blocks.size == len(self.believer.believes())


TestPublisherAndFollower = PublisherAndFollower.TestCase
TestPublisherAndFollower.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def following(*, replays: bool = True) -> tuple[Believer, Follower]:
    believer = Believer()
    follower = Follower(believer, replays=replays)
    follower.connected()
    if replays:
        follower.replay_ended(whole=True)
    return believer, follower


def test_a_gap_is_asked_for_once_and_made_good() -> None:
    """0 to 9, then 13: a replay from 10, once; the removals in it count (Q59)."""
    believer, follower = following()
    for number in range(10):
        follower.live(number, Batch(0.0, [stored(number)]))
    follower.live(13, Batch(0.0, []))
    follower.live(14, Batch(0.0, []))
    assert believer.asked == [0, 10]
    for number in (10, 11, 12):
        follower.replayed(number, Batch(0.0, [BlockRemoved(list(range(10)))]))
    follower.replayed(13, Batch(0.0, []))
    follower.replay_ended(whole=True)
    assert believer.believes() == set()
    assert believer.gaps == 1
    follower.live(15, Batch(0.0, [stored(1)]))
    assert believer.believes() == {1}


def test_a_gap_without_replay_empties_the_index() -> None:
    """What was told so far may be gone: it is forgotten, and counted (Q59)."""
    believer, follower = following(replays=False)
    for number in range(3):
        follower.live(number, Batch(0.0, [stored(number)]))
    follower.live(7, Batch(0.0, [stored(7)]))
    assert believer.believes() == {7}
    assert believer.gaps == 1


def test_a_replay_that_begins_late_empties_the_index() -> None:
    """The engine no longer remembers all: what it forgot may have been removals."""
    believer, follower = following()
    for number in range(3):
        follower.live(number, Batch(0.0, [stored(number)]))
    follower.live(90, Batch(0.0, []))
    follower.replayed(80, Batch(0.0, [stored(8)]))
    for number in range(81, 91):
        follower.replayed(number, Batch(0.0, []))
    follower.replay_ended(whole=True)
    assert believer.believes() == {8}


def test_a_new_life_begins_empty() -> None:
    """Numbers that begin again at the same address are another engine (Q60)."""
    for replays in (True, False):
        believer, follower = following(replays=replays)
        for number in range(51):
            follower.live(number, Batch(0.0, [stored(number % 10)]))
        follower.live(0, Batch(0.0, [stored(9)]))
        if replays:
            assert believer.asked[-1] == 0
            follower.replayed(0, Batch(0.0, [stored(9)]))
            follower.replay_ended(whole=True)
        assert believer.believes() == {9}
        follower.live(1, Batch(0.0, [stored(2)]))
        assert believer.believes() == {9, 2}


def test_a_fresh_router_learns_by_replay() -> None:
    """What was published before it came is asked for; what comes meanwhile waits and is not counted twice."""
    believer = Believer()
    follower = Follower(believer, replays=True)
    follower.connected()
    follower.live(3, Batch(0.0, [stored(3)]))
    for number in range(4):
        follower.replayed(number, Batch(0.0, [stored(number)]))
    follower.replay_ended(whole=True)
    assert believer.believes() == {0, 1, 2, 3}
    follower.live(4, Batch(0.0, [BlockRemoved([3])]))
    assert believer.believes() == {0, 1, 2}
    assert believer.gaps == 0


def test_what_a_replay_told_may_still_come_late() -> None:
    """The very same batch counts once; another one of its number is that of a new life, which has none of the old."""
    believer = Believer()
    follower = Follower(believer, replays=True)
    follower.connected()
    for number in range(3):
        follower.replayed(number, Batch(float(number), [stored(number), stored(number)]))
    follower.replay_ended(whole=True)
    follower.live(1, Batch(1.0, [stored(1), stored(1)]))
    follower.live(2, Batch(2.0, [stored(2), stored(2)]))
    assert believer.asked == [0]
    follower.live(3, Batch(3.0, [BlockRemoved([1]), BlockRemoved([1])]))
    assert believer.believes() == {0, 2}

    follower.connected()
    follower.replayed(0, Batch(0.0, [stored(0)]))
    follower.replay_ended(whole=True)
    follower.live(0, Batch(9.0, [stored(5)]))
    assert believer.asked == [0, 0, 0]
    follower.replayed(0, Batch(9.0, [stored(5)]))
    follower.replay_ended(whole=True)
    assert believer.believes() == {5}


def test_events_without_their_beginning_are_left_out() -> None:
    """A block whose parent is not known cannot be placed: it is no match for anything, and harms nothing."""
    believer, _ = following()
    holder = believer.known.told("e", 0)
    orphans = events.apply(
        believer.known,
        holder,
        Batch(0.0, [BlockStored([5, 6], 4, [1, 2], 1), BlockRemoved([5]), BlockStored([7], None, [1, 2, 3], 1)]),
    )
    assert orphans == 3
    assert believer.believes() == set()
