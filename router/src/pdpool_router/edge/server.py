"""HTTP/1.1 towards clients: one asyncio protocol per connection, parsed by httptools (llhttp, strict).

Boundary: connections, order of pipelined requests, framing, time limits on slow clients; what a request means is the
application's. Requests of one connection are served one after the other, each by one task; a client that leaves
cancels the task. Why not a framework: its own work per request is several times what the whole router takes
(docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import httptools

from pdpool_router.edge.exchange import Exchange
from pdpool_router.faults import (
    BadRequest,
    BodyTooLarge,
    ExpectationFailed,
    Fault,
    HeadersTooLarge,
    RequestTimedOut,
    UnsupportedCoding,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from pdpool_router.forward.transport import Upstream

MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 256
MAX_PIPELINED: Final = 16
MAX_LENGTH_DIGITS: Final = 15
MAX_DISCARDED_BYTES: Final = 65_536
"""Up to so much of a refused body is read for the sake of the connection; a longer one ends it."""
WRITE_BUFFER_BYTES: Final = 131_072
IDLE_S: Final = 120.0
HEAD_S: Final = 20.0
BODY_SILENCE_S: Final = 30.0
BODY_BYTES_PER_S: Final = 1024
LINGER_S: Final = 5.0
STALLED_WRITE_S: Final = 300.0
PROBE_S: Final = 1.0
_NONE: Final = b""
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"connection")


class Application(Protocol):
    """What serves the requests."""

    def screen(self, exchange: Exchange) -> Fault | None:
        """Judges a request by its head, before its body is read; sets `body_limit`."""

    def __call__(self, exchange: Exchange) -> Awaitable[None]:
        """Serves a whole request; afterwards its answer is written, whatever happened."""


class Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_busy",
        "_current",
        "_eof",
        "_head_bytes",
        "_header_count",
        "_headers",
        "_lingers_until_s",
        "_offered",
        "_parser",
        "_paused_since_s",
        "_probed_s",
        "_queue",
        "_reading_paused",
        "_resumed",
        "_sealed",
        "_server",
        "_since_s",
        "_target",
        "_task",
        "_transport",
        "_unbodied",
        "feed",
        "heard_s",
        "write",
        "writing_paused",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] = _nowhere
        self.feed: Upstream | None = None
        """The engine's connection that answers now; paused while the client reads slowly."""
        self.writing_paused = False
        self.heard_s = 0.0
        self._queue: deque[Exchange] = deque()
        self._busy: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._reading_paused = False
        self._sealed = False  # nothing more is read as a request
        self._eof = False
        self._lingers_until_s = 0.0
        self._paused_since_s = 0.0
        self._probed_s = 0.0
        # of the request being read
        self._current: Exchange | None = None
        self._offered: Exchange | None = None  # it offers another protocol, and llhttp stops after its head
        self._resumed: Exchange | None = None  # the same, while its body is read
        self._target: bytes | None = None
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_bytes = 0
        self._unbodied = 0
        self._since_s = 0.0

    @property
    def closing_down(self) -> bool:
        """The connection ends with the present answer."""
        return self._server.shutting_down

    @property
    def busy(self) -> bool:
        """A request is in hand or its body still arrives, or an answer is not yet with the client's kernel."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return unsent or self._busy is not None or self._current is not None

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
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.heard_s = monotonic()
        if self._sealed:
            return
        in_head = self._target is not None and self._current is None
        in_body = self._current is not None
        self._parse(data)
        if self._sealed:
            return
        if in_head and self._current is None and self._target is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HeadersTooLarge("The request's headers are too large."))
        elif in_body and self._current is not None:
            # Chunk extensions and trailers are no body, and must not be a way to send without end.
            self._unbodied += len(data)
            if self._unbodied > 2 * MAX_HEAD_BYTES + len(data):
                self._refuse(HeadersTooLarge("The request's chunks or trailers are too large."))

    def eof_received(self) -> bool:
        """Called by the event loop; True keeps our side open.

        A client that closes and one that only ends its sending look alike. While an answer is due, an interim answer
        tells them apart: the kernel of one that has closed resets the connection.
        """
        self._eof = True
        self._sealed = True
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
        self._server.connections.discard(self)
        self._sealed = True
        self._queue.clear()
        self.feed = None
        self.write = _nowhere
        if self._task is not None:
            self._task.cancel()

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

    # --- the parser's side ---------------------------------------------------------------------------------------
    def _parse(self, data: bytes) -> None:
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._not_upgraded(data[upgrade.args[0] :])
                    if data and not self._sealed:
                        continue
                return
        except httptools.HttpParserError:
            if not self._sealed:
                self._refuse(BadRequest("The request is not valid HTTP/1.1."))

    def _not_upgraded(self, rest: bytes) -> bytes:
        """Goes on in HTTP/1.1 after a request that offers another protocol, which llhttp takes for the end of HTTP.

        A fresh parser gets what frames the request's body, and then what followed the head.
        """
        exchange = self._offered
        self._offered = None
        self._parser = httptools.HttpRequestParser(self)
        if exchange is None or self._sealed:
            return rest
        framing = [b"%b: %b\r\n" % (name, exchange.headers[name]) for name in _FRAMING if name in exchange.headers]
        self._resumed = exchange
        return b"POST / HTTP/1.1\r\nhost: -\r\n%b\r\n%b" % (b"".join(framing), rest)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._target = _NONE
        self._headers = {}
        self._header_count = 0
        self._head_bytes = 0
        self._since_s = self.heard_s

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._target = self._target + url if self._target else url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Called by the parser."""
        if self._current is not None or self._sealed:
            return  # a trailer
        self._header_count += 1
        name = name.lower()
        value = value.strip() if value else _NONE
        headers = self._headers
        if name in headers:
            if name == b"host" or name == b"content-length":  # noqa: PLR1714 - faster than a container
                self._header_count = MAX_HEADERS + 1
            value = headers[name] + b", " + value
        headers[name] = value
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._sealed:
            return
        if self._resumed is not None:
            self._current, self._resumed = self._resumed, None
            return
        parser = self._parser
        target = self._target or _NONE
        headers = self._headers
        exchange = Exchange(self, parser.get_method(), target.partition(b"?")[0] if b"?" in target else target, headers)
        self._current = exchange
        self._unbodied = 0
        exchange.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        exchange.chunked = version == "1.1"
        length = headers.get(b"content-length")
        if length is not None:
            exchange.content_length = int(length) if length.isdigit() and len(length) <= MAX_LENGTH_DIGITS else -1
        exchange.refusal = self._head_fault(exchange, version) or self._server.application.screen(exchange)
        if exchange.refusal is not None:
            self._refuse_early(exchange)
        elif exchange.expects_continue and self._busy is None and not self._queue:
            exchange.expects_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head_fault(self, exchange: Exchange, version: str) -> Fault | None:
        headers = exchange.headers
        if version not in ("1.1", "1.0"):
            return UnsupportedVersion("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        if self._header_count > MAX_HEADERS:
            return BadRequest("Too many headers, or a header that must not be repeated.")
        if self._head_bytes > MAX_HEAD_BYTES:
            return HeadersTooLarge("The request's headers are too large.")
        if exchange.chunked and b"host" not in headers:
            return BadRequest("An HTTP/1.1 request needs a Host header.")
        if b"transfer-encoding" in headers or b"expect" in headers:
            return _coding_fault(exchange) or _expectation_fault(exchange)
        return None

    def _refuse_early(self, exchange: Exchange) -> None:
        """A refused request: a short body is read and dropped; before a long one the connection ends."""
        waits = exchange.expects_continue
        short = 0 <= exchange.content_length <= MAX_DISCARDED_BYTES and not waits
        none = exchange.content_length < 0 and b"transfer-encoding" not in exchange.headers
        sound = not isinstance(exchange.refusal, BadRequest | UnsupportedCoding | UnsupportedVersion | HeadersTooLarge)
        if (short or none) and sound:
            return
        self._end_with(exchange)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        exchange = self._current
        if exchange is None or self._sealed:
            return
        self._unbodied = 0
        if exchange.refusal is not None:
            return
        exchange.body_bytes.append(body)
        exchange.body_limit -= len(body)
        if exchange.body_limit < 0:
            exchange.refusal = BodyTooLarge("The request's body is too large.")
            exchange.body_bytes.clear()
            self._end_with(exchange)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange = self._current
        self._current = None
        self._target = None
        if exchange is None or self._sealed:
            return
        if self._offered is None and self._parser.should_upgrade() and exchange.method != b"CONNECT":
            self._offered = exchange  # its body is still to come
            return
        pieces = exchange.body_bytes
        if pieces:
            exchange.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            exchange.body_bytes = []
        exchange.arrived_s = self.heard_s
        if not exchange.keep_alive or exchange.method == b"CONNECT":
            exchange.keep_alive = False
            self._sealed = True
        if self._busy is None:
            self._serve(exchange)
        else:
            self._enqueue(exchange)

    # --- order ---------------------------------------------------------------------------------------------------
    def _enqueue(self, exchange: Exchange) -> None:
        if self._busy is None:
            self._serve(exchange)
            return
        self._queue.append(exchange)
        if len(self._queue) >= MAX_PIPELINED and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _serve(self, exchange: Exchange) -> None:
        self._busy = exchange
        self._task = self._server.loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._server.application(exchange)
        finally:
            self._task = None
            self._busy = None
            self.feed = None
            self._next(exchange)

    def _next(self, served: Exchange) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not served.begun:
            transport.abort()  # cancelled: there is no answer
            return
        if not served.keep_alive:
            self._close()
            return
        self.heard_s = monotonic()
        if self._queue:
            self._serve(self._queue.popleft())
            if self._reading_paused and len(self._queue) < MAX_PIPELINED // 2:
                self._reading_paused = False
                transport.resume_reading()
        elif self._eof:
            transport.close()
        elif self._current is not None and self._current.expects_continue:
            self._current.expects_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, fault: Fault) -> None:
        """Ends the connection with an error, after the answers that are due before it."""
        exchange = self._current or Exchange(self, b"GET", _NONE, {})
        exchange.refusal = fault
        self._end_with(exchange)

    def _end_with(self, exchange: Exchange) -> None:
        """The exchange is the last of this connection; what the client still sends is dropped."""
        exchange.keep_alive = False
        exchange.arrived_s = self.heard_s
        self._sealed = True
        self._current = None
        self._target = None
        self._enqueue(exchange)

    def _close(self) -> None:
        """Closes so that the client gets the answer: data left unread would reset the connection under it."""
        transport = self._transport
        assert transport is not None
        self._sealed = True
        if self._eof or not transport.can_write_eof():
            transport.close()  # TLS reads and drops what still comes until its own end is answered
            return
        transport.write_eof()
        self._lingers_until_s = monotonic() + LINGER_S

    def abort(self) -> None:
        """Resets the connection."""
        self._sealed = True
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
        elif self._eof and now_s - self._probed_s >= PROBE_S:
            self._probe()

    def _check_reading(self, now_s: float) -> None:
        silence_s = now_s - self.heard_s
        if self._current is not None:
            spent_s = now_s - self._since_s
            received = sum(map(len, self._current.body_bytes))
            if silence_s > BODY_SILENCE_S or spent_s > BODY_SILENCE_S + received / BODY_BYTES_PER_S:
                self._refuse(RequestTimedOut("The request's body did not arrive in time."))
        elif self._target is not None:
            if now_s - self._since_s > HEAD_S:
                self._refuse(RequestTimedOut("The request's headers did not arrive in time."))
        elif silence_s > IDLE_S and self._transport is not None:
            self._transport.close()

    def _probe(self) -> None:
        self._probed_s = monotonic()
        if self._busy is None or self._busy.begun:
            return  # what is written of the answer does the same
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def close_if_idle(self) -> None:
        """Closes a kept connection without a request; used when the router shuts down."""
        if self._busy is None and not self._queue and self._current is None and self._target is None:
            assert self._transport is not None
            self._transport.close()


class Server:
    """All client connections of one port."""

    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        self.application: Final = application
        self.loop: Final = loop
        self.connections: set[Connection] = set()
        self.shutting_down = False
        self._listeners: list[asyncio.Server] = []
        self._relistening: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Opens the port, with TLS where a context is given; the number that was opened (`port` 0: any)."""
        listener = await self._listener(tls, host=host, port=port)
        self._listeners = [listener]
        number: int = listener.sockets[0].getsockname()[1]
        return number

    def use_tls(self, tls: ssl.SSLContext | None) -> None:
        """Speaks TLS, or no longer, with whoever connects from now on; the port never closes meanwhile."""
        self._relistening = self.loop.create_task(self._listen_anew(tls))

    async def _listen_anew(self, tls: ssl.SSLContext | None) -> None:
        old = self._listeners
        sockets = [socket.socket(fileno=os.dup(each.fileno())) for one in old for each in one.sockets]
        self._listeners = [await self._listener(tls, sock=each) for each in sockets]
        for one in old:
            one.close()

    async def _listener(self, tls: ssl.SSLContext | None, **where: Any) -> asyncio.Server:
        limits = {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": LINGER_S} if tls is not None else {}
        create: Any = self.loop.create_server  # its overloads know no mapping of arguments
        made: asyncio.Server = await create(lambda: Connection(self), ssl=tls, backlog=4096, **limits, **where)
        return made

    def sweep(self) -> None:
        """Ends what is too slow; called by the ticker."""
        now_s = monotonic()
        for connection in list(self.connections):
            connection.check_time(now_s)

    @property
    def busy(self) -> int:
        """Connections that a shutdown must wait for."""
        return sum(1 for connection in self.connections if connection.busy)

    async def close(self) -> None:
        """Closes the port and every connection."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)


def _coding_fault(exchange: Exchange) -> Fault | None:
    coding = exchange.headers.get(b"transfer-encoding")
    if coding is None:
        return None
    if not exchange.chunked or b"content-length" in exchange.headers:
        # Two readers could disagree about where this request ends.
        return BadRequest("Transfer-Encoding stands beside Content-Length, or in HTTP/1.0.")
    return None if coding.lower() == b"chunked" else UnsupportedCoding("The only transfer coding is chunked.")


def _expectation_fault(exchange: Exchange) -> Fault | None:
    expectation = exchange.headers.get(b"expect")
    if expectation is None or not exchange.chunked:
        return None
    if expectation.lower() != b"100-continue":
        return ExpectationFailed("The only expectation is 100-continue.")
    exchange.expects_continue = True
    return None


def _nowhere(wire: bytes) -> None:
    """Takes what is written to a client that is gone."""
    del wire
