"""One client's connection: an asyncio protocol that orders requests, ends what is too slow, and owns the socket.

Boundary: order of pipelined requests, closing, time limits on slow clients; bytes become requests in `reader`, what a
request means is the application's. Requests of one connection are served one after the other; a client that leaves
cancels the one in hand. Why not a framework: its own work per request is several times what the whole router takes
(docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, cast

from pdpool_router.edge.reader import Reader
from pdpool_router.faults import Fault, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.forward.upstream import Upstream

MAX_PIPELINED: Final = 16
WRITE_BUFFER_BYTES: Final = 131_072
IDLE_S: Final = 120.0
HEAD_S: Final = 20.0
BODY_SILENCE_S: Final = 30.0
BODY_BYTES_PER_S: Final = 1024
LINGER_S: Final = 5.0
STALLED_WRITE_S: Final = 300.0
PROBE_S: Final = 1.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Application(Protocol):
    """What serves the requests."""

    def screen(self, exchange: Exchange) -> Fault | None:
        """Judges a request by its head, before its body is read; sets `body_limit`."""

    def serve(self, exchange: Exchange) -> None:
        """Begins to serve a whole request; `Exchange.end` follows, now or later, whatever happens. Does not raise."""

    def ended(self, exchange: Exchange) -> None:
        """A request that was served is over: answered, broken, or its client is gone. Does not raise."""


class Port(Protocol):
    """What all connections share."""

    application: Application
    connections: set[Connection]
    shutting_down: bool


class Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_busy",
        "_eof",
        "_lingers_until_s",
        "_paused_since_s",
        "_probed_s",
        "_queue",
        "_reader",
        "_reading_paused",
        "_serving",
        "_transport",
        "application",
        "feed",
        "heard_s",
        "port",
        "write",
        "writing_paused",
    )

    def __init__(self, port: Port) -> None:
        self.port = port
        self.application: Final = port.application
        self._reader = Reader(self)
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] = _nowhere
        self.feed: Upstream | None = None
        """The engine's connection that answers now; paused while the client reads slowly."""
        self.writing_paused = False
        self.heard_s = 0.0
        self._queue: deque[Exchange] = deque()
        self._busy: Exchange | None = None
        self._serving = False
        self._reading_paused = False
        self._eof = False
        self._lingers_until_s = 0.0
        self._paused_since_s = 0.0
        self._probed_s = 0.0

    @property
    def busy(self) -> bool:
        """A request is in hand or its body still arrives, or an answer is not yet with the client's kernel."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return unsent or self._busy is not None or self._reader.current is not None

    # --- the event loop's side -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # uvloop's transports have the methods, but not the base class.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.write = transport.write
        self.heard_s = monotonic()
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.heard_s = monotonic()
        reader = self._reader
        if reader.sealed:
            return
        reader.feed(data)
        if self._queue and self._busy is None:
            self._serve()

    def eof_received(self) -> bool:
        """Called by the event loop; True keeps our side open.

        A client that closes and one that only ends its sending look alike. While an answer is due, an interim answer
        tells them apart: the kernel of one that has closed resets the connection.
        """
        self._eof = True
        self._reader.sealed = True
        if self._busy is None and not self._queue:
            return False
        half_open = self._transport is not None and self._transport.can_write_eof()
        if not half_open or (self._busy is not None and (self._busy.begun or not self._busy.chunked)):
            self.abort()  # with TLS there is no half-open: who ends its sending has left
            return False
        self._probe()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        del exc
        self.port.connections.discard(self)
        self._reader.sealed = True
        self._queue.clear()
        self.feed = None
        self.write = _nowhere
        exchange, self._busy = self._busy, None
        if exchange is not None:
            exchange.leave()
            self.application.ended(exchange)

    def pause_writing(self) -> None:
        """Called by the event loop: the client reads more slowly than we write."""
        self.writing_paused = True
        self._paused_since_s = monotonic()
        if self.feed is not None:
            self.feed.pause()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self.writing_paused = False
        if self.feed is not None:
            self.feed.resume()

    # --- order ---------------------------------------------------------------------------------------------------
    def take(self, exchange: Exchange) -> None:
        """Called by the reader: a request is whole, or refused."""
        exchange.arrived_s = self.heard_s
        self._queue.append(exchange)
        if len(self._queue) >= MAX_PIPELINED and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _serve(self) -> None:
        """Serves what waits, as far as it is answered at once."""
        self._serving = True
        try:
            while self._busy is None and self._queue:
                exchange = self._busy = self._queue.popleft()
                self.application.serve(exchange)
        finally:
            self._serving = False
        if self._reading_paused and len(self._queue) < MAX_PIPELINED // 2 and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def ended(self, exchange: Exchange) -> None:
        """Called by the exchange in hand: its answer is written or broken."""
        if exchange is not self._busy:
            return
        self._busy = None
        self.feed = None
        self.application.ended(exchange)
        transport = self._transport
        if transport is None or transport.is_closing():
            self._queue.clear()
        elif not exchange.begun:
            self._queue.clear()
            self.abort()
        elif not exchange.keep_alive:
            self._close()
        else:
            self.heard_s = monotonic()
            if self._queue:
                if not self._serving:
                    self._serve()
            elif self._eof:
                transport.close()
            elif self._reader.current is not None:
                self.allow_body()

    def allow_body(self) -> None:
        """Asks for a body whose sender waits for that, once its request is the next to be answered."""
        current = self._reader.current
        if current is not None and current.expects_continue and self._busy is None and not self._queue:
            current.expects_continue = False
            self.write(_CONTINUE)

    def _close(self) -> None:
        """Closes so that the client gets the answer: data left unread would reset the connection under it."""
        transport = self._transport
        assert transport is not None
        self._reader.sealed = True
        self._queue.clear()
        if self._eof or not transport.can_write_eof():
            transport.close()  # TLS reads and drops what still comes until its own end is answered
            return
        transport.write_eof()
        self._lingers_until_s = monotonic() + LINGER_S

    def abort(self) -> None:
        """Resets the connection."""
        self._reader.sealed = True
        if self._transport is not None:
            self._transport.abort()

    # --- time ----------------------------------------------------------------------------------------------------
    def check_time(self, now_s: float) -> None:
        """Ends what is too slow; called by the ticker."""
        if self._lingers_until_s:
            if now_s > self._lingers_until_s:
                self.abort()
        elif self.writing_paused and now_s - self._paused_since_s > STALLED_WRITE_S:
            self.abort()
        elif self._busy is None and not self._queue:
            self._check_reading(now_s)
            if self._queue:
                self._serve()
        elif self._eof and now_s - self._probed_s >= PROBE_S:
            self._probe()

    def _check_reading(self, now_s: float) -> None:
        reader = self._reader
        silence_s = now_s - self.heard_s
        if reader.current is not None:
            spent_s = now_s - reader.since_s
            received_bytes = reader.current.received_bytes
            if silence_s > BODY_SILENCE_S or spent_s > BODY_SILENCE_S + received_bytes / BODY_BYTES_PER_S:
                reader.refuse(RequestTimedOut("The request's body did not arrive in time."))
        elif reader.target is not None:
            if now_s - reader.since_s > HEAD_S:
                reader.refuse(RequestTimedOut("The request's headers did not arrive in time."))
        elif silence_s > IDLE_S and self._transport is not None:
            self._transport.close()

    def _probe(self) -> None:
        self._probed_s = monotonic()
        if self._busy is None or self._busy.begun:
            return  # what is written of the answer does the same
        self.write(_CONTINUE)

    def close_if_idle(self) -> None:
        """Closes a kept connection without a request; used when the router shuts down."""
        if self._busy is None and not self._queue and self._reader.idle:
            assert self._transport is not None
            self._transport.close()


def _nowhere(wire: bytes) -> None:
    """Takes what is written to a client that is gone."""
    del wire
