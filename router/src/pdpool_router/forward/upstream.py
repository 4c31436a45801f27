"""One connection to an engine: an asyncio protocol that carries one request at a time and is used again.

Boundary: bytes of a request out, one answer in, told to a `Receiver` read by read; it never retries. Why a protocol
and not a stream: an answer's chunk costs one callback and no task switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, cast

from pdpool_router.faults import EngineMalformed, EngineReset, EngineTimedOut
from pdpool_router.forward.framing import MAX_HEAD_BYTES, Chunks, Framing, FramingError, Head, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.forward.call import Body, Call, Receiver
    from pdpool_router.records import Endpoint

MAX_IDLE_PER_ENDPOINT: Final = 256
STALE_AFTER_S: Final = 1.0
"""Engines end connections that are idle for seconds, never for less."""
STALE_SEEN_WITHIN_S: Final = 1.0
"""The end of such a connection arrives about when the request does; later it is the request's own end."""
_NO_BODY_BEFORE: Final = 200
_HEAD_END: Final = b"\r\n\r\n"
_NEVER: Final = float("inf")
# Only Linux can be told to acknowledge by and by.
_TCP_QUICKACK: Final = getattr(socket, "TCP_QUICKACK", None)


class Shelf:
    """The idle connections to one incarnation of an endpoint, the one used last at the end."""

    __slots__ = ("idle", "room")

    def __init__(self) -> None:
        self.idle: list[Upstream] = []
        self.room = MAX_IDLE_PER_ENDPOINT
        """How many it may hold."""

    def close(self) -> None:
        """Closes what is kept, and keeps nothing any more: the endpoint is gone, or the router ends."""
        self.room = 0
        while self.idle:
            self.idle.pop().close()


class Owner(Protocol):
    """Who keeps connections."""

    def made(self, upstream: Upstream) -> Shelf:
        """A connection is there; where it is to be kept."""

    def lost(self, upstream: Upstream) -> None:
        """A connection is gone."""

    def dial(self, endpoint: Endpoint, call: Call) -> None:
        """Sends a request on a connection of its own."""


class Upstream(asyncio.Protocol):
    """One connection to an engine; serves one request at a time."""

    __slots__ = (
        "_body",
        "_buffer",
        "_call",
        "_chunks",
        "_head",
        "_idle_s",
        "_left",
        "_looked_late",
        "_lost",
        "_owner",
        "_poller",
        "_receiver",
        "_sent_s",
        "_socket",
        "_total_s",
        "_transport",
        "_write",
        "broke_at_chunk_boundary",
        "endpoint",
        "heard_s",
        "on_event",
        "once",
        "paused",
        "shelf",
        "was_at_chunk_boundary",
    )

    def __init__(self, owner: Owner, endpoint: Endpoint) -> None:
        self._owner = owner
        self.endpoint: Final = endpoint
        self.shelf: Shelf
        """Where it is kept while it is idle; known once the connection is made."""
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None]
        self._socket: socket.socket | None = None
        self._poller = select.poll()
        self._call: Call | None = None
        """What may have to be sent once more; until the answer begins."""
        self._receiver: Receiver | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._chunks: Chunks | None = None
        self._buffer = b""
        self._left = 0
        self._lost = False
        self._looked_late = False
        self._sent_s = 0.0
        self._total_s = _NEVER
        self._idle_s = _NEVER
        self.on_event: Callable[[bytes, float], bool] | None = None
        """Takes a read that is one whole chunk and nothing unusual, or tells that it is not; set by who takes a body,
        while what came so far ended between two chunks."""
        self.paused = False
        self.was_at_chunk_boundary = True
        """The bytes before the present read ended between two chunks."""
        self.broke_at_chunk_boundary = False
        """The same of an answer that broke: of all its bytes that were told."""
        self.heard_s = 0.0
        self.once = False
        """It was said to the engine that nothing follows, whether or not the answer repeats it."""

    # --- the caller's side ---------------------------------------------------------------------------------------
    def send(self, call: Call) -> None:
        """Writes a request; the answer goes to its receiver."""
        receiver = self._receiver = call.receiver
        receiver.carrier = self
        self._sent_s = monotonic()
        if self._lost:
            self._fail(EngineReset("The engine closed the connection."))
            return
        self._call = call
        self._write(call.request)

    def send_if_quiet(self, call: Call) -> bool:
        """The same on an idle connection; False: something came on it, its end perhaps, and it is of no more use."""
        if self._lost or self._poller.poll(0):  # also what the event loop has not told yet
            return False
        receiver = self._receiver = call.receiver
        receiver.carrier = self
        self._sent_s = monotonic()
        self._call = call
        self._write(call.request)
        return True

    @property
    def busy(self) -> bool:
        """An answer is due."""
        return self._receiver is not None

    def abandon_for(self, receiver: Receiver) -> None:
        """See `Carrier`: a kept connection may long serve another request."""
        if self._receiver is receiver:
            self.abandon()

    def abandon(self) -> None:
        """Nobody wants the rest of the answer: the connection is reset, so that the engine notices at once."""
        self._forget_answer()
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def expect_many(self) -> None:
        """Many small reads follow: let the kernel acknowledge every other one, instead of each with a packet."""
        if _TCP_QUICKACK is not None and self._socket is not None:
            with contextlib.suppress(OSError):  # it only saves work
                self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 0)

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
        if self._receiver is None:
            return
        if self._call is not None:
            self._note_limits(self._call)
        silent_since_s = max(self._sent_s, self.heard_s)
        if now_s - self._sent_s <= self._total_s and (self.paused or now_s - silent_since_s <= self._idle_s):
            self._looked_late = False
        elif not self._looked_late:
            # Looked at once more: where this process itself was held up, the answer may lie unread.
            self._looked_late = True
        else:
            self._fail(EngineTimedOut("The engine did not answer in time."), abandon=True)

    def _note_limits(self, call: Call) -> None:
        self._total_s = call.total_s or _NEVER
        self._idle_s = call.idle_s or _NEVER

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
        self._write = transport.write
        sock = self._socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poller.register(sock.fileno(), select.POLLIN)
        self.shelf = self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        now_s = self.heard_s = monotonic()
        try:
            if self.on_event is not None:
                if self.on_event(data, now_s):
                    return
                self.on_event = None
            if self._body is not None:
                self._on_body_bytes(data, now_s)
            elif self._receiver is not None:
                self._on_head_bytes(data, now_s)
            else:
                # Bytes that no request asked for: the next answer could not be told from them.
                self.abandon()
        except FramingError:
            told_whole_chunks = self.on_event is not None or self.was_at_chunk_boundary
            fault = EngineMalformed("The engine's answer is not valid HTTP.")
            self._fail(fault, abandon=True, told_whole_chunks=told_whole_chunks)
        except Exception as defect:
            if self._receiver is None:
                raise  # nobody waits any more: the event loop tells it and closes the connection
            self._fail(defect, abandon=True)

    def eof_received(self) -> None:
        """Called by the event loop; the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._lost = True
        self._owner.lost(self)
        if self._receiver is None:
            return
        now_s = monotonic()
        if self._head is not None and self._head.framing is Framing.CLOSE and exc is None:
            self._finish(now_s)
        elif self._is_stale(now_s):
            call = self._call
            assert call is not None
            self._forget_answer()
            self._owner.dial(self.endpoint, call)
        else:
            self._fail(EngineReset("The engine broke the connection."))

    def _is_stale(self, now_s: float) -> bool:
        """Most likely the engine ended a connection that it thought idle, before it saw the request.

        One that was in use just now broke for another reason, and the request may have been seen.
        """
        return (
            self._call is not None
            and not self._buffer
            and 0 < self.heard_s <= self._sent_s - STALE_AFTER_S
            and now_s - self._sent_s < STALE_SEEN_WITHIN_S
        )

    # --- the answer ----------------------------------------------------------------------------------------------
    def _on_head_bytes(self, data: bytes, now_s: float) -> None:
        if self._buffer:
            data = self._buffer + data
        while True:
            end = data.find(_HEAD_END)
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise FramingError("too long a head")
                self._buffer = data
                return
            head = parse_head(data[:end])
            rest = data[end + 4 :]
            if head.status >= _NO_BODY_BEFORE:
                break
            data = rest  # an interim answer (1xx) is followed by the final one
        if len(rest) == head.whole_bytes:  # most answers that are no streams come in one read
            receiver = self._receiver
            assert receiver is not None
            self._receiver = self._call = None
            self._buffer = b""
            self._keep_or_close(head)
            receiver.on_answer(head, rest, now_s)
            return
        self._buffer = b""
        self._begin_body(head, rest, now_s)

    def _begin_body(self, head: Head, rest: bytes, now_s: float) -> None:
        call = self._call
        assert call is not None
        if head.framing is Framing.LENGTH and len(rest) > head.length:
            raise FramingError("bytes after the answer")
        self._note_limits(call)
        self._call = None
        self._head = head
        self._left = head.length
        if head.framing is Framing.CHUNKED:
            self._chunks = Chunks()
        self._body = call.receiver.on_head(head, self, now_s)
        if rest:
            self._on_body_bytes(rest, now_s)
        elif head.framing is Framing.LENGTH and not head.length:
            self._finish(now_s)

    def _on_body_bytes(self, data: bytes, now_s: float) -> None:
        head, body = self._head, self._body
        assert head is not None
        assert body is not None
        if self._chunks is not None:
            pieces: list[bytes] = []
            self.was_at_chunk_boundary = self._chunks.at_boundary
            end = self._chunks.feed(data, 0, pieces)
            if 0 <= end < len(data):
                raise FramingError("bytes after the answer")
            last = end >= 0
            body.on_body(data, pieces[0] if len(pieces) == 1 else b"".join(pieces), now_s, last=last)
        elif head.framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left < 0:
                raise FramingError("bytes after the answer")
            last = not self._left
            body.on_body(data, data, now_s, last=last)
        else:
            last = False
            body.on_body(data, data, now_s, last=False)
        if last and self._body is not None:  # else it was given up inside the callback
            self._finish(now_s)

    def hand_over_to(self, body: Body) -> None:
        """Somebody else takes the rest of the body."""
        self._body = body

    @property
    def at_chunk_boundary(self) -> bool:
        """The bytes so far end between two chunks."""
        return self._chunks is not None and self._chunks.at_boundary

    def _finish(self, now_s: float) -> None:
        head, body = self._head, self._body
        assert head is not None
        assert body is not None
        self._forget_answer()
        if self.paused:
            self.resume()
        self._keep_or_close(head)
        body.on_end(now_s)

    def _keep_or_close(self, head: Head) -> None:
        shelf = self.shelf
        if head.keep_alive and not self.once and len(shelf.idle) < shelf.room:
            shelf.idle.append(self)
        else:
            self.close()

    def _fail(self, fault: Exception, *, abandon: bool = False, told_whole_chunks: bool | None = None) -> None:
        """Tells whoever waits for the answer; `abandon`: the connection is of no more use, and reset before that."""
        told = self._body or self._receiver
        self.broke_at_chunk_boundary = self.at_chunk_boundary if told_whole_chunks is None else told_whole_chunks
        if abandon:
            self.abandon()
        else:
            self._forget_answer()
        if told is not None:
            told.on_fault(fault)

    def _forget_answer(self) -> None:
        self._call = None
        self._receiver = None
        self._head = None
        self._body = None
        self._chunks = None
        self._buffer = b""
        self.on_event = None
