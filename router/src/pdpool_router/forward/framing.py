"""Where an engine's answer begins and ends: HTTP/1.1 response heads and chunk tracking (RFC 9112), byte exact.

Boundary: pure; no sockets. Why own code: a parser that hands out payload makes the relay join and frame it again,
while tracking lets the very bytes that were read be written on. It is strict: what two readers could understand
differently is refused, since the next answer on the connection would begin at the wrong byte.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from pdpool_api.names import HEADER_PREFILL, HEADER_REQUEST_ID

MAX_HEAD_BYTES: Final = 65_536
_MAX_LINE_BYTES: Final = 4096
_MAX_TRAILER_BYTES: Final = 16_384
_MAX_SIZE_DIGITS: Final = 15
SIZE_LINE_BYTES: Final = _MAX_SIZE_DIGITS + 2
"""The line of a chunk's size, without extensions, is not longer."""
_STATUS_DIGITS: Final = 3
_FIRST_FINAL: Final = 200
_BODYLESS: Final = (204, 304)  # RFC 9112, section 6.3
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS: Final = re.compile(rb"[\r\n\0]")
# Hop-by-hop (RFC 9110, section 7.6.1), framing, and what the router says itself.
_NOT_PASSED: Final = frozenset(
    name.encode()
    for name in (
        "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "content-length", "date", "server", HEADER_REQUEST_ID, HEADER_PREFILL,
    )
)  # fmt: skip
_NOT_PASSED_WITH_EVENTS: Final = _NOT_PASSED | {b"cache-control", b"x-accel-buffering"}


class FramingError(ValueError):
    """The peer's bytes are not one well-framed answer."""


class Framing(IntEnum):
    """How the end of a body is known."""

    LENGTH = 0
    CHUNKED = 1
    CLOSE = 2


class Head(NamedTuple):
    """Status line and headers of an answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case, values stripped, in order."""
    framing: Framing
    length: int
    """Body bytes under `Framing.LENGTH`; else 0."""
    keep_alive: bool
    content_type: bytes
    """In lower case; empty where absent."""
    events: bool
    """The body is a stream of server-sent events."""
    whole_bytes: int
    """Body bytes of an answer that may be taken whole from one read; -1: of any other."""
    passed: bytes
    """The header lines that a client gets: without hop-by-hop, framing, and what the router says itself."""


def connection_options(value: bytes) -> set[bytes]:
    """What a `Connection` header says, in lower case; headers that it names concern that connection alone."""
    return {option.strip(b" \t") for option in value.lower().split(b",")}


@lru_cache(maxsize=512)  # heads of an engine's answers differ in little but the second of their date
def parse_head(block: bytes) -> Head:
    """The head of an answer to POST or GET: status line and header lines, without the last line end.

    Raises:
        FramingError: malformed, or framed ambiguously.
    """
    lines = block.split(b"\r\n")
    version, status = _status_line(lines[0])
    headers = [_header(line) for line in lines[1:]]
    named: dict[bytes, bytes] = {}
    for name, value in headers:
        named[name] = named[name] + b", " + value if name in named else value
    framing, length = _framing(version, status, named)
    options = connection_options(named.get(b"connection", b""))
    stays_open = b"close" not in options and (version == b"HTTP/1.1" or b"keep-alive" in options)
    keep_alive = stays_open and framing is not Framing.CLOSE
    content_type = named.get(b"content-type", b"").lower()
    events = content_type.startswith(b"text/event-stream")
    kept_back = (_NOT_PASSED_WITH_EVENTS if events else _NOT_PASSED) | options
    passed = b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in kept_back])
    whole_bytes = length if framing is Framing.LENGTH and not events and status >= _FIRST_FINAL else -1
    return Head(status, tuple(headers), framing, length, keep_alive, content_type, events, whole_bytes, passed)


def _framing(version: bytes, status: int, named: dict[bytes, bytes]) -> tuple[Framing, int]:
    """How the body ends (RFC 9112, section 6.3), and its length where that is told."""
    length = named.get(b"content-length")
    coding = named.get(b"transfer-encoding")
    if coding is not None and (length is not None or version == b"HTTP/1.0" or coding.lower() != b"chunked"):
        raise FramingError("a transfer coding other than chunked, or beside a length")
    if length is not None and (not length.isdigit() or len(length) > _MAX_SIZE_DIGITS):
        raise FramingError("a malformed length")
    if status < _FIRST_FINAL or status in _BODYLESS:
        return Framing.LENGTH, 0
    if coding is not None:
        return Framing.CHUNKED, 0
    return (Framing.CLOSE, 0) if length is None else (Framing.LENGTH, int(length))


def _status_line(line: bytes) -> tuple[bytes, int]:
    version, _, rest = line.partition(b" ")
    code, _, _ = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != _STATUS_DIGITS or not code.isdigit():
        raise FramingError("not an HTTP/1 status line")
    if code < b"100" or _CONTROLS.search(line):
        raise FramingError("not an HTTP/1 status line")
    return version, int(code)


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or _CONTROLS.search(value):
        raise FramingError("a malformed header line")
    return name.lower(), value.strip(b" \t")


# Where `Chunks` stands. Plain integers: comparing with an enum's member costs a method call per step.
_SIZE: Final = 0
_PAYLOAD: Final = 1
_PAYLOAD_END: Final = 2
_TRAILER: Final = 3
_DONE: Final = 4
_LINE_END: Final = b"\r\n"


class Chunks:
    """Follows one chunked body through any split of its bytes."""

    __slots__ = ("_at", "_kept", "_left", "_trailer_bytes")

    def __init__(self) -> None:
        self._at = _SIZE
        self._left = 0
        self._kept = b""
        """The beginning of a line whose end has not come."""
        self._trailer_bytes = 0

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two chunks: another chunk could stand here."""
        return self._at == _SIZE and not self._kept

    def feed(self, wire: bytes, pos: int, pieces: list[bytes]) -> int:
        """Goes on through `wire` from `pos`; the index after the body's last byte, or -1 while more is to come.

        Payload is appended to `pieces`.

        Raises:
            FramingError: the bytes are not chunked coding.
        """
        size = len(wire)
        while pos < size:
            if self._at == _PAYLOAD:
                pos = self._payload(wire, pos, pieces)
            elif self._at == _PAYLOAD_END:
                pos = self._payload_end(wire, pos)
            elif self._at == _DONE:
                raise FramingError("bytes after the end of the body")
            else:
                pos = self._line(wire, pos)
                if self._at == _DONE:
                    return pos
        return -1

    def _payload(self, wire: bytes, pos: int, pieces: list[bytes]) -> int:
        piece = wire[pos : pos + self._left]
        pieces.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._at = _PAYLOAD_END
        return pos + len(piece)

    def _payload_end(self, wire: bytes, pos: int) -> int:
        found = self._kept + wire[pos : pos + len(_LINE_END) - len(self._kept)]
        pos += len(found) - len(self._kept)
        if found == _LINE_END:
            self._at, self._kept = _SIZE, b""
        elif found == b"\r":
            self._kept = found
        else:
            raise FramingError("a chunk longer than its size")
        return pos

    def _line(self, wire: bytes, pos: int) -> int:
        """A chunk's size, or a line of the trailer, once its end is there."""
        end = wire.find(b"\n", pos)
        if end < 0:
            self._kept = _bounded(self._kept + wire[pos:])
            return len(wire)
        line, self._kept = self._kept + wire[pos:end], b""
        if self._at == _TRAILER:
            self._trailer_line(line)
        else:
            self._left = chunk_size(line)
            self._at = _PAYLOAD if self._left else _TRAILER
        return end + 1

    def _trailer_line(self, line: bytes) -> None:
        if line[-1:] != b"\r":
            raise FramingError("a bare line feed in the trailer")
        if line == b"\r":
            self._at = _DONE
        self._trailer_bytes += len(line)
        if self._trailer_bytes > _MAX_TRAILER_BYTES:
            raise FramingError("too long a trailer")


def _bounded(line: bytes) -> bytes:
    if len(line) > _MAX_LINE_BYTES:
        raise FramingError("too long a line in chunked coding")
    return line


@lru_cache(maxsize=4096)
def chunk_size(line: bytes) -> int:
    """Size told by a line `hex [;extension] CR`.

    Raises:
        FramingError: it is none.
    """
    if line[-1:] != b"\r":
        raise FramingError("a bare line feed after a chunk's size")
    digits = line[:-1]
    if b";" in digits:
        digits = digits.partition(b";")[0].rstrip(b" \t")
    # int() also takes signs, underscores, blanks and 0x.
    if not digits.isalnum() or len(digits) > _MAX_SIZE_DIGITS or digits[1:2] in (b"x", b"X"):
        raise FramingError("a malformed chunk size")
    try:
        return int(digits, 16)
    except ValueError as fault:
        raise FramingError("a malformed chunk size") from fault


def chunk(payload: bytes) -> bytes:
    """One chunk of chunked coding; the payload is not empty."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK: Final = b"0\r\n\r\n"
