"""From a client's bytes to requests: HTTP/1.1, parsed by httptools (llhttp, strict).

Boundary: bounds, framing and what a head alone is refused for; order, time and the socket are the connection's. What
a request means is the application's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

from pdpool_router.edge.exchange import Exchange
from pdpool_router.faults import (
    BadRequest,
    BodyTooLarge,
    ExpectationFailed,
    Fault,
    HeadersTooLarge,
    UnsupportedCoding,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from pdpool_router.edge.connection import Connection

MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 256
MAX_LENGTH_DIGITS: Final = 15
MAX_DISCARDED_BYTES: Final = 65_536
"""Up to so much of a refused body is read for the sake of the connection; a longer one ends it."""
_NONE: Final = b""
_NEVER_TWICE: Final = (b"host", b"content-length")
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"connection")


class Reader:
    """Reads the requests of one connection, one after the other."""

    __slots__ = (
        "_connection",
        "_head_bytes",
        "_headers",
        "_offered",
        "_parser",
        "_read_bytes",
        "_repetitions",
        "_resumed",
        "_unbodied",
        "current",
        "sealed",
        "since_s",
        "target",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        self.sealed = False
        """Nothing more is read as a request."""
        self.current: Exchange | None = None
        """The request whose head is whole and whose body is being read."""
        self.target: bytes | None = None
        """Of the request being read; None between two requests."""
        self.since_s = 0.0
        """When its first byte was heard."""
        self._offered: Exchange | None = None  # it offers another protocol, and llhttp stops after its head
        self._resumed: Exchange | None = None  # the same, while its body is read
        self._headers: dict[bytes, bytes] = {}
        self._repetitions = 0
        self._head_bytes = 0
        """What came of the head in earlier reads."""
        self._read_bytes = 0
        """What the present read brings."""
        self._unbodied = 0

    @property
    def idle(self) -> bool:
        """No part of a request has come since the last one."""
        return self.current is None and self.target is None

    def feed(self, data: bytes) -> None:
        """Reads on."""
        in_head = self.target is not None and self.current is None
        in_body = self.current is not None
        self._read_bytes = len(data)
        self._parse(data)
        if self.sealed:
            return
        if in_head and self.current is None and self.target is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(HeadersTooLarge("The request's headers are too large."))
        elif in_body and self.current is not None:
            # Chunk extensions and trailers are no body, and must not be a way to send without end.
            self._unbodied += len(data)
            if self._unbodied > 2 * MAX_HEAD_BYTES + len(data):
                self.refuse(HeadersTooLarge("The request's chunks or trailers are too large."))

    def refuse(self, fault: Fault) -> None:
        """Ends the connection with an error, after the answers that are due before it."""
        exchange = self.current or Exchange(self._connection, b"GET", _NONE, {}, self._connection.write)
        exchange.refusal = fault
        self._end_with(exchange)

    def _parse(self, data: bytes) -> None:
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._not_upgraded(data[upgrade.args[0] :])
                    if data and not self.sealed:
                        continue
                return
        except httptools.HttpParserError:
            if not self.sealed:
                self.refuse(BadRequest("The request is not valid HTTP/1.1."))

    def _not_upgraded(self, rest: bytes) -> bytes:
        """Goes on in HTTP/1.1 after a request that offers another protocol, which llhttp takes for the end of HTTP.

        A fresh parser gets what frames the request's body, and then what followed the head.
        """
        exchange = self._offered
        self._offered = None
        self._parser = httptools.HttpRequestParser(self)
        if exchange is None or self.sealed:
            return rest
        framing = [b"%b: %b\r\n" % (name, exchange.headers[name]) for name in _FRAMING if name in exchange.headers]
        self._resumed = exchange
        return b"POST / HTTP/1.1\r\nhost: -\r\n%b\r\n%b" % (b"".join(framing), rest)

    # --- the parser's side ---------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        """Called by the parser."""
        self.target = _NONE
        self._headers = {}
        self._repetitions = 0
        self._head_bytes = 0
        self.since_s = self._connection.heard_s

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self.target = self.target + url if self.target else url

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Called by the parser."""
        if self.current is not None or self.sealed:
            return  # a trailer
        name = name.lower()
        value = value.strip() if value else _NONE
        headers = self._headers
        if name in headers:
            value = self._repeated(name, value)
        headers[name] = value

    def _repeated(self, name: bytes, value: bytes) -> bytes:
        self._repetitions += 1 if name not in _NEVER_TWICE else MAX_HEADERS
        return self._headers[name] + b", " + value

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.sealed:
            return
        if self._resumed is not None:
            self.current, self._resumed = self._resumed, None
            return
        parser = self._parser
        target = self.target or _NONE
        headers = self._headers
        connection = self._connection
        path = target.partition(b"?")[0] if b"?" in target else target
        exchange = self.current = Exchange(connection, parser.get_method(), path, headers, connection.write)
        self._unbodied = 0
        exchange.keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        exchange.chunked = version == "1.1"
        length = headers.get(b"content-length")
        if length is not None:
            exchange.content_length = int(length) if length.isdigit() and len(length) <= MAX_LENGTH_DIGITS else -1
        exchange.refusal = self._head_fault(exchange, version) or connection.application.screen(exchange)
        if exchange.refusal is not None:
            self._refuse_early(exchange)
        elif exchange.expects_continue:
            connection.allow_body()

    def _head_fault(self, exchange: Exchange, version: str) -> Fault | None:
        headers = exchange.headers
        if version not in ("1.1", "1.0"):
            return UnsupportedVersion("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        if len(headers) + self._repetitions > MAX_HEADERS:
            return BadRequest("Too many headers, or a header that must not be repeated.")
        if self._head_bytes + self._read_bytes > MAX_HEAD_BYTES and self._head_is_too_large():
            return HeadersTooLarge("The request's headers are too large.")
        if exchange.chunked and b"host" not in headers:
            return BadRequest("An HTTP/1.1 request needs a Host header.")
        if b"transfer-encoding" in headers or b"expect" in headers:
            return _coding_fault(exchange) or _expectation_fault(exchange)
        return None

    def _head_is_too_large(self) -> bool:
        """Looked at closely only where the reads that it came in, body and all, are larger than a head may be."""
        texts = sum(map(len, self._headers)) + sum(map(len, self._headers.values()))
        return texts + len(self.target or _NONE) > MAX_HEAD_BYTES

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
        exchange = self.current
        if exchange is None or self.sealed:
            return
        self._unbodied = 0
        if exchange.refusal is not None:
            return
        exchange.body_limit -= len(body)
        if exchange.body_limit < 0:
            exchange.refusal = BodyTooLarge("The request's body is too large.")
            exchange.body = b""
            exchange.more_body = None
            self._end_with(exchange)
        elif not exchange.body:
            exchange.body = body  # nearly always all of it
        elif exchange.more_body is None:
            exchange.more_body = [body]
        else:
            exchange.more_body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange = self.current
        self.current = None
        self.target = None
        if exchange is None or self.sealed:
            return
        if self._offered is None and self._parser.should_upgrade() and exchange.method != b"CONNECT":
            self._offered = exchange  # its body is still to come
            return
        if exchange.more_body is not None:
            exchange.body += b"".join(exchange.more_body)
            exchange.more_body = None
        if exchange.method == b"CONNECT":
            exchange.keep_alive = False
        if not exchange.keep_alive:
            self.sealed = True
        self._connection.take(exchange)

    def _end_with(self, exchange: Exchange) -> None:
        """The exchange is the last of this connection; what the client still sends is dropped."""
        exchange.keep_alive = False
        self.sealed = True
        self.current = None
        self.target = None
        self._connection.take(exchange)


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
