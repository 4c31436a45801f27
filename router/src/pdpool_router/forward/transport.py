"""All connections to engines: what is kept and used again, what is dialled, who is too slow.

Boundary: a request goes to an endpoint on a kept or a new connection; the connection itself is `upstream`. An idle
connection that the engine closed just then is replaced by a fresh one, unseen by the caller; nothing else is retried.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from pdpool_router.faults import ConnectFailed
from pdpool_router.forward.upstream import Body, Call, Receiver, Upstream

if TYPE_CHECKING:
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.upstream import Carrier
    from pdpool_router.records import Endpoint

MAX_IDLE_PER_ENDPOINT: Final = 256
IDLE_KEPT_S: Final = 30.0
_SERVER_ERROR: Final = 500


class Transport:
    """All connections to engines."""

    def __init__(self) -> None:
        self.busy: set[Upstream] = set()
        self._idle: dict[str, list[Upstream]] = {}
        self._closing = False

    def send(self, endpoint: Endpoint, call: Call) -> None:
        """Sends a request; all that comes of it, the want of a connection included, goes to its receiver."""
        idle = self._idle.get(endpoint.uid)
        while idle:
            upstream = idle.pop()  # the one kept last is the likeliest to be open
            if upstream.quiet():
                upstream.send(call)
                return
            upstream.abandon()
        self.dial(endpoint, call)

    def dial(self, endpoint: Endpoint, call: Call) -> None:
        """Sends a request on a connection of its own."""
        _Dialling(self, endpoint, call)

    async def connect(self, endpoint: Endpoint, connect_s: float) -> Upstream:
        """A new connection.

        Raises:
            ConnectFailed: none could be made in time.
        """
        try:
            async with asyncio.timeout(connect_s):
                _, upstream = await asyncio.get_running_loop().create_connection(
                    lambda: Upstream(self, endpoint), endpoint.host, endpoint.port
                )
        except (OSError, TimeoutError, UnicodeError) as fault:  # the last: a name that cannot be one of a host
            raise ConnectFailed("No connection to the engine.") from fault
        return upstream

    async def healthy(self, endpoint: Endpoint, timeout_s: float) -> bool:
        """Whether `GET /health` is answered within `timeout_s`, and not by 5xx.

        Raises:
            EngineFault: it is not answered.
        """
        # A connection of its own: what is kept must be what answered requests.
        request = b"GET /health HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % endpoint.authority.encode()
        receiver = _StatusOnly()
        upstream = await self.connect(endpoint, timeout_s)
        upstream.once = True
        try:
            upstream.send(Call(request, receiver, timeout_s, timeout_s))
            return await receiver.status < _SERVER_ERROR
        finally:
            upstream.abandon_for(receiver)

    def keep(self, upstream: Upstream, now_s: float) -> None:
        """Takes back a connection whose answer is whole."""
        self.busy.discard(upstream)
        upstream.heard_s = now_s
        idle = self._idle.get(upstream.endpoint.uid)
        if idle is None:
            idle = self._idle[upstream.endpoint.uid] = []
        if self._closing or len(idle) >= MAX_IDLE_PER_ENDPOINT:
            upstream.close()
        else:
            idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        """A connection is gone."""
        self.busy.discard(upstream)
        idle = self._idle.get(upstream.endpoint.uid)
        if idle and upstream in idle:
            idle.remove(upstream)

    def drop(self, endpoint: Endpoint) -> None:
        """Closes what is kept for an endpoint that is gone."""
        for upstream in self._idle.pop(endpoint.uid, ()):
            upstream.close()

    def sweep(self) -> None:
        """Gives up late engines and closes connections that were idle for long; called by the ticker."""
        now_s = monotonic()
        for upstream in list(self.busy):
            upstream.expire_if_late(now_s)
        for uid, idle in list(self._idle.items()):
            # The oldest stand first: the last one kept is the first one used again.
            while idle and now_s - idle[0].heard_s > IDLE_KEPT_S:
                idle.pop(0).close()
            if not idle:
                del self._idle[uid]

    def close(self) -> None:
        """Closes every connection."""
        self._closing = True
        for upstream in list(self.busy):
            upstream.abandon()
        for uid in list(self._idle):
            for upstream in self._idle.pop(uid):
                upstream.close()


class _Dialling:
    """A request whose connection is being made: the one thing on its path that takes a task."""

    def __init__(self, transport: Transport, endpoint: Endpoint, call: Call) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._call = call
        call.receiver.carrier = self
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            (await self._transport.connect(self._endpoint, self._call.connect_s)).send(self._call)
        except Exception as fault:  # noqa: BLE001 - a failed connection, or a defect: nobody else would be told
            self._call.receiver.on_fault(fault)

    def abandon_for(self, receiver: Receiver) -> None:
        """See `Carrier`."""
        if receiver.carrier is self:
            self._task.cancel()


class _StatusOnly:
    """Takes an answer for its status."""

    def __init__(self) -> None:
        self.carrier: Carrier | None = None
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        del body, now_s
        if not self.status.done():
            self.status.set_result(head.status)

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        del upstream, now_s
        self._head = head
        return self

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        pass

    def on_end(self, now_s: float) -> None:
        self.on_answer(self._head, b"", now_s)

    def on_fault(self, fault: Exception) -> None:
        if not self.status.done():
            self.status.set_exception(fault)
