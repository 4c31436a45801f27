"""All connections to engines: what is kept and used again, what is dialled, who is too slow.

Boundary: a request goes to an endpoint on a kept or a new connection; the connection itself is `upstream`. An idle
connection that the engine closed just then is replaced by a fresh one, unseen by the caller; nothing else is retried.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from pdpool_router.faults import ConnectFailed, EngineMalformed
from pdpool_router.forward.call import Body, Call, Receiver
from pdpool_router.forward.upstream import Shelf, Upstream
from pdpool_router.forward.whole import MAX_HELD_BYTES, Whole

if TYPE_CHECKING:
    from pdpool_router.forward.call import Carrier
    from pdpool_router.forward.framing import Head
    from pdpool_router.records import Endpoint

IDLE_KEPT_S: Final = 30.0
_SERVER_ERROR: Final = 500


class Transport:
    """All connections to engines."""

    def __init__(self) -> None:
        self._connections: set[Upstream] = set()
        self._shelves: dict[str, Shelf] = {}
        self._dialling: set[_Dialling] = set()

    @property
    def busy(self) -> list[Upstream]:
        """Connections on which an answer is due."""
        return [upstream for upstream in self._connections if upstream.busy]

    def shelf(self, endpoint: Endpoint) -> Shelf:
        """Where connections to an endpoint are kept."""
        return self._shelves.setdefault(endpoint.uid, Shelf())

    def send(self, endpoint: Endpoint, call: Call) -> None:
        """Sends a request; all that comes of it, the want of a connection included, goes to its receiver."""
        shelf = self._shelves.get(endpoint.uid)
        if shelf is not None:
            idle = shelf.idle
            while idle:
                upstream = idle.pop()  # the one kept last is the likeliest to be open
                if upstream.send_if_quiet(call):
                    return
                upstream.abandon()
        self.dial(endpoint, call)

    def dial(self, endpoint: Endpoint, call: Call) -> None:
        """Sends a request on a connection of its own."""
        self._dialling.add(_Dialling(self, endpoint, call))

    def dialled(self, dialling: _Dialling) -> None:
        """A connection was made, or will not be."""
        self._dialling.discard(dialling)

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

    def made(self, upstream: Upstream) -> Shelf:
        """A connection is there; where it is to be kept."""
        self._connections.add(upstream)
        return self.shelf(upstream.endpoint)

    async def fetch(self, endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            EngineFault: it is not answered, or at too great length.
        """
        request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n"
        page = _Page()
        upstream = await self.connect(endpoint, timeout_s)  # of its own, as for `healthy`
        upstream.once = True
        try:
            upstream.send(Call(request % (path.encode(), endpoint.host_field), page, timeout_s, timeout_s))
            return await page.done
        finally:
            upstream.abandon_for(page)

    def lost(self, upstream: Upstream) -> None:
        """A connection is gone."""
        self._connections.discard(upstream)
        if upstream in upstream.shelf.idle:
            upstream.shelf.idle.remove(upstream)

    def drop(self, endpoint: Endpoint) -> None:
        """Closes what is kept for an endpoint that is gone; what is busy is closed when it is done.

        A connection that is still being made fails: nobody may ever answer there.
        """
        shelf = self._shelves.pop(endpoint.uid, None)
        if shelf is not None:
            shelf.close()
        for dialling in self._dialling:
            if dialling.endpoint.uid == endpoint.uid:
                dialling.give_up()

    def sweep(self) -> None:
        """Gives up late engines and closes connections that were idle for long; called by the ticker."""
        now_s = monotonic()
        for upstream in list(self._connections):
            upstream.expire_if_late(now_s)
        used = {upstream.shelf for upstream in self._connections}
        for uid, shelf in list(self._shelves.items()):
            # The oldest stand first: the last one kept is the first one used again.
            while shelf.idle and now_s - shelf.idle[0].heard_s > IDLE_KEPT_S:
                shelf.idle.pop(0).close()
            if shelf not in used:  # its endpoint may be gone
                del self._shelves[uid]

    def close(self) -> None:
        """Closes every connection."""
        for shelf in self._shelves.values():
            shelf.close()
        for upstream in list(self._connections):
            upstream.abandon()


class _Dialling:
    """A request whose connection is being made: the one thing on its path that takes a task."""

    def __init__(self, transport: Transport, endpoint: Endpoint, call: Call) -> None:
        self._transport = transport
        self.endpoint: Final = endpoint
        self._call = call
        self._is_gone = False
        call.receiver.carrier = self
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            (await self._transport.connect(self.endpoint, self._call.connect_s)).send(self._call)
        except Exception as fault:  # noqa: BLE001 - a failed connection, or a defect: nobody else would be told
            self._call.receiver.on_fault(fault)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._transport.dialled(self)
        if self._is_gone and task.cancelled():
            self._call.receiver.on_fault(ConnectFailed("The engine is gone."))

    def give_up(self) -> None:
        """The endpoint is gone: the receiver is told so, in a later turn of the loop."""
        self._is_gone = True
        self._task.cancel()

    def abandon_for(self, receiver: Receiver) -> None:
        """See `Carrier`."""
        if receiver.carrier is self:
            self._is_gone = False
            self._task.cancel()


class _Page:
    """Takes an answer whole."""

    def __init__(self) -> None:
        self.carrier: Carrier | None = None
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        del now_s
        if not self.done.done():
            self.done.set_result((head.status, body))

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        del now_s
        return Whole(self, head, upstream, MAX_HELD_BYTES)

    def on_too_much(self, head: Head, upstream: Upstream, first: bytes, now_s: float) -> None:
        del head, first, now_s
        upstream.abandon_for(self)
        self.on_fault(EngineMalformed("The engine's answer is too long."))

    def on_fault(self, fault: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(fault)


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
