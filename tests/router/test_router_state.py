"""Endpoints, health and load per incarnation."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.records import Endpoint
from pdpool_router.state.endpoints import Endpoints
from pdpool_router.state.health import FAILURES_TO_LEAVE, FIRST_PAUSE_S, LONGEST_PAUSE_S, RAMP_S, Health
from pdpool_router.state.inflight import Inflight, Lease


def decode(uid: str, *, name: str = "d", draining: bool = False) -> Endpoint:
    return Endpoint(uid=uid, name=name, role=Role.DECODE, host="10.0.0.1", port=8000, draining=draining)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 30))))
def test_counts_are_never_negative_and_end_at_zero(steps: list[tuple[str, bool, int]]) -> None:
    """Whatever the order of reservations and releases, also double ones, counts are exact and nothing stays."""
    load = Inflight()
    leases: list[tuple[str, Lease]] = []
    held: list[bool] = []
    for uid, reserve, index in steps:
        if reserve or not leases:
            leases.append((uid, load.reserve(decode(uid))))
            held.append(True)
        else:
            leases[index % len(leases)][1].release()
            held[index % len(leases)] = False
        for name in "abc":
            expected = sum(1 for (owner, _), still in zip(leases, held, strict=True) if owner == name and still)
            assert load.requests.get(name, 0) == expected
    for _, lease in leases:
        lease.release()
    assert not load.requests


def test_a_new_life_of_a_replica_starts_at_zero() -> None:
    """Load belongs to a uid: the same name and address with another uid has none, and the old one is shown no more."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    endpoints.replace([decode("old")])
    lease = endpoints.inflight.reserve(decode("old"))
    gone: list[str] = []
    endpoints.on_gone(lambda endpoint: gone.append(endpoint.uid))
    endpoints.replace([decode("new")])
    assert gone == ["old"]
    assert endpoints.snapshot().inflight.get("new", 0) == 0
    assert {one.uid for one in endpoints.all()} == {"new"}
    lease.release()
    assert not endpoints.inflight.requests


def test_an_endpoint_that_moved_loses_its_connections() -> None:
    """A uid at another address is told as gone from the old one, so that nothing kept there is used again."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    here = decode("a")
    endpoints.replace([here])
    gone: list[Endpoint] = []
    endpoints.on_gone(gone.append)
    endpoints.replace([here])
    assert gone == []
    endpoints.replace([msgspec.structs.replace(here, port=8001)])
    assert gone == [here]


def test_a_draining_endpoint_is_known_but_not_chosen() -> None:
    """Draining takes an endpoint out of the snapshot and leaves it in the account."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    assert not endpoints.listed
    endpoints.replace([decode("a"), decode("b")])
    assert {one.uid for one in endpoints.snapshot().decode} == {"a", "b"}
    endpoints.replace([decode("a", draining=True), decode("b")])
    assert {one.uid for one in endpoints.snapshot().decode} == {"b"}
    assert {one.uid for one in endpoints.all()} == {"a", "b"}


def out(health: Health, uid: str) -> None:
    """Makes an incarnation fail until it is left out."""
    for _ in range(FAILURES_TO_LEAVE):
        health.failed(uid)
    assert not health.usable(uid)


def test_an_endpoint_that_keeps_failing_leaves_and_is_tried_by_one() -> None:
    """A few failures in a row take an endpoint out; after a pause one request at a time may try it.

    Each further failure costs a longer pause, up to half of the 30 s in which a recovery must be seen.
    """
    clock = Clock()
    health = Health(clock=clock)
    for _ in range(FAILURES_TO_LEAVE - 1):
        health.failed("a")
        assert health.usable("a")
    health.failed("a")
    before = health.version()
    assert not health.usable("a")
    clock.now_s += 1.1
    assert health.version() != before
    longest = 0.0
    for _ in range(12):
        assert health.usable("a")
        assert health.on_trial("a")
        assert health.full({}) == frozenset()
        assert health.full({"a": 1}) == {"a"}
        health.failed("a")
        waited_s = 0.0
        while not health.usable("a"):
            clock.now_s += 0.25
            waited_s += 0.25
            health.version()
        longest = max(longest, waited_s)
    assert 4 < longest <= LONGEST_PAUSE_S + 0.25 < 30


def test_an_endpoint_that_passed_its_trial_gets_more_and_more() -> None:
    """No herd: what it may have at once doubles, and after a few seconds it is as good as any."""
    clock = Clock()
    health = Health(clock=clock)
    out(health, "a")
    clock.now_s += FIRST_PAUSE_S
    health.version()
    health.answered("a")
    allowed = []
    for _ in range(8):
        allowed.append(next(count for count in range(10_000) if health.full({"a": count})))
        clock.now_s += 0.5
    assert allowed == [2, 4, 8, 16, 32, 64, 128, 256]
    clock.now_s += RAMP_S
    health.version()
    assert not health.recovering
    assert health.full({"a": 10_000}) == frozenset()
    out(health, "a")
    clock.now_s += FIRST_PAUSE_S  # the pause begins anew, too
    health.version()
    assert health.usable("a")


def test_an_answered_probe_does_not_excuse_unanswered_requests() -> None:
    """`/health` of an engine that fails its requests changes nothing; where nobody listened, it begins a trial."""
    health = Health(clock=Clock())
    health.failed("a")
    health.failed("a")
    health.probed("a")
    health.failed("a")
    assert not health.usable("a")
    health.probed("a")
    assert not health.usable("a")
    health.failed("b", certain=True)
    assert not health.answers("b")
    before = health.version()
    health.probed("b")
    assert health.version() != before
    assert health.on_trial("b")
    health.failed("b")
    assert not health.usable("b")


def test_success_forgets_failures() -> None:
    """An answer between failures begins the count anew, and ends a trial."""
    health = Health(clock=Clock())
    for _ in range(10):
        health.failed("a")
        health.succeeded("a")
        assert health.usable("a")
    health.failed("a", certain=True)
    assert not health.usable("a")
    health.succeeded("a")
    assert health.usable("a")
    assert not health.on_trial("a")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("fcsapt"), st.floats(0, 20)), max_size=60))
def test_health_never_forgets_to_let_somebody_back(steps: list[tuple[str, str, float]]) -> None:
    """Whatever happens in whatever order, an incarnation may be chosen 30 s later, and counts of two never mix."""
    clock = Clock()
    health = Health(clock=clock)
    for uid, step, wait_s in steps:
        clock.now_s += wait_s
        health.version()
        match step:
            case "f":
                health.failed(uid)
            case "c":
                health.failed(uid, certain=True)
            case "s":
                health.succeeded(uid)
                assert health.usable(uid)
            case "a":
                health.answered(uid)
            case "p":
                health.probed(uid)
        assert health.full({}) == frozenset()
        assert health.recovering == any(health.full({"a": 10**6, "b": 10**6}))
    clock.now_s += 30
    health.version()
    assert health.usable("a")
    assert health.usable("b")
    assert health.full({}) == frozenset()


# --- who is at fault -------------------------------------------------------------------------------------------------
def endpoints_of(prefill: str, decodes: str) -> tuple[Endpoints, Clock, dict[str, Endpoint]]:
    clock = Clock()
    endpoints = Endpoints(Inflight(), clock=clock)
    known = {uid: msgspec.structs.replace(decode(uid, name=uid), role=Role.PREFILL) for uid in prefill}
    known |= {uid: decode(uid, name=uid) for uid in decodes}
    endpoints.replace(known.values())
    return endpoints, clock, known


@settings(max_examples=30)
@given(st.integers(2, 4), st.integers(1, 3), st.integers())
def test_a_poisoned_giver_is_left_out_and_nobody_else(prefills: int, decodes: int, seed: int) -> None:
    """Q65: where decode fails on one prefill's KV only, that prefill leaves after a few requests.

    Every decode, and every other prefill, stays; the one that left is tried now and then.
    """
    givers, takers = "pqrs"[:prefills], "def"[:decodes]
    endpoints, clock, known = endpoints_of(givers, takers)
    lost = 0
    chance = Random(seed)
    for number in range(200):
        clock.now_s += 0.05
        giver = chance.choice(endpoints.snapshot().prefill)
        taker = chance.choice(endpoints.snapshot().decode)
        if giver.uid == "p":
            lost += 1
            endpoints.refused(giver, taker)
            clock.now_s += 0.01
            endpoints.took(known["q"], chance.choice(endpoints.snapshot().decode))  # where the request goes then
        else:
            endpoints.took(giver, taker)
        if number > 100:  # by then every pair was seen
            assert {one.uid for one in endpoints.snapshot().decode} == set(takers)
            assert set(givers[1:]) <= {one.uid for one in endpoints.snapshot().prefill}
    assert lost <= FAILURES_TO_LEAVE + 8  # the first ones, and trials after 1, 2, 4, 8 s


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(2, 3), st.integers())
def test_a_broken_taker_is_left_out_and_no_giver(prefills: int, decodes: int, seed: int) -> None:
    """Where one decode fails whatever it is given, it leaves, and every prefill stays, or is back soon."""
    givers, takers = "pqr"[:prefills], "def"[:decodes]
    endpoints, clock, known = endpoints_of(givers, takers)
    lost = 0
    chance = Random(seed)
    for number in range(200):
        clock.now_s += 0.05
        giver = chance.choice(endpoints.snapshot().prefill)
        taker = chance.choice(endpoints.snapshot().decode)
        if taker.uid == "d":
            lost += 1
            endpoints.refused(giver, taker)
            clock.now_s += 0.01
            endpoints.took(chance.choice(endpoints.snapshot().prefill), known["e"])
        else:
            endpoints.took(giver, taker)
        if number > 100:
            assert {one.uid for one in endpoints.snapshot().prefill} == set(givers)
    assert lost <= 3 * FAILURES_TO_LEAVE + 8


def test_the_only_giver_is_replaced_by_decode_itself() -> None:
    """With one pair nobody can tell who failed: prefill is left out, and what decode then does alone shows it."""
    endpoints, clock, known = endpoints_of("p", "d")
    endpoints.configure(max_local_prefills=4, local_allowed=True)
    for _ in range(FAILURES_TO_LEAVE):
        endpoints.refused(known["p"], known["d"])
    assert endpoints.snapshot().prefill == ()
    assert endpoints.health.usable("d")
    endpoints.took(None, known["d"])
    clock.now_s += FIRST_PAUSE_S
    assert endpoints.snapshot().prefill == (known["p"],)
    endpoints.refused(known["p"], known["d"])
    assert endpoints.snapshot().prefill == ()
    assert endpoints.health.usable("d")


def test_an_endpoint_on_trial_gets_one_request_where_others_are() -> None:
    """The rest goes to others; where there is no other, it gets all, but for prefill that decode can replace."""
    clock = Clock()
    endpoints = Endpoints(Inflight(), clock=clock)
    endpoints.configure(max_local_prefills=4, local_allowed=True)
    prefill = msgspec.structs.replace(decode("p", name="p"), role=Role.PREFILL)
    endpoints.replace([decode("a"), decode("b"), prefill])

    def chosen(role: str) -> set[str]:
        return {one.uid for one in getattr(endpoints.snapshot(), role)}

    for uid in "ap":
        out(endpoints.health, uid)
    assert (chosen("decode"), chosen("prefill")) == ({"b"}, set())
    clock.now_s += FIRST_PAUSE_S
    assert (chosen("decode"), chosen("prefill")) == ({"a", "b"}, {"p"})
    leases = [endpoints.inflight.reserve(decode("a")), endpoints.inflight.reserve(prefill)]
    assert (chosen("decode"), chosen("prefill")) == ({"b"}, set())
    endpoints.configure(max_local_prefills=4, local_allowed=False)
    assert chosen("prefill") == {"p"}
    endpoints.configure(max_local_prefills=4, local_allowed=True)
    out(endpoints.health, "b")
    assert chosen("decode") == {"a"}
    endpoints.health.answered("p")
    leases += [endpoints.inflight.reserve(prefill) for _ in range(5)]
    assert chosen("prefill") == {"p"}  # warm: nobody else is there, and it is known to be well
    for lease in leases:
        lease.release()


def test_health_of_a_gone_endpoint_is_forgotten() -> None:
    """What an endpoint did before or after it went is not held against one that comes, and casts no doubt on others."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    endpoints.replace([decode("a")])
    endpoints.health.failed("a", certain=True)
    assert endpoints.snapshot().decode == ()
    endpoints.replace([])
    endpoints.health.failed("a", certain=True)
    assert not endpoints.health.doubts
    endpoints.replace([decode("a")])
    assert len(endpoints.snapshot().decode) == 1


def test_where_all_fail_those_that_answer_are_still_chosen() -> None:
    """Decode engines that fail are left out while another is there; the last ones only when nothing listens there."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    endpoints.replace([decode("a"), decode("b")])

    def chosen() -> set[str]:
        return {one.uid for one in endpoints.snapshot().decode}

    for _ in range(FAILURES_TO_LEAVE):
        endpoints.health.failed("a")
    assert chosen() == {"b"}
    for _ in range(FAILURES_TO_LEAVE):
        endpoints.health.failed("b")
    assert chosen() == {"a", "b"}
    endpoints.health.failed("a", certain=True)
    assert chosen() == {"b"}
    endpoints.health.failed("b", certain=True)
    assert chosen() == set()
    endpoints.health.succeeded("b")
    assert chosen() == {"b"}
