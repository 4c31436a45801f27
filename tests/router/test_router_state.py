"""Endpoints, health and load per incarnation."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.records import Endpoint
from pdpool_router.state.endpoints import Endpoints
from pdpool_router.state.health import FAILURES_TO_LEAVE, LONGEST_PAUSE_S, Health
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


def test_an_endpoint_that_keeps_failing_leaves_and_comes_back() -> None:
    """A few failures in a row take an endpoint out; it comes back after a pause, and a further failure costs more."""
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
    assert health.usable("a")
    longest = 0.0
    for _ in range(12):
        health.failed("a")
        health.version()
        assert not health.usable("a")
        waited_s = 0.0
        while not health.usable("a"):
            clock.now_s += 0.25
            waited_s += 0.25
            health.version()
        longest = max(longest, waited_s)
    assert 4 < longest <= LONGEST_PAUSE_S + 0.25 < 30


def test_success_forgets_failures() -> None:
    """An answer between failures begins the count anew, and brings an endpoint back at once."""
    health = Health(clock=Clock())
    for _ in range(10):
        health.failed("a")
        health.succeeded("a")
        assert health.usable("a")
    health.failed("a", certain=True)
    assert not health.usable("a")
    health.succeeded("a")
    assert health.usable("a")


def test_health_of_a_gone_endpoint_is_forgotten() -> None:
    """What an endpoint that went had done is not held against one that comes."""
    endpoints = Endpoints(Inflight(), clock=Clock())
    endpoints.replace([decode("a")])
    endpoints.health.failed("a", certain=True)
    assert endpoints.snapshot().decode == ()
    endpoints.replace([])
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
