"""Choosing as a pure function: candidates, revisions, fallback, and independence of order."""

from __future__ import annotations

import random
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.records import Decision, Endpoint, Load, Request, Snapshot, Unplaced, Way
from pdpool_router.schedule.decide import SumPolicy
from pdpool_router.schedule.pickers.least import Least
from pdpool_router.schedule.policies import POLICIES, least_loaded
from pdpool_router.schedule.scorers.inflight import Inflight

REVISIONS = st.sampled_from(("r1", "r2", "r3"))


def endpoint(uid: str, role: Role, revision: str = "") -> Endpoint:
    return Endpoint(uid=uid, name=uid, role=role, host="10.0.0.1", port=8000, revision=revision)


def snapshot(
    prefill: list[Endpoint] | None = None,
    decode: list[Endpoint] | None = None,
    aggregated: list[Endpoint] | None = None,
    inflight: dict[str, int] | None = None,
    local: dict[str, int] | None = None,
    *,
    allowed: bool = True,
    most: int = 4,
) -> Snapshot:
    return Snapshot(
        tuple(prefill or ()),
        tuple(decode or ()),
        tuple(aggregated or ()),
        MappingProxyType(inflight or {}),
        MappingProxyType(local or {}),
        most,
        allowed,
    )


@st.composite
def pools(draw: st.DrawFn) -> Snapshot:
    prefill = [endpoint(f"p{n}", Role.PREFILL, draw(REVISIONS)) for n in range(draw(st.integers(0, 4)))]
    decode = [endpoint(f"d{n}", Role.DECODE, draw(REVISIONS)) for n in range(draw(st.integers(0, 4)))]
    loads = {one.uid: draw(st.integers(0, 3)) for one in [*prefill, *decode]}
    local = {one.uid: draw(st.integers(0, 2)) for one in decode}
    return snapshot(prefill, decode, None, loads, local, allowed=draw(st.booleans()), most=draw(st.integers(0, 2)))


@st.composite
def asked(draw: st.DrawFn) -> Request:
    failed = draw(st.frozensets(st.sampled_from([f"{role}{n}" for role in "pd" for n in range(4)]), max_size=4))
    return Request("m", 10, whole_reason=draw(st.sampled_from(("", "n"))), failed=failed)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pool=pools(), request_=asked(), seed=st.integers(0, 99))
def test_a_choice_obeys_every_rule(name: str, pool: Snapshot, request_: Request, seed: int) -> None:
    """Never a failed endpoint, never a pair of two revisions, never more local prefills than allowed.

    Never no choice.
    """
    policy = POLICIES[name]()
    decision = policy.plan(request_, pool, 0.0, random.Random(seed))
    usable = [one for one in pool.decode if one.uid not in request_.failed]
    pairs = {one.revision for one in usable} & {one.revision for one in pool.prefill if one.uid not in request_.failed}
    if isinstance(decision, Unplaced):
        if decision is Unplaced.NO_ENDPOINT:
            assert not usable
        else:
            assert not pairs
            assert decision is (Unplaced.LOCAL_PREFILLS_FULL if pool.local_allowed else Unplaced.NO_PREFILL)
        return
    assert decision.endpoint.uid not in request_.failed
    if decision.way is Way.REMOTE:
        assert decision.endpoint in pool.prefill
        placed = policy.place(
            Request("m", 10, revision=decision.endpoint.revision, failed=request_.failed),
            None,
            pool,
            0.0,
            random.Random(seed),
        )
        assert placed is not None
        assert placed.endpoint in usable
        assert placed.endpoint.revision == decision.endpoint.revision
    else:
        assert decision.endpoint in usable
        assert not request_.whole_reason or decision.way is Way.NONE
        if decision.way is Way.LOCAL:
            assert pool.local_allowed
            assert pool.local_prefills.get(decision.endpoint.uid, 0) < pool.max_local_prefills


@given(pools(), asked(), st.randoms(use_true_random=False))
def test_least_loaded_does_not_depend_on_order(pool: Snapshot, request_: Request, shuffle: random.Random) -> None:
    """The set of endpoints that chance may pick is the same in any order of the endpoints."""

    def reachable(view: Snapshot) -> set[str]:
        found = (least_loaded().plan(request_, view, 0.0, random.Random(seed)) for seed in range(24))
        return {one.endpoint.uid if isinstance(one, Decision) else one.value for one in found}

    def shuffled(endpoints: tuple[Endpoint, ...]) -> list[Endpoint]:
        return shuffle.sample(endpoints, len(endpoints))

    other = snapshot(
        shuffled(pool.prefill),
        shuffled(pool.decode),
        None,
        dict(pool.inflight),
        dict(pool.local_prefills),
        allowed=pool.local_allowed,
        most=pool.max_local_prefills,
    )
    assert reachable(pool) == reachable(other)


@given(pools(), asked(), st.integers(0, 99))
def test_choosing_is_pure(pool: Snapshot, request_: Request, seed: int) -> None:
    """The same request, snapshot and chance give the same choice."""
    first = least_loaded().plan(request_, pool, 0.0, random.Random(seed))
    assert first == least_loaded().plan(request_, pool, 0.0, random.Random(seed))


def test_the_least_loaded_is_chosen_and_ties_are_broken_by_chance() -> None:
    """Fewest in flight first; equals are picked evenly."""
    group = [endpoint(f"d{n}", Role.AGGREGATED) for n in range(4)]
    view = snapshot(aggregated=group, inflight={"d0": 2, "d1": 1})
    rng = random.Random(1)
    picked = [least_loaded().plan(Request("m", 1), view, 0.0, rng) for _ in range(200)]
    uids = [one.endpoint.uid for one in picked if isinstance(one, Decision)]
    assert set(uids) == {"d2", "d3"}
    assert 60 < uids.count("d2") < 140


def test_round_robin_takes_each_in_turn() -> None:
    """Each endpoint as often as any other."""
    group = [endpoint(f"d{n}", Role.AGGREGATED) for n in range(3)]
    policy = POLICIES["RoundRobin"]()
    picked = [policy.plan(Request("m", 1), snapshot(aggregated=group), 0.0, random.Random(1)) for _ in range(9)]
    assert sorted(one.endpoint.uid for one in picked if isinstance(one, Decision)) == sorted(["d0", "d1", "d2"] * 3)


@given(pools(), asked(), st.lists(st.floats(0, 3), min_size=8, max_size=8), st.integers(0, 99))
def test_the_shortcut_of_least_loaded_chooses_as_the_sum_does(
    pool: Snapshot, request_: Request, others: list[float], seed: int
) -> None:
    """Without the tables of a sum the same endpoint is chosen, by the same chance."""
    uids = [one.uid for one in (*pool.prefill, *pool.decode)]
    view = msgspec.structs.replace(
        pool, loads={uid: Load(uid, others=other) for uid, other in zip(uids, others, strict=False)}
    )
    count = (Inflight(),)
    plain = SumPolicy(prefill=count, decode=count, whole=count, picker=Least, reads_prefixes=False, skips_hops=False)
    for taken in (pool, view):
        short = least_loaded().plan(request_, taken, 0.0, random.Random(seed))
        long = plain.plan(request_, taken, 0.0, random.Random(seed))
        if isinstance(short, Unplaced) or isinstance(long, Unplaced):
            assert short == long
        else:
            assert (short.way, short.endpoint, short.reason) == (long.way, long.endpoint, long.reason)
        asked_ = msgspec.structs.replace(request_, revision="r1")
        placed = least_loaded().place(asked_, None, taken, 0.0, random.Random(seed))
        expected = plain.place(asked_, None, taken, 0.0, random.Random(seed))
        assert (placed and placed.endpoint) == (expected and expected.endpoint)
