"""The simulated engine: every request ends once, KV stays within capacity, steps cost what they should."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpool_sim.clock import Clock
from pdpool_sim.engine import Engine
from pdpool_sim.hardware import EngineShape, StepCosts
from pdpool_sim.leg import Leg

COSTS = StepCosts(
    seconds_per_token=1e-3, seconds_per_pair=0.0, weights_s=0.01, seconds_per_kv_token=1e-5, overhead_s=0.002
)


def shape(*, seqs: int = 8, budget: int = 64) -> EngineShape:
    """A small engine."""
    return EngineShape(
        COSTS, 0, max_batched_tokens=budget, max_seqs=seqs, kv_bytes_per_token=1, link_bytes_per_second=1
    )


class Recorder:
    """Owner of legs: brings KV for those that pull after a while, and notes what happens."""

    def __init__(self, clock: Clock, engine: Engine, pull_s: float = 0.05) -> None:
        self.clock, self.engine, self.pull_s = clock, engine, pull_s
        self.started_s: dict[Leg, list[float]] = {}
        self.ended_s: dict[Leg, list[float]] = {}
        self.admitted_legs: list[Leg] = []

    def admitted(self, leg: Leg) -> None:
        self.admitted_legs.append(leg)
        self._check()
        if leg.pulls:
            self.clock.at(self.clock.now_s + self.pull_s, lambda: self.engine.arrived(leg))

    def started(self, leg: Leg) -> None:
        self.started_s.setdefault(leg, []).append(self.clock.now_s)
        self._check()

    def finished(self, leg: Leg) -> None:
        self.ended_s.setdefault(leg, []).append(self.clock.now_s)
        self._check()

    def _check(self) -> None:
        assert self.engine.cache.in_use + self.engine.cache.kept <= self.engine.cache.capacity


def test_a_lone_request_takes_its_steps() -> None:
    """100 tokens with a budget of 64: two steps of prefill, then one step a token, each reading the KV so far."""
    clock = Clock()
    engine = Engine("e", shape(), 16, clock, capacity=20)
    owner = Recorder(clock, engine)
    leg = Leg(owner, 100, 4, (1, 2, 3, 4, 5, 6))
    clock.at(1.0, lambda: engine.submit(leg))
    clock.run()
    prefill = (64e-3 + 0.002) + (36e-3 + 0.002)
    assert owner.started_s[leg] == [pytest.approx(1.0 + prefill)]
    decode = sum(0.01 + 1e-5 * (101 + made) + 0.002 for made in range(3))
    assert owner.ended_s[leg] == [pytest.approx(1.0 + prefill + decode)]
    assert engine.computed_tokens == 100
    assert engine.busy_s == pytest.approx(prefill + decode)


def test_a_pulled_prompt_is_not_computed() -> None:
    """Decode starts when the KV is there and makes the first token in its first step."""
    clock = Clock()
    engine = Engine("e", shape(), 16, clock, capacity=20)
    owner = Recorder(clock, engine)
    leg = Leg(owner, 100, 2, (1, 2, 3, 4, 5, 6), pulls=True)
    clock.at(0.0, lambda: engine.submit(leg))
    clock.run()
    step = 0.01 + 1e-5 * 100 + 0.002
    assert owner.started_s[leg] == [pytest.approx(0.05 + step)]
    assert engine.computed_tokens == 0
    assert engine.gaps.total == 1


def test_the_same_prompt_again_is_cached_but_for_its_last_token() -> None:
    """A prompt of whole blocks reports one block less, as engines do."""
    clock = Clock()
    engine = Engine("e", shape(), 16, clock, capacity=20)
    owner = Recorder(clock, engine)
    legs = [Leg(owner, 48, 1, (1, 2, 3)) for _ in range(2)]
    clock.at(0.0, lambda: engine.submit(legs[0]))
    clock.at(5.0, lambda: engine.submit(legs[1]))
    clock.run()
    assert [leg.cached_tokens for leg in legs] == [0, 32]


def test_a_new_arrival_is_seen_after_the_step_that_runs() -> None:
    """A long run of decoding steps is cut where a request comes, not waited for."""
    clock = Clock()
    engine = Engine("e", shape(), 1000, clock, capacity=20)
    owner = Recorder(clock, engine)
    long = Leg(owner, 10, 500, ())
    late = Leg(owner, 10, 1, ())
    clock.at(0.0, lambda: engine.submit(long))
    clock.at(1.0, lambda: engine.submit(late))
    clock.run()
    assert owner.started_s[late][0] < 1.0 + 2 * 0.03
    assert owner.ended_s[long][0] > 5


def test_refuses_what_can_never_fit() -> None:
    """A request larger than the whole cache is an error, not a request that waits for ever."""
    clock = Clock()
    engine = Engine("e", shape(), 16, clock, capacity=4)
    with pytest.raises(ValueError, match="do not fit"):
        engine.submit(Leg(Recorder(clock, engine), 60, 10, ()))


requests = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 120), st.integers(1, 60), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=150)
@given(requests, st.integers(12, 40), st.integers(1, 8))
def test_every_request_ends_once(given_: list[tuple[float, int, int, bool, int]], capacity: int, seqs: int) -> None:
    """Under any arrivals, pre-emption included: one start, one end, no block held, no KV above capacity."""
    clock = Clock()
    engine = Engine("e", shape(seqs=seqs), 16, clock, capacity=capacity)
    owner = Recorder(clock, engine)
    legs: list[Leg] = []
    for at_s, prompt, output, pulls, text in given_:
        leg = Leg(owner, prompt, output, tuple(text * 100 + n for n in range(prompt // 16)), pulls=pulls)
        legs.append(leg)
        clock.at(at_s, lambda leg=leg: engine.submit(leg))  # type: ignore[misc]
    clock.run()
    for leg in legs:
        assert len(owner.started_s[leg]) == len(owner.ended_s[leg]) == 1
        assert owner.started_s[leg][0] <= owner.ended_s[leg][0]
        assert 0 <= leg.cached_tokens < leg.prompt_tokens or leg.cached_tokens == 0
    assert sorted(map(id, owner.admitted_legs)) == sorted(map(id, legs))
    assert engine.cache.in_use == 0
    assert engine.idle
    made = sum(output for _, _, output, _, _ in given_)
    assert engine.gaps.total == made - len(legs)


def test_blocks_run_out_and_somebody_is_computed_again() -> None:
    """With room for two growing sequences only, the younger is pre-empted, waits, and still ends."""
    clock = Clock()
    engine = Engine("e", shape(), 16, clock, capacity=10)
    owner = Recorder(clock, engine)
    legs = [Leg(owner, 60, 60, ()) for _ in range(2)]
    for leg in legs:
        clock.at(0.0, lambda leg=leg: engine.submit(leg))  # type: ignore[misc]
    clock.run()
    assert engine.preemptions >= 1
    assert set(owner.ended_s) == set(legs)
    assert owner.ended_s[legs[0]] < owner.ended_s[legs[1]]


def test_steps_taken_together_cost_what_single_steps_cost() -> None:
    """A run of decoding steps cut into pieces by onlookers ends when the uncut one ends."""

    def end_s(onlookers: int) -> float:
        clock = Clock()
        engine = Engine("e", shape(), 1000, clock, capacity=20)
        owner = Recorder(clock, engine)
        leg = Leg(owner, 10, 200, ())
        clock.at(0.0, lambda: engine.submit(leg))
        for number in range(onlookers):
            clock.at(0.1 + number * 0.0137, engine._wake)
        clock.run()
        return owner.ended_s[leg][0]

    assert math.isclose(end_s(0), end_s(100), rel_tol=1e-9)
