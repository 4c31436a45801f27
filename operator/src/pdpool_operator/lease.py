"""Which replica acts: a Lease, held by renewing it and lost by the clock.

Boundary: runs one coroutine while this process leads; knows nothing of pools. Peering of kopf is no election, and the
client library's elector acts on through a silent network (its deadline is checked only between requests). Here the
deadline is kept by a clock that nobody has to answer:

- the Lease expires for others `expire_s` after they last saw it change, by their own monotonic clock (wall clocks
  differ);
- the leader is stopped `step_down_s` after the *start* of its last good renewal. As that plus a request's time-out is
  less than `expire_s`, two never act at once;
- a clean stop gives the Lease back, so that the successor need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from pdpool_operator.kube import ApiError, ForbiddenError, Kube, RejectedError
from pdpool_operator.records import LEASES, Json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """The periods of an election; `step_down_s + step_timeout_s` must stay below `expire_s`."""

    retry_s: float = 3.0
    expire_s: float = 30.0
    step_down_s: float = 20.0
    step_timeout_s: float = 5.0


class Election:
    """One candidate for one Lease."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        *,
        timing: Timing = Timing(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._seen: tuple[Any, ...] = ()
        self._seen_at = clock()
        self._good_at = float("-inf")
        self._waiting_for = ""
        self.leading = False

    def may_write(self) -> bool:
        """False once the last good renewal is too long ago, by the clock alone: also where nothing has run since."""
        return self._clock() < self._good_at + self._timing.step_down_s

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        """Waits for the Lease, runs `act` while holding it, and begins anew when it is lost; ends with `act`.

        Cancelling this stops `act` first, then gives the Lease back.
        """
        while True:
            await self._acquire()
            _log.info("leading", identity=self._identity)
            self.leading = True
            try:
                if await self._hold(act):
                    return
            finally:
                self.leading = False
                await self._release()
            _log.warning("no longer leading", identity=self._identity)

    async def _acquire(self) -> None:
        while not await self._step():  # noqa: ASYNC110 - the API server is asked, no event tells
            await asyncio.sleep(self._timing.retry_s)

    async def _hold(self, act: Callable[[], Awaitable[None]]) -> bool:
        """Runs `act` until it ends (True) or the Lease is lost (False)."""
        acting = asyncio.ensure_future(act())
        watchers = [asyncio.create_task(self._renew()), asyncio.create_task(self._deadline())]
        try:
            await asyncio.wait([acting, *watchers], return_when=asyncio.FIRST_COMPLETED)
            if acting.done():
                acting.result()
                return True
            return False
        finally:
            for task in (acting, *watchers):
                task.cancel()
            await asyncio.gather(acting, *watchers, return_exceptions=True)

    async def _renew(self) -> None:
        """Ends when somebody else holds the Lease."""
        while await self._renewed_or_silent():
            pass

    async def _renewed_or_silent(self) -> bool:
        """One renewal after a pause; False when somebody else was seen to hold the Lease."""
        await asyncio.sleep(self._timing.retry_s)
        return await self._step() or not self._seen or self._seen[0] == self._identity

    async def _deadline(self) -> None:
        """Ends when the last good renewal is too long ago, whatever requests are waiting for."""
        while (left_s := self._good_at + self._timing.step_down_s - self._clock()) > 0:  # noqa: ASYNC110 - a clock, not an event
            await asyncio.sleep(left_s)

    async def _step(self) -> bool:
        """Takes or renews the Lease if that is allowed; True when this process holds it now."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._timing.step_timeout_s):
                held = await self._take(began)
        except (ForbiddenError, RejectedError) as fault:  # it will not pass by itself: somebody has to know
            _log.warning("the Lease is refused", fault=str(fault))
            return False
        except (ApiError, TimeoutError) as fault:
            _log.debug("lease step failed", fault=str(fault) or type(fault).__name__)
            return False
        if held:
            self._good_at = began
        return held

    async def _take(self, now: float) -> bool:
        lease = await self._kube.get(LEASES, self._namespace, self._name)
        if lease is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._record({}),
            }
            self._note(await self._kube.create(LEASES, self._namespace, body), now)
            return True
        self._note(lease, now)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and now - self._seen_at < self._timing.expire_s:
            if holder != self._waiting_for:
                _log.info("standing by", holder=holder)
                self._waiting_for = holder
            return False
        # The object that was read goes back: its resourceVersion makes one of two candidates lose.
        self._note(await self._kube.replace(LEASES, self._namespace, {**lease, "spec": self._record(spec)}), now)
        return True

    def _note(self, lease: Json, now: float) -> None:
        spec = lease.get("spec") or {}
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now

    def _record(self, before: Json) -> Json:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        kept = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timing.expire_s),
            "renewTime": stamp,
            "acquireTime": before.get("acquireTime", stamp) if kept else stamp,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not kept),
        }

    async def _release(self) -> None:
        """Gives the Lease back if it is still ours; best effort, bounded."""
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._timing.step_timeout_s):
                lease = await self._kube.get(LEASES, self._namespace, self._name)
                if lease and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    spec = {**lease["spec"], "holderIdentity": ""}
                    await self._kube.replace(LEASES, self._namespace, {**lease, "spec": spec})
