"""Admission: at once while there is room, else in a bounded line; held while a pool wakes; within a tenant's quota.

Boundary: when a request may go on; who of those waiting is next is `fairness`, whom it goes to is the scheduler.
Without contention `enter` is a few comparisons and nothing waits. A wait ends in one of three ways: there is room, its
time is over (503), or its client left. A shutdown ends none: what was put in line was accepted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, Final

import msgspec

from pdpool_router.faults import RateLimited, Saturated
from pdpool_router.flow.fairness import FairQueue, Waiting
from pdpool_router.flow.quotas import Quota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_api.router_config import Limits

_BYTES_PER_TOKEN: Final = 4
_RATE_WINDOW: Final = 64
_LONGEST_RETRY_S: Final = 60
_FIRST_WAKE_S: Final = 30.0


class Share(msgspec.Struct, frozen=True):
    """What one tenant is allowed; 0: no limit."""

    weight: int = 1
    priority: int = 0
    requests_per_second: float = 0
    concurrent: int = 0


class Ticket(Waiting, eq=False):
    """One request's admission; `Admission.leave` ends it, whatever became of it."""

    model: str
    quota: Quota | None = None
    admitted: bool = False
    turn: asyncio.Future[None] | None = None
    """Done when it may go on, or failed with `Saturated` when its time in line is over; None: it never waited."""


class Admission:
    """Every request that generates passes here."""

    def __init__(
        self,
        limits: Limits,
        shares: Mapping[str, Share],
        *,
        clock: Callable[[], float],
        queued: dict[str, int],
        new_turn: Callable[[], asyncio.Future[None]] | None = None,
    ) -> None:
        """`queued` is kept: model → requests that wait. `new_turn` makes what is waited for; None: a future."""
        self._clock = clock
        self._new_turn = new_turn or _on_the_running_loop
        self._queued = queued
        self._queue = FairQueue(patience_s=limits.queue_seconds / 2)
        self._waiting = self._queue.arrivals  # whether it is empty is asked twice for each request
        self._quotas: dict[str, Quota] = {}
        self._departures_s: deque[float] = deque(maxlen=_RATE_WINDOW)
        self._asleep_since_s: float | None = None
        self._woken_s = 0.0
        self._last_wake_s = _FIRST_WAKE_S
        self._hold_s = 0.0
        """How long those may be held who are held now."""
        self.spare_tokens: Callable[[], float] = _boundless
        """Prompt tokens that the stage that is short can take now; asked again when those are given away."""
        self._spare_tokens = 0.0
        self.admitted = 0
        self.configure(limits, shares)

    def configure(self, limits: Limits, shares: Mapping[str, Share]) -> None:
        """Takes over limits and tenants' shares; whoever waits goes on waiting."""
        self._limits = limits
        # The size that wakes a pool may be the edit by which it is never at zero again: who is held stays held.
        if limits.wake_seconds or not (self.asleep and self._queue):
            self._hold_s = limits.wake_seconds
        self._max_concurrent = limits.max_concurrent  # a plain number: it is read for each request
        self._shares = dict(shares)
        self._queue.patience_s = limits.queue_seconds / 2
        for tenant, quota in self._quotas.items():
            share = self._shares.get(tenant, _DEFAULT)
            quota.limit(rate_per_s=share.requests_per_second, concurrent=share.concurrent)

    def enter(self, *, model: str, size_bytes: int, tenant: str = "") -> Ticket:
        """Admits a request, or puts it in line (its `turn` is then to be awaited); `leave` must follow.

        Raises:
            RateLimited: the tenant asks for more than it may.
            Saturated: no room, and no place in the line.
        """
        share = self._shares.get(tenant, _DEFAULT)
        now_s = self._clock()
        ticket = Ticket(
            tenant=tenant,
            weight=share.weight,
            priority=share.priority,
            cost_tokens=1 + size_bytes // _BYTES_PER_TOKEN,
            size_bytes=size_bytes,
            since_s=now_s,
            model=model,
        )
        if share.requests_per_second or share.concurrent:
            ticket.quota = self._within_quota(tenant, share, now_s)
        if not self._waiting and self._room():
            self._admit(ticket)
        else:
            self._line_up(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The request has ended, or its client left while it waited."""
        if ticket.admitted:
            ticket.admitted = False
            self.admitted -= 1
            self._departures_s.append(self._clock())
        elif self._queue.remove(ticket):
            self._forget(ticket)
        if ticket.quota is not None:
            ticket.quota.leave()
            ticket.quota = None
        if self._waiting:
            self.dispatch()

    def dispatch(self) -> None:
        """Lets go on whoever there is room for; called whenever room may have come."""
        # The stage is asked once: those who go on now show in its load only when they have been sent.
        go_on = bool(self._queue) and self._room()
        while go_on:
            ticket = self._queue.pop(self._clock())
            assert isinstance(ticket, Ticket)
            self._forget(ticket)
            self._admit(ticket)
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_result(None)
            go_on = bool(self._queue) and self._spare_tokens > 0 and self.admitted < self._max_concurrent

    def sleep(self, *, asleep: bool) -> None:
        """Says whether the pool is at zero or on its way up: requests are then held for as long as a start may take."""
        now_s = self._clock()
        if asleep and self._asleep_since_s is None:
            self._asleep_since_s = now_s
        elif not asleep and self._asleep_since_s is not None:
            if self._queue:  # else nobody asked it to wake
                self._last_wake_s = now_s - self._asleep_since_s
            self._asleep_since_s = None
            self._woken_s = now_s
            self._hold_s = self._limits.wake_seconds
            self.dispatch()

    @property
    def asleep(self) -> bool:
        """Requests are held until the pool has woken."""
        return self._asleep_since_s is not None

    @property
    def may_hold(self) -> bool:
        """Requests may be held while the pool wakes, or some are and will be."""
        return self._limits.wake_seconds > 0 or (self._hold_s > 0 and self.asleep and bool(self._queue))

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._queue)

    @property
    def accepts(self) -> bool:
        """A request that came now would be admitted or put in line."""
        return (not self._queue and self._room()) or self._has_place(0)

    def tick(self) -> None:
        """Ends the wait of those whose time is over, and lets go on whoever there is room for."""
        if not self._queue:
            return
        now_s = self._clock()
        if self.asleep:
            self._end_overdue(now_s, self._hold_s, "The pool did not wake in time.")
        elif now_s - self._woken_s > self._limits.queue_seconds:
            # Whoever was held while the pool woke gets its whole time in line from then on.
            self._end_overdue(now_s, self._limits.queue_seconds, "No engine had room for this request in time.")
        self.dispatch()

    # --- within --------------------------------------------------------------------------------------------------
    def _room(self) -> bool:
        if self.admitted >= self._max_concurrent or self._asleep_since_s is not None:
            return False
        if self._spare_tokens <= 0:
            self._spare_tokens = self.spare_tokens()
        return self._spare_tokens > 0

    def _admit(self, ticket: Ticket) -> None:
        ticket.admitted = True
        self.admitted += 1
        self._spare_tokens -= ticket.cost_tokens

    def _has_place(self, size_bytes: int) -> bool:
        limits = self._limits
        return len(self._queue) < limits.max_queued and self._queue.size_bytes + size_bytes <= limits.max_queued_bytes

    def _line_up(self, ticket: Ticket) -> None:
        if not self._has_place(ticket.size_bytes):
            if ticket.quota is not None:
                ticket.quota.leave()
            raise self._saturated("The router has as many requests waiting as it may.")
        ticket.turn = self._new_turn()
        self._queue.push(ticket)
        self._queued[ticket.model] = self._queued.get(ticket.model, 0) + 1

    def _forget(self, ticket: Ticket) -> None:
        self._queued[ticket.model] -= 1

    def _end_overdue(self, now_s: float, limit_s: float, why: str) -> None:
        for ticket in self._queue.overdue(now_s, limit_s):
            assert isinstance(ticket, Ticket)
            self._queue.remove(ticket)
            self._forget(ticket)
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_exception(self._saturated(why))

    def _within_quota(self, tenant: str, share: Share, now_s: float) -> Quota:
        quota = self._quotas.get(tenant)
        if quota is None:
            quota = self._quotas[tenant] = Quota(rate_per_s=share.requests_per_second, concurrent=share.concurrent)
        wait_s = quota.enter(now_s)
        if wait_s:
            raise RateLimited("The key's limit is reached.", retry_after_s=max(1, ceil(wait_s)))
        return quota

    def _saturated(self, why: str) -> Saturated:
        return Saturated(why, retry_after_s=min(_LONGEST_RETRY_S, max(1, ceil(self._until_room_s()))))

    def _until_room_s(self) -> float:
        """When a place may be free: what waits over the recent rate of ends; while asleep, what the last start took."""
        if self._asleep_since_s is not None:
            return self._last_wake_s - (self._clock() - self._asleep_since_s)
        if len(self._departures_s) < 2:  # noqa: PLR2004 - one end makes no rate
            return 1.0
        span_s = self._clock() - self._departures_s[0]
        return (len(self._queue) + 1) * span_s / len(self._departures_s)


_DEFAULT: Final = Share()


def _on_the_running_loop() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _boundless() -> float:
    return float("inf")
