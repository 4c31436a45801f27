"""Where an engine's answer begins and ends: HTTP/1.1 response heads and chunk tracking (RFC 9112), byte exact.

Boundary: pure; no sockets. Why own code: a parser that hands out payload makes the relay join and frame it again, while tracking
lets the very bytes that were read be written on. It is strict: what two readers could understand differently is refused, since
the next answer on the connection would begin at the wrong byte.
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
_CONTROLS: Final = re.compile(rb"[\r\n\0]")
# Hop-by-hop (RFC 9110, section 7.6.1), framing, and what the router says itself.
_NOT_PASSED: Final = frozenset(
    name.encode()
    for name in (
        "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "content-length", "date", "server", HEADER_REQUEST_ID, HEADER_PREFILL,
    )
)  # fmt: skip


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
    """The head of an answer to a POST or GET, from its status line to the line before the empty one (no final CRLF CRLF).

    Raises:
        FramingError: malformed, or framed ambiguously.
    """
    lines = block.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise FramingError("not an HTTP/1 status line")
    code = rest[:3]
    if len(code) != 3 or not code.isdigit() or rest[3:4] not in (b" ", b""):  # noqa: PLR2004 - three digits
        raise FramingError("not an HTTP/1 status code")
    status = int(code)
    headers: list[tuple[bytes, bytes]] = []
    length: bytes | None = None
    chunked = False
    keep_alive = version == b"HTTP/1.1"
    content_type = b""
    for line in lines[1:]:
        raw_name, colon, value = line.partition(b":")
        if not colon or not raw_name or raw_name[-1:] in b" \t" or raw_name[:1] in b" \t" or _CONTROLS.search(line):
            raise FramingError("a malformed header line")
        name = raw_name.lower()
        value = value.strip(b" \t")
        headers.append((name, value))
        if name == b"content-length":
            if length is not None and length != value:
                raise FramingError("two different lengths")
            length = value
        elif name == b"transfer-encoding":
            if chunked or value.lower() != b"chunked":
                raise FramingError("a transfer coding other than chunked")
            chunked = True
        elif name == b"connection":
            tokens = {token.strip(b" \t") for token in value.lower().split(b",")}
            if b"close" in tokens:
                keep_alive = False
            elif b"keep-alive" in tokens:
                keep_alive = True
        elif name == b"content-type":
            content_type = value.lower()
    passed = b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in _NOT_PASSED])
    if status < 200 or status in (204, 304):  # noqa: PLR2004 - RFC 9112, section 6.3: no body
        return Head(status, tuple(headers), Framing.LENGTH, 0, keep_alive, content_type, passed)
    if chunked:
        if length is not None or version == b"HTTP/1.0":
            raise FramingError("chunked, and a length or HTTP/1.0 besides")
        return Head(status, tuple(headers), Framing.CHUNKED, 0, keep_alive, content_type, passed)
    if length is None:
        return Head(status, tuple(headers), Framing.CLOSE, 0, False, content_type, passed)  # noqa: FBT003 - the connection ends with the body
    if not length.isdigit() or len(length) > _MAX_SIZE_DIGITS:
        raise FramingError("a malformed length")
    return Head(status, tuple(headers), Framing.LENGTH, int(length), keep_alive, content_type, passed)


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

    def feed(self, wire: bytes, pos: int, pieces: list[bytes]) -> int:  # noqa: C901, PLR0912, PLR0915 - one flat loop: it runs for every read of every stream
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
                if end > size:
                    end = size
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
