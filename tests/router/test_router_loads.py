"""Accounts of endpoints: counts end at zero, speeds are learned in spite of outliers, unknown is not idle."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.records import Endpoint
from pdpool_router.state.loads import REPORT_KEPT_S, Guess, Loads, Report, Work
from pdpool_router.state.speeds import Level, Line

P = [Endpoint(uid=f"p{n}", name=f"p{n}", role=Role.PREFILL, host="h", port=1) for n in range(3)]


@given(st.lists(st.tuples(st.sampled_from(("begin", "start", "end", "leave")), st.integers(0, 3), st.integers(0, 500))))
def test_counts_are_never_negative_and_end_at_zero(steps: list[tuple[str, int, int]]) -> None:
    """In any order of beginnings, answers, ends and departures."""
    loads = Loads()
    loads.keep(P)
    works: list[Work] = []
    for what, at, tokens in steps:
        if what == "begin":
            works.append(loads.begin(P[at % 3], tokens))
        elif what == "leave":
            loads.keep([one for one in P if one.uid != f"p{at}"])
            loads.keep(P)
        elif works:
            work = works[at % len(works)]
            if what == "start":
                work.started()
            else:
                work.end()
        for load in loads.loads.values():
            assert min(load.requests, load.unstarted, load.unstarted_tokens) >= 0
            assert load.unstarted <= load.requests
            assert load.wait_ms >= 0
    for work in works:
        work.end()
        work.end()
    assert all(load.requests == load.unstarted == load.unstarted_tokens == 0 for load in loads.loads.values())


def test_a_new_life_begins_at_zero() -> None:
    """What the old incarnation still runs is not counted at the new one of the same name."""
    loads = Loads()
    loads.keep(P)
    work = loads.begin(P[0], 100)
    reborn = Endpoint(uid="new", name="p0", role=Role.PREFILL, host="h", port=1)
    loads.keep([reborn, *P[1:]])
    assert set(loads.loads) == {"new", "p1", "p2"}
    assert loads.loads["new"].requests == 0
    work.end()
    assert loads.loads["new"].requests == 0


def test_who_was_not_asked_yet_is_as_its_peers() -> None:
    """From the first report on and not a second later; while those are idle, all are equal."""
    loads = Loads()
    loads.keep(P)
    loads.report("p0", Report(running=0, waiting=0), 1.0, 0)
    assert [load.others for load in loads.loads.values()] == [0, 0, 0]
    assert len({load.wait_ms for load in loads.loads.values()}) == 1
    for uid in ("p0", "p1"):
        for _ in range(2):
            loads.report(uid, Report(running=1, waiting=5), 1.0, 0)
    loads.settle(1.0, 1.0)
    assert loads.loads["p2"].others > 6
    new = Endpoint(uid="new", name="new", role=Role.PREFILL, host="h", port=1)
    loads.keep([*P, new])
    assert loads.loads["new"].others == 6
    late = Loads()
    late.keep(P)
    late.report("p0", Report(running=1, waiting=5), 1.0, 0)
    assert [load.others for load in late.loads.values()] == [6, 6, 6]


@pytest.mark.parametrize(("fixed_ms", "token_ms"), [(2.0, 0.01), (30.0, 0.5), (0.0, 3.0)])
def test_a_line_is_found_in_spite_of_outliers(fixed_ms: float, token_ms: float) -> None:
    """From a guess that is far off, with noise, and one observation in twenty a hundred times too long."""
    rng = random.Random(1)
    line = Line(5.0, 0.1)
    for number in range(400):
        tokens = rng.randint(10, 4000)
        took = (fixed_ms + token_ms * tokens) * rng.uniform(0.9, 1.1)
        line.observe(tokens, took * 100 if number % 20 == 19 else took)
    for tokens in (200, 1000, 4000):
        assert line.predict_ms(tokens) == pytest.approx(fixed_ms + token_ms * tokens, rel=0.35)


def test_a_lasting_change_is_followed() -> None:
    """An engine that becomes eight times slower is known to be after some dozens of answers."""
    rng = random.Random(2)
    line = Line(5.0, 0.1)
    for slow in (1, 8):
        for _ in range(150):
            tokens = rng.randint(10, 4000)
            line.observe(tokens, slow * (5 + 0.1 * tokens) * rng.uniform(0.95, 1.05))
    assert line.predict_ms(2000) == pytest.approx(8 * 205, rel=0.25)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e7)), max_size=60))
def test_no_observation_breaks_a_line(seen: list[tuple[float, float]]) -> None:
    """Whatever is observed: both parts stay finite and not negative."""
    line, level = Line(5.0, 0.1), Level(20.0)
    for tokens, took in seen:
        line.observe(tokens, took)
        level.observe(took)
        assert 0 <= line.fixed_ms < 1e12
        assert 0 < line.token_ms < 1e12
        assert 0 <= level.value < 1e12


def test_endpoints_that_hardly_differ_are_equal() -> None:
    """Noise in learned speeds breaks no tie; a really slower endpoint is told apart."""
    rng = random.Random(3)
    loads = Loads()
    loads.keep(P)
    for _ in range(300):
        for number, one in enumerate(P):
            tokens = rng.randint(100, 2000)
            work = loads.begin(one, tokens)
            loads.computed(one, work, tokens, (10 + 0.2 * tokens) * (3 if number == 2 else 1) * rng.uniform(0.9, 1.1))
            work.end()
    loads.settle(0.0, 1.0)
    figures = [loads.loads[one.uid].token_ms for one in P]
    assert figures[2] > 1.5 * figures[0]


def test_speeds_are_learned_when_they_are_settled_and_from_the_newest_answers() -> None:
    """An answer is only noted; of a great many notes between two settlements the last ones count."""
    loads = Loads()
    loads.keep(P)

    def answered(times: int, took_ms: float) -> None:
        for _ in range(times):
            work = loads.begin(P[0], 1000)
            loads.computed(P[0], work, 1000, took_ms)
            work.end()

    answered(5_000, 10_000.0)
    assert loads.loads["p0"].token_ms == Guess().token_ms
    answered(400, 200.0)
    loads.settle(0.0, 1.0)
    assert loads.loads["p0"].fixed_ms + 1000 * loads.loads["p0"].token_ms == pytest.approx(200, rel=0.2)


def test_reports_count_others_and_grow_old() -> None:
    """What an engine has beyond our own legs is others'; the smaller of two reports counts; old ones are unknown."""
    loads = Loads()
    loads.keep(P)
    loads.report("p0", Report(running=4, waiting=2), 10.0, 1)
    assert loads.loads["p0"].others == 5
    loads.report("p0", Report(running=9, waiting=2), 11.0, 1)
    assert loads.loads["p0"].others == 5
    loads.report("p0", Report(running=1, waiting=0), 12.0, 1)
    assert loads.loads["p0"].others == 0
    loads.report("p0", Report(kv_usage=0.5), 13.0, 1)
    assert loads.kv_usage("p0") == 0.5
    loads.settle(12.0 + REPORT_KEPT_S + 1, 1.0)
    assert not loads.loads["p0"].reported
    loads.report("gone", Report(running=1), 13.0, 0)


def test_without_any_report_nothing_is_assumed() -> None:
    """Engines that all report nothing are compared by our own requests alone."""
    loads = Loads()
    loads.keep(P)
    loads.settle(1.0, 1.0)
    assert {load.others for load in loads.loads.values()} == {0.0}
