"""Connections to engines: one asyncio protocol per connection, kept alive and used again per endpoint.

Boundary: bytes of one request out, one answer in, told to a `Receiver` read by read; no retries but one: an idle
connection that the engine closed just then is replaced by a fresh one, unseen by the caller. Why protocols and not
streams: an answer's chunk costs one callback and no task switch.
"""

from __future__ import annotations

import asyncio
import select
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pdpool_router.faults import ConnectFailed, EngineFault, EngineMalformed, EngineReset, EngineTimedOut
from pdpool_router.forward.framing import MAX_HEAD_BYTES, Chunks, Framing, FramingError, Head, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.records import Endpoint

MAX_IDLE_PER_ENDPOINT: Final = 256
IDLE_KEPT_S: Final = 30.0
STALE_AFTER_S: Final = 1.0
"""Engines end connections that are idle for seconds, never for less."""
STALE_SEEN_WITHIN_S: Final = 1.0
"""The end of such a connection arrives about when the request does; later it is the request's own end."""
_NO_BODY_BEFORE: Final = 200
_SERVER_ERROR: Final = 500


class StaleConnectionError(Exception):
    """A kept connection was closed by the engine before it saw the request."""


class Receiver(Protocol):
    """Takes one answer; callbacks run inside the read, so they must be short."""

    done: asyncio.Future[Any]
    """Resolved by the receiver when it is through."""

    def on_sent(self, upstream: Upstream) -> None:
        """The request was written on `upstream`."""

    def on_head(self, head: Head, now_s: float) -> None:
        """Status and headers are there."""

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """Some of the body: the bytes as they were read, and the same without chunked coding.

        `last`: the body is whole with them (unknown, hence False, where the connection's end is the body's).
        """

    def on_end(self, now_s: float) -> None:
        """The body is whole."""

    def on_fault(self, fault: Exception) -> None:
        """The answer will not be whole."""


class _StatusOnly:
    """Takes an answer for its status."""

    def __init__(self) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._status = 0

    def on_sent(self, upstream: Upstream) -> None:
        pass

    def on_head(self, head: Head, now_s: float) -> None:
        del now_s
        self._status = head.status

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        pass

    def on_end(self, now_s: float) -> None:
        del now_s
        if not self.done.done():
            self.done.set_result(self._status)

    def on_fault(self, fault: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(fault)


class Upstream(asyncio.Protocol):
    """One connection to an engine; serves one request at a time."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_head",
        "_idled_s",
        "_left",
        "_looked_late",
        "_lost",
        "_owner",
        "_poller",
        "_receiver",
        "_transport",
        "deadline_s",
        "endpoint",
        "heard_s",
        "idle_s",
        "once",
        "paused",
        "was_at_chunk_boundary",
    )

    def __init__(self, owner: Transport, endpoint: Endpoint) -> None:
        self._owner = owner
        self.endpoint: Final = endpoint
        self._transport: asyncio.Transport | None = None
        self._poller = select.poll()
        self._receiver: Receiver | None = None
        self._head: Head | None = None
        self._chunks: Chunks | None = None
        self._buffer = b""
        self._idled_s = 0.0
        self._left = 0
        self._lost = False
        self._looked_late = False
        self.paused = False
        self.was_at_chunk_boundary = True
        """The bytes before the present read ended between two chunks."""
        self.heard_s = 0.0
        self.deadline_s = 0.0
        self.idle_s = 0.0
        self.once = False
        """It was said to the engine that nothing follows, whether or not the answer repeats it."""

    # --- the caller's side ---------------------------------------------------------------------------------------
    def send(self, request: bytes, receiver: Receiver, *, total_s: float, idle_s: float) -> None:
        """Writes a request; the answer goes to `receiver`, within `total_s`, without a silence of `idle_s` (0: any)."""
        now_s = monotonic()
        self._receiver = receiver
        self._head = None
        self._idled_s = now_s - self.heard_s if self.heard_s else 0.0
        self.heard_s = now_s
        self.deadline_s = now_s + total_s if total_s else float("inf")
        self.idle_s = idle_s or float("inf")
        self._owner.busy.add(self)
        receiver.on_sent(self)
        if self._lost or self._transport is None:
            self._fail(EngineReset("The engine closed the connection."))
            return
        self._transport.write(request)

    def abandon(self) -> None:
        """Nobody wants the rest of the answer: the connection is reset, so that the engine notices at once."""
        self._receiver = None
        self._owner.busy.discard(self)
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def abandon_for(self, receiver: Receiver) -> None:
        """Abandons the answer if it still is that receiver's: a kept connection may long serve another request."""
        if self._receiver is receiver:
            self.abandon()

    def pause(self) -> None:
        """Reads no more until `resume`: the client takes the answer more slowly than the engine makes it."""
        if not self.paused and self._transport is not None and not self._lost:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Goes on after `pause`."""
        if self.paused and self._transport is not None:
            self.paused = False
            self.heard_s = monotonic()
            if not self._lost:
                self._transport.resume_reading()

    def expire_if_late(self, now_s: float) -> None:
        """Gives up an engine that is past its time; time blocked by the client does not count as silence."""
        if now_s <= self.deadline_s and (self.paused or now_s - self.heard_s <= self.idle_s):
            self._looked_late = False
        elif not self._looked_late:
            # Looked at once more: where this process itself was held up, the answer may lie unread.
            self._looked_late = True
        else:
            self._fail(EngineTimedOut("The engine did not answer in time."))
            self.abandon()

    def quiet(self) -> bool:
        """Nothing has come on an idle connection, its end included, that the event loop has not told yet."""
        return not self._lost and not self._poller.poll(0)

    def close(self) -> None:
        """Closes an idle connection."""
        if self._transport is not None:
            self._transport.close()

    # --- the event loop's side -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # uvloop's transports have the methods, but not the base class.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poller.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._receiver is None:
            # Bytes that no request asked for: the next answer could not be told from them.
            self.abandon()
            return
        now_s = self.heard_s = monotonic()
        try:
            if self._chunks is not None:
                payload = self._chunks.single(data)
                if payload is not None:
                    self.was_at_chunk_boundary = True
                    self._receiver.on_body(data, payload, now_s, last=False)
                    return
            if self._head is None:
                self._on_head_bytes(data, now_s)
            else:
                self._on_body_bytes(data, now_s)
        except FramingError:
            self._fail(EngineMalformed("The engine's answer is not valid HTTP."))
            self.abandon()

    def eof_received(self) -> None:
        """Called by the event loop; the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._lost = True
        self._owner.forget(self)
        receiver = self._receiver
        if receiver is None:
            return
        head = self._head
        now_s = monotonic()
        if head is not None and head.framing is Framing.CLOSE and exc is None:
            self._finish(now_s)
        elif (
            head is None
            and not self._buffer
            and self._idled_s >= STALE_AFTER_S
            and now_s - self.heard_s < STALE_SEEN_WITHIN_S
        ):
            # Most likely the engine ended a connection that it thought idle, before it saw the request. One that was
            # in use just now broke for another reason, and the request may have been seen.
            self._receiver = None
            receiver.on_fault(StaleConnectionError())
        else:
            self._fail(EngineReset("The engine broke the connection."))

    # --- the answer ----------------------------------------------------------------------------------------------
    def _on_head_bytes(self, data: bytes, now_s: float) -> None:
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > MAX_HEAD_BYTES:
                    raise FramingError("too long a head")
                self._buffer = buffer
                return
            head = parse_head(buffer[:end])
            buffer = buffer[end + 4 :]
            if head.status >= _NO_BODY_BEFORE:
                break  # an interim answer (1xx) is followed by the final one
        self._buffer = b""
        self._head = head
        receiver = self._receiver
        assert receiver is not None
        receiver.on_head(head, now_s)
        if head.framing is Framing.LENGTH:
            self._left = head.length
            if not head.length:
                if buffer:
                    raise FramingError("bytes after the answer")
                self._finish(now_s)
                return
        elif head.framing is Framing.CHUNKED:
            self._chunks = Chunks()
        if buffer and self._receiver is receiver:
            self._on_body_bytes(buffer, now_s)

    def _on_body_bytes(self, data: bytes, now_s: float) -> None:
        receiver = self._receiver
        head = self._head
        assert receiver is not None
        assert head is not None
        if head.framing is Framing.CHUNKED:
            assert self._chunks is not None
            pieces: list[bytes] = []
            self.was_at_chunk_boundary = self._chunks.at_boundary
            end = self._chunks.feed(data, 0, pieces)
            if 0 <= end < len(data):
                raise FramingError("bytes after the answer")
            receiver.on_body(data, pieces[0] if len(pieces) == 1 else b"".join(pieces), now_s, last=end >= 0)
            if end >= 0:
                self._finish(now_s)
        elif head.framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left < 0:
                raise FramingError("bytes after the answer")
            receiver.on_body(data, data, now_s, last=not self._left)
            if not self._left:
                self._finish(now_s)
        else:
            receiver.on_body(data, data, now_s, last=False)

    @property
    def at_chunk_boundary(self) -> bool:
        """The bytes so far end between two chunks."""
        return self._chunks is not None and self._chunks.at_boundary

    def _finish(self, now_s: float) -> None:
        receiver = self._receiver
        if receiver is None:
            return  # given up by the receiver itself, inside its callback
        head = self._head
        assert head is not None
        self._receiver = None
        self._head = None
        self._chunks = None
        if self.paused:
            self.resume()
        if head.keep_alive and not self._lost and not self.once:
            self._owner.keep(self, now_s)
        else:
            self._owner.busy.discard(self)
            self.close()
        receiver.on_end(now_s)

    def _fail(self, fault: EngineFault) -> None:
        receiver = self._receiver
        self._receiver = None
        self._owner.busy.discard(self)
        if receiver is not None:
            receiver.on_fault(fault)


class Transport:
    """All connections to engines."""

    def __init__(self, *, on_dial: Callable[[Endpoint], None] | None = None) -> None:
        self.busy: set[Upstream] = set()
        self._idle: dict[str, list[Upstream]] = {}
        self._on_dial = on_dial
        self._closing = False

    async def call(
        self,
        endpoint: Endpoint,
        request: bytes,
        receiver: Receiver,
        *,
        connect_s: float,
        total_s: float = 0,
        idle_s: float = 0,
    ) -> Any:
        """Sends one request and waits until its receiver is through; the receiver's result.

        Cancelling it resets the connection.

        Raises:
            EngineFault: as the receiver decides; `ConnectFailed` where no connection could be made.
        """
        upstream = self._kept(endpoint)
        while True:
            if upstream is None:
                upstream = await self._dial(endpoint, connect_s)
            try:
                upstream.send(request, receiver, total_s=total_s, idle_s=idle_s)
                return await receiver.done
            except StaleConnectionError:
                upstream = None
                receiver.done = asyncio.get_running_loop().create_future()
            finally:
                if upstream is not None:
                    upstream.abandon_for(receiver)

    def _kept(self, endpoint: Endpoint) -> Upstream | None:
        """The connection kept last, the likeliest to be open."""
        idle = self._idle.get(endpoint.uid)
        while idle:
            upstream = idle.pop()
            if upstream.quiet():
                return upstream
            upstream.abandon()
        return None

    async def healthy(self, endpoint: Endpoint, timeout_s: float) -> bool:
        """Whether `GET /health` is answered within `timeout_s`, and not by 5xx.

        Raises:
            EngineFault: it is not answered.
        """
        # A connection of its own: what is kept must be what answered requests.
        request = b"GET /health HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % endpoint.authority.encode()
        receiver = _StatusOnly()
        upstream = await self._dial(endpoint, timeout_s)
        upstream.once = True
        try:
            upstream.send(request, receiver, total_s=timeout_s, idle_s=0)
            return await receiver.done < _SERVER_ERROR
        finally:
            upstream.abandon_for(receiver)

    async def _dial(self, endpoint: Endpoint, connect_s: float) -> Upstream:
        if self._on_dial is not None:
            self._on_dial(endpoint)
        try:
            async with asyncio.timeout(connect_s):
                _, upstream = await asyncio.get_running_loop().create_connection(
                    lambda: Upstream(self, endpoint), endpoint.host, endpoint.port
                )
        except (OSError, TimeoutError, UnicodeError) as fault:  # the last: a name that cannot be one of a host
            raise ConnectFailed("No connection to the engine.") from fault
        return upstream

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
