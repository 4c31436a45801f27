"""One request of a client and the one answer to it.

Boundary: what the layers above need to read and may write; the connection beneath orders exchanges and owns the
socket. It is the `Sink` of the forwarder. An answer is begun at most once, a break is visible as such to the client,
and a request ends once: by `end`, or because its client leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from pdpool_api.names import HEADER_PREFILL, HEADER_REQUEST_ID
from pdpool_router.edge import errors
from pdpool_router.edge.access import Client
from pdpool_router.faults import Fault
from pdpool_router.flow.admission import Ticket
from pdpool_router.records import Way
from pdpool_router.trail import Trail

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span  # noqa: TC004 - an extra that need not be there

    from pdpool_router.edge.connection import Connection  # noqa: TC004 - it imports this module
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.upstream import Upstream

_STATUS_LINE: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_REQUEST_ID: Final = HEADER_REQUEST_ID.encode()
_PREFILL: Final = {way.value: f"{HEADER_PREFILL}: {way.value}\r\n".encode() for way in Way}
# (HTTP/1.1, stays open): each version's own default needs no header.
_CONNECTION: Final = {
    (True, True): b"",
    (True, False): b"connection: close\r\n",
    (False, True): b"connection: keep-alive\r\n",
    (False, False): b"",
}
_EVENT_STREAM: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
_JSON: Final = b"content-type: application/json\r\n"
CLIENT_LEFT: Final = 499
_log = structlog.get_logger("pdpool_router")


class Work(Protocol):
    """What serves a request at present."""

    def cancel(self) -> None:
        """The client left: gives back all that is held, and tells nothing more."""


class Exchange(msgspec.Struct, eq=False):
    """A request and its answer on one connection. A struct, because one is made for every request."""

    _connection: Connection
    method: bytes
    path: bytes
    """The path as it was sent, without the query; never decoded, so that no spelling reaches another route."""
    headers: dict[bytes, bytes]
    """By name in lower case; a repeated one is joined by commas."""
    write: Callable[[bytes], None]
    route: str = "other"
    """The path, where it is one of the API's."""
    screened: Any = None
    """What the application knows of the path since it judged the head."""
    body: bytes = b""
    more_body: list[bytes] | None = None
    """What came of it in further pieces, while it is being read."""
    body_limit: int = 0
    content_length: int = -1
    expects_continue: bool = False
    keep_alive: bool = True
    chunked: bool = True
    refusal: Fault | None = None
    """Why the request is not served, known before it was whole."""
    arrived_s: float = 0.0
    waited_s: float = 0.0
    """How much of the time since then it waited in line."""
    trail: Trail | None = None
    """Where its steps are noted; None: nobody asks."""
    span: Span | None = None
    """Its part of a trace; None: it is not traced."""
    begun: bool = False
    status: int = 0
    """What counts as the answer's: also where it never was written."""
    work: Work | None = None
    """What serves it beyond the call that began it; cancelled when the client leaves."""
    ticket: Ticket | None = None
    """Its admission; None: not asked for."""
    model: str = "other"
    client: Client | None = None
    """Who asks; known once the head was judged, None where nobody was asked who they are."""
    client_id: bytes = b""
    """What the client calls the request; goes back to it."""
    engine_id: bytes = b""
    """What both engines call it."""
    prefill: str = "none"

    @property
    def received_bytes(self) -> int:
        """How much of the body has come, while it is being read."""
        return len(self.body) + sum(map(len, self.more_body or ()))

    # --- answers -------------------------------------------------------------------------------------------------
    def answer(self, status: int, body: bytes, *, header_lines: bytes = _JSON) -> None:
        """Writes a whole answer."""
        head = self._head(status, header_lines, b"content-length: %d\r\n" % len(body))
        self.write(head if self.method == b"HEAD" else head + body)

    def reply(self, status: int, body: bytes) -> None:
        """Writes a whole answer, and that is all."""
        self.answer(status, body)
        self.end()

    def relay_answer(self, head: Head, body: bytes) -> None:
        """Writes an engine's whole answer."""
        self.write(self._head(head.status, head.passed, b"content-length: %d\r\n" % len(body)) + body)

    def begin(self, head: Head, first: bytes, *, length: int | None) -> None:
        """See `Sink`."""
        lines = head.passed
        if head.events:
            lines += _EVENT_STREAM
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            self.keep_alive = False
            framing = b""
        self.write(self._head(head.status, lines, framing) + first)

    def fail(self, fault: Exception) -> None:
        """Writes a fault as the answer; where one is begun, breaks it.

        What is no `Fault` is a defect of the router's own.
        """
        if not isinstance(fault, Fault):
            # Neither text nor locals of the exception: they may hold parts of the request.
            _log.error("request failed by a defect", kind=type(fault).__name__, where=_where(fault))
        if self.begun:
            self.abort()
        elif isinstance(fault, Fault):
            body = errors.body(fault, self.path)
            self.answer(errors.shape(fault).status, body, header_lines=_JSON + errors.header_lines(fault))
        else:
            self.answer(500, errors.internal(self.path))

    def end(self) -> None:
        """See `Sink`."""
        self.work = None
        self._connection.ended(self)

    def leave(self) -> None:
        """The client is gone before the end."""
        self.status = CLIENT_LEFT
        if self.work is not None:
            self.work.cancel()

    def abort(self) -> None:
        """See `Sink`."""
        self._connection.abort()

    def feeds_from(self, upstream: Upstream) -> None:
        """See `Sink`."""
        self._connection.feed = upstream
        if self._connection.writing_paused:
            upstream.pause()

    def error_event(self, fault: Fault) -> bytes:
        """See `Sink`."""
        return errors.event(fault, self.path)

    def _head(self, status: int, lines: bytes, framing: bytes) -> bytes:
        self.begun = True
        self.status = status
        if self._connection.port.shutting_down:
            self.keep_alive = False
        now_s = int(time())
        return b"%b%bdate: %b\r\n%b%b%b%b: %b\r\n\r\n" % (
            _STATUS_LINE.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status,
            lines,
            _dated[1] if _dated[0] == now_s else _date(now_s),
            framing,
            b"" if self.chunked and self.keep_alive else _CONNECTION[self.chunked, self.keep_alive],
            _PREFILL[self.prefill],
            _REQUEST_ID,
            self.client_id,
        )


_dated: tuple[int, bytes] = (0, b"")


def _date(now_s: int) -> bytes:
    """The present second as HTTP writes it, made once a second."""
    global _dated  # noqa: PLW0603 - a cache of one value
    _dated = (now_s, formatdate(now_s, usegmt=True).encode())
    return _dated[1]


def _where(fault: BaseException) -> str:
    step = fault.__traceback__
    if step is None:
        return "?"
    while step.tb_next is not None:
        step = step.tb_next
    return f"{step.tb_frame.f_code.co_qualname}:{step.tb_lineno}"
