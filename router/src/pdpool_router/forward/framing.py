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
    passed: bytes
    """The header lines that a client gets: without hop-by-hop, framing, and what the router says itself."""


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
    keep_alive = framing is not Framing.CLOSE and _stays_open(named.get(b"connection", b""), version)
    content_type = named.get(b"content-type", b"").lower()
    kept_back = _NOT_PASSED_WITH_EVENTS if content_type.startswith(b"text/event-stream") else _NOT_PASSED
    passed = b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in kept_back])
    return Head(status, tuple(headers), framing, length, keep_alive, content_type, passed)


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


def _stays_open(connection: bytes, version: bytes) -> bool:
    if not connection:
        return version == b"HTTP/1.1"
    tokens = {token.strip(b" \t") for token in connection.lower().split(b",")}
    return b"close" not in tokens and (version == b"HTTP/1.1" or b"keep-alive" in tokens)


# Where `Chunks` stands. Plain integers: comparing with an enum's member costs a method call per step.
_SIZE: Final = 0
_PAYLOAD: Final = 1
_PAYLOAD_CR: Final = 2
_PAYLOAD_LF: Final = 3
_TRAILER: Final = 4
_DONE: Final = 5


class Chunks:
    """Follows one chunked body through any split of its bytes."""

    __slots__ = ("_at", "_left", "_line", "_trailer_bytes", "at_boundary")

    def __init__(self) -> None:
        self._at = _SIZE
        self._left = 0
        self._line = b""
        self._trailer_bytes = 0
        self.at_boundary = True
        """The bytes so far end between two chunks: another chunk could stand here."""

    def single(self, wire: bytes) -> bytes | None:
        """The payload where `wire` is exactly one whole chunk between two chunks; else None, and nothing is changed.

        This is what nearly every read of a stream is, and it takes a fraction of what `feed` does.
        """
        if not self.at_boundary or wire[-2:] != b"\r\n":
            return None
        start = wire.find(b"\n", 0, _MAX_SIZE_DIGITS + 2) + 1
        if not start:
            return None
        size = _chunk_size(wire[: start - 1])
        return wire[start:-2] if size and start + size + 2 == len(wire) else None

    def feed(  # noqa: C901, PLR0912, PLR0915 - one flat loop: it runs for every read of every stream
        self, wire: bytes, pos: int, pieces: list[bytes]
    ) -> int:
        """Goes on through `wire` from `pos`; the index after the body's last byte, or -1 while more is to come.

        Payload is appended to `pieces`.

        Raises:
            FramingError: the bytes are not chunked coding.
        """
        size = len(wire)
        at = self._at
        while pos < size:
            if at == _PAYLOAD:
                end = pos + self._left
                end = min(end, size)
                self._left -= end - pos
                pieces.append(wire[pos:end])
                pos = end
                if self._left:
                    break
                if wire[pos : pos + 2] == b"\r\n":
                    pos += 2
                    at = _SIZE
                else:
                    at = _PAYLOAD_CR
            elif at == _SIZE:
                end = wire.find(b"\n", pos)
                if end < 0:
                    self._line = _bounded(self._line + wire[pos:])
                    pos = size
                    break
                line = self._line + wire[pos:end] if self._line else wire[pos:end]
                self._line = b""
                pos = end + 1
                self._left = _chunk_size(line)
                at = _PAYLOAD if self._left else _TRAILER
            elif at == _PAYLOAD_CR:
                if wire[pos : pos + 1] != b"\r":
                    raise FramingError("a chunk longer than its size")
                pos += 1
                at = _PAYLOAD_LF
            elif at == _PAYLOAD_LF:
                if wire[pos : pos + 1] != b"\n":
                    raise FramingError("a chunk longer than its size")
                pos += 1
                at = _SIZE
            elif at == _TRAILER:
                end = wire.find(b"\n", pos)
                if end < 0:
                    self._line = _bounded(self._line + wire[pos:])
                    pos = size
                    break
                line = self._line + wire[pos:end]
                self._line = b""
                pos = end + 1
                if line[-1:] != b"\r":
                    raise FramingError("a bare line feed in the trailer")
                if line == b"\r":
                    self._at = _DONE
                    self.at_boundary = False
                    return pos
                self._trailer_bytes += len(line)
                if self._trailer_bytes > _MAX_TRAILER_BYTES:
                    raise FramingError("too long a trailer")
            else:
                raise FramingError("bytes after the end of the body")
        self._at = at
        self.at_boundary = at == _SIZE and not self._line
        return -1


def _bounded(line: bytes) -> bytes:
    if len(line) > _MAX_LINE_BYTES:
        raise FramingError("too long a line in chunked coding")
    return line


@lru_cache(maxsize=4096)
def _chunk_size(line: bytes) -> int:
    """Size told by a line `hex [;extension] CR`."""
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
