"""Admission: at once, in line, held while the pool wakes, refused."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.router_config import Limits
from pdpool_router.faults import RateLimited, Saturated
from pdpool_router.flow.admission import Admission, Share, Ticket

if TYPE_CHECKING:
    from types import FrameType


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def gate(clock: Clock | None = None, shares: dict[str, Share] | None = None, **limits: float) -> Admission:
    return Admission(Limits.model_validate(limits), shares or {}, clock=clock or Clock(), queued={"m": 0})


def enter(admission: Admission, tenant: str = "", size_bytes: int = 100) -> Ticket:
    return admission.enter(model="m", size_bytes=size_bytes, tenant=tenant)


async def through(admission: Admission, ticket: Ticket) -> None:
    try:
        if ticket.turn is not None:
            await ticket.turn
    finally:
        admission.leave(ticket)


def calls_of_one(admission: Admission, tenant: str) -> list[str]:
    """Every Python function, and method of C, that one request's admission and its end call."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)
        elif event == "c_call":
            called.append(argument.__name__)

    sys.setprofile(note)
    try:
        admission.leave(enter(admission, tenant))
    finally:
        sys.setprofile(None)
    return [name for name in called if name not in {"enter", "leave", "setprofile", "__call__"}]


def test_without_contention_admission_costs_nothing() -> None:
    """One of two thousand under way asks for no more than one who is alone: no future, no line, no fair share."""
    shares = {f"tenant-{number}": Share(weight=number + 1, priority=number) for number in range(1000)}
    alone, crowded = gate(max_concurrent=4096), gate(shares=shares, max_concurrent=4096)
    for number in range(2000):
        enter(crowded, f"tenant-{number % 1000}")
    calls_of_one(alone, ""), calls_of_one(crowded, "tenant-7")  # the first of each asks for what may be spent
    # A look at the tenant's share, a look at the room, one admitted; the time that it left is noted.
    assert calls_of_one(alone, "") == calls_of_one(crowded, "tenant-7") == ["get", "_room", "_admit", "append"]


async def test_what_is_over_the_limit_waits_and_goes_when_another_ends() -> None:
    """One place: the second request waits for the first, the gauge shows it, and all ends at 0."""
    admission = gate(max_concurrent=1)
    first, second = enter(admission), enter(admission)
    assert first.turn is None
    assert second.turn is not None
    assert not second.turn.done()
    assert admission._queued["m"] == 1
    admission.leave(first)
    assert second.turn is not None
    await second.turn
    admission.leave(second)
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "size_bytes"), [({"max_queued": 1}, 10), ({"max_queued_bytes": 150}, 100), ({"max_queued": 0}, 1)]
)
async def test_a_full_line_refuses_and_says_when_to_come_back(limits: dict[str, int], size_bytes: int) -> None:
    """Count and bytes are both bounds; a refused request leaves nothing behind."""
    admission = gate(max_concurrent=1, **limits)
    places = 1 + limits.get("max_queued", 1)
    tickets = [enter(admission, size_bytes=size_bytes) for _ in range(places)]
    with pytest.raises(Saturated) as fault:
        enter(admission, size_bytes=size_bytes)
    assert 1 <= fault.value.retry_after_s <= 60
    for ticket in tickets:
        admission.leave(ticket)
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


async def test_a_client_that_leaves_the_line_gives_its_place_up() -> None:
    """A cancelled wait counts no longer, also when it is cancelled in the very moment of its turn."""
    admission = gate(max_concurrent=1)
    first = enter(admission)
    waits = [asyncio.create_task(through(admission, enter(admission))) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    assert admission._queued["m"] == 2
    admission.leave(first)
    waits[1].cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert not waits[2].cancelled()
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


async def test_waiting_ends_with_its_time() -> None:
    """After queueSeconds the answer is 503, not silence."""
    clock = Clock()
    admission = gate(clock, max_concurrent=1, queue_seconds=10)
    first, second = enter(admission), enter(admission)
    clock.now_s += 9
    admission.tick()
    assert second.turn is not None
    assert not second.turn.done()
    clock.now_s += 2
    admission.tick()
    with pytest.raises(Saturated):
        await through(admission, second)
    admission.leave(first)
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


async def test_a_sleeping_pool_holds_requests_for_its_own_time_and_lets_them_go_when_it_woke() -> None:
    """Q38: held beyond queueSeconds, within wakeSeconds; and their time in line begins when the pool has woken."""
    clock = Clock()
    admission = gate(clock, max_concurrent=1, queue_seconds=10, wake_seconds=600)
    admission.sleep(asleep=True)
    held = [enter(admission), enter(admission)]
    assert admission._queued["m"] == 2
    clock.now_s += 300
    admission.tick()
    assert not any(each.turn.done() for each in held if each.turn)
    admission.sleep(asleep=False)
    admission.tick()
    assert held[0].turn is not None
    await held[0].turn
    assert held[1].turn is not None
    assert not held[1].turn.done()
    clock.now_s += 9
    admission.tick()
    assert not held[1].turn.done()
    clock.now_s += 2
    admission.tick()
    with pytest.raises(Saturated):
        await through(admission, held[1])
    admission.leave(held[0])
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


async def test_a_pool_that_does_not_wake_in_time_is_told_with_a_time_to_come_back() -> None:
    """Q38: over wakeSeconds 503 with Retry-After."""
    clock = Clock()
    admission = gate(clock, wake_seconds=60)
    admission.sleep(asleep=True)
    held = enter(admission)
    clock.now_s += 61
    admission.tick()
    with pytest.raises(Saturated) as fault:
        await through(admission, held)
    assert fault.value.retry_after_s >= 1
    assert admission._queued["m"] == 0


async def test_an_edit_that_ends_holding_turns_nobody_out_who_is_held() -> None:
    """Q38: a size that is patched from 0 to 1 wakes the pool, and is also the edit by which it is never at zero."""
    clock = Clock()
    admission = gate(clock, wake_seconds=60)
    admission.sleep(asleep=True)
    held, late = enter(admission), enter(admission)
    clock.now_s += 30
    admission.configure(Limits(wake_seconds=0), {})
    admission.sleep(asleep=admission.may_hold)
    admission.tick()
    assert held.turn is not None
    assert not held.turn.done()
    admission.sleep(asleep=False)
    await through(admission, held)
    admission.leave(late)
    assert not admission.may_hold
    admission.sleep(asleep=admission.may_hold)
    assert enter(admission).turn is None


async def test_who_is_held_beyond_an_edit_is_held_no_longer_than_before() -> None:
    """The time that counted when it came, and nobody is held once the line is empty."""
    clock = Clock()
    admission = gate(clock, wake_seconds=60)
    admission.sleep(asleep=True)
    held = enter(admission)
    admission.configure(Limits(wake_seconds=0), {})
    clock.now_s += 61
    admission.sleep(asleep=admission.may_hold)
    admission.tick()
    with pytest.raises(Saturated):
        await through(admission, held)
    assert not admission.may_hold


async def test_a_saturated_stage_holds_requests_back() -> None:
    """A line forms in the router and not in an engine, and goes on as the stage has room for it."""
    admission = gate()
    spare = 30.0
    admission.spare_tokens = lambda: spare
    passed = [enter(admission, size_bytes=100) for _ in range(2)]
    spare = 0.0
    waits = [enter(admission) for _ in range(3)]
    admission.tick()
    assert [each.turn for each in passed] == [None, None]
    assert not any(each.turn.done() for each in waits if each.turn)
    spare = 30.0
    admission.tick()
    spare = 0.0
    admission.tick()
    assert [each.turn.done() for each in waits if each.turn] == [True, True, False]
    for each in (*passed, *waits):
        admission.leave(each)
    assert (admission.admitted, admission._queued["m"]) == (0, 0)


async def test_a_tenant_over_its_limits_is_refused_and_others_are_not() -> None:
    """429 with the time to come back; the refused request takes no place anywhere."""
    admission = gate(shares={"a": Share(requests_per_second=1), "b": Share(concurrent=1)})
    first, second = enter(admission, "a"), enter(admission, "b")
    for tenant in ("a", "b"):
        with pytest.raises(RateLimited) as fault:
            enter(admission, tenant)
        assert fault.value.retry_after_s == 1
    other = enter(admission, "c")
    for ticket in (first, second, other):
        admission.leave(ticket)
    admission.leave(enter(admission, "b"))
    assert admission.admitted == 0


async def test_new_limits_count_for_those_who_wait() -> None:
    """A reload that makes room lets the line go on."""
    admission = gate(max_concurrent=1)
    first, second = enter(admission), enter(admission)
    admission.configure(Limits(max_concurrent=2), {})
    admission.tick()
    assert second.turn is not None
    await second.turn
    for ticket in (first, second):
        admission.leave(ticket)
    assert admission.admitted == 0
