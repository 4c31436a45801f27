"""Receivers of answers: `Collector` takes one whole, `Relay` hands the decode leg's answer to the client.

Boundary: from the engine's bytes to the client's `Sink`, inside the read; it neither chooses nor retries. A stream is
forwarded byte for byte, chunk framing included, one write per read. Besides, the relay watches for what must not look
like success: an engine that gives up, a stream without its end. Nothing is sent to the client before the first byte
of the answer's body is there, so that until then the request can still go elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pdpool_api.engines.vllm import legs
from pdpool_router.faults import EngineAborted, EngineFault, EngineMalformed, EngineReset, EngineStatus, Fault
from pdpool_router.forward.framing import LAST_CHUNK, Framing, Head, chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.forward.transport import Upstream
    from pdpool_router.telemetry import Telemetry

MAX_COLLECTED_BYTES: Final = 67_108_864
MAX_HELD_BYTES: Final = 4_194_304
_MAX_LINE_BYTES: Final = 65_536
_OK: Final = 200
_BLANK_LINE: Final = (b"\n", b"\r\n")
_FAILURE: Final = re.compile(rb'data: ?\{"error":[^\n]*"code": ?5\d\d[,}]')
_ERROR_EVENT: Final = b'\ndata: {"error"'


class Answer(NamedTuple):
    """A whole answer of an engine."""

    head: Head
    body: bytes
    ended_s: float
    """`monotonic()` when it was whole."""


class Relayed(NamedTuple):
    """A stream that was forwarded."""

    broken: EngineFault | None
    """Why it did not come to its end; None: it did."""


class Sink(Protocol):
    """The client's side of an answer."""

    chunked: bool
    """The client reads chunked coding (HTTP/1.1)."""
    arrived_s: float
    """`monotonic()` when the request was whole."""
    prefill: str
    """What the answer says of the way it took (`Way`)."""

    def begin(self, head: Head, first: bytes, *, length: int | None) -> None:
        """Writes status, headers and the first bytes of the body.

        `length`: bytes of the body; None: chunked, or ended by the connection's end where the client reads no chunks.
        """

    def write(self, wire: bytes, /) -> None:
        """Writes more of the body, as framed by the caller."""

    def abort(self) -> None:
        """Breaks the transfer, so that the client cannot take what it has for the whole."""

    def feeds_from(self, upstream: Upstream | None) -> None:
        """Names the connection to pause while the client reads slowly."""

    def error_event(self, fault: Fault) -> bytes:
        """An event of a stream that tells the client of a fault."""


class Collector:
    """Takes an answer whole, up to a bound."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._bytes = 0

    def on_sent(self, upstream: Upstream) -> None:
        """See `Receiver`."""

    def on_head(self, head: Head, now_s: float) -> None:
        """See `Receiver`."""
        del now_s
        self._head = head

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """See `Receiver`."""
        del wire, now_s, last
        self._bytes += len(payload)
        if self._bytes > MAX_COLLECTED_BYTES:
            self.on_fault(EngineMalformed("The engine's answer is too long."))
        else:
            self._pieces.append(payload)

    def on_end(self, now_s: float) -> None:
        """See `Receiver`."""
        if not self.done.done():
            assert self._head is not None
            pieces = self._pieces
            self.done.set_result(Answer(self._head, pieces[0] if len(pieces) == 1 else b"".join(pieces), now_s))

    def on_fault(self, fault: Exception) -> None:
        """See `Receiver`."""
        if not self.done.done():
            self.done.set_exception(fault)


class Relay:
    """Forwards a stream to the client, or holds another answer until it is whole.

    `done` results in a `Relayed`, or in an `Answer` that the caller may still replace; it fails only while nothing
    was forwarded.
    """

    # Defaults stand on the class: an answer that is no stream changes few of them.
    usage: legs.Usage | None = None
    """Token counts that the stream told, if any."""
    told_failure = False
    """The engine itself ended the stream with an error of its own (5xx)."""
    _upstream: Upstream | None = None
    _head: Head | None = None
    _streaming = False
    _began = False
    _verbatim_events = False
    """What was forwarded ends between two events, in the engine's own framing."""
    _held_bytes = 0
    _prelude = b""
    _prelude_wire = b""
    _carry = b""
    _at_event = True
    _ended = False
    _events = 0
    _last_s = 0.0

    def __init__(
        self,
        sink: Sink,
        route: legs.Route,
        telemetry: Telemetry,
        *,
        replaceable: Callable[[], bool],
        on_answered: Callable[[], None] | None = None,
    ) -> None:
        """`replaceable` tells whether another engine could answer instead.

        `on_answered` is called at the answer's head.
        """
        self.done: asyncio.Future[Answer | Relayed] = asyncio.get_running_loop().create_future()
        self._sink = sink
        self._write = sink.write
        self._route = route
        self._telemetry = telemetry
        self._replaceable = replaceable
        self._on_answered = on_answered
        self._held: list[bytes] = []

    @property
    def answered(self) -> bool:
        """The engine has begun to answer, with success."""
        return self._head is not None and self._head.status == _OK

    @property
    def events(self) -> int:
        """Events of the stream that carry an object."""
        return self._events

    # --- the engine's side ---------------------------------------------------------------------------------------
    def on_sent(self, upstream: Upstream) -> None:
        """See `Receiver`."""
        self._upstream = upstream
        self._sink.feeds_from(upstream)

    def on_head(self, head: Head, now_s: float) -> None:
        """See `Receiver`."""
        del now_s
        self._head = head
        self._streaming = head.status == _OK and head.content_type.startswith(b"text/event-stream")
        if self._on_answered is not None:
            self._on_answered()

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """See `Receiver`."""
        if self._verbatim_events and not last and _is_token(payload):
            self._events += 1
            self._telemetry.itl.observe(now_s - self._last_s)
            self._last_s = now_s
            self._write(wire)
            return
        if self.done.done():
            return  # given up, or the client is gone
        if not self._streaming:
            self._hold(payload, now_s)
            return
        if not self._began:
            wire = self._prelude_wire + wire
            payload = self._prelude + payload
            if not last and b"\n" not in payload and len(payload) < _MAX_LINE_BYTES:
                # Its first line tells whether the stream is one at all.
                self._prelude_wire, self._prelude = wire, payload
                return
            if self._failed_at_once(payload):
                return
        if payload or last:
            self._forward(wire, payload, now_s, last=last)
        elif self._verbatim:
            self._sink.write(wire)

    def on_end(self, now_s: float) -> None:
        """See `Receiver`."""
        if self.done.done():
            return
        assert self._head is not None
        if not self._began:
            if self._streaming:
                self.done.set_exception(EngineReset("The engine ended the stream before its first event."))
            else:
                held = self._held
                self.done.set_result(Answer(self._head, held[0] if len(held) == 1 else b"".join(held), now_s))
            return
        if self._head.framing is Framing.CLOSE:
            if self._streaming and not self._ended:
                self._break(EngineReset("The engine ended the stream before its end."))
                return
            if self._sink.chunked:
                self._sink.write(LAST_CHUNK)
        self.done.set_result(Relayed(None))

    def on_fault(self, fault: Exception) -> None:
        """See `Receiver`."""
        if self.done.done():
            return
        if self._began and isinstance(fault, EngineFault):
            self._break(fault)
        else:
            self.done.set_exception(fault)

    # --- answers that are not streams ----------------------------------------------------------------------------
    def _hold(self, payload: bytes, now_s: float) -> None:
        assert self._head is not None
        if self._began:
            self._sink.write(
                payload if self._head.framing is Framing.LENGTH or not self._sink.chunked else chunk(payload)
            )
            return
        self._held.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes <= MAX_HELD_BYTES or self._head.status != _OK:
            return
        # Too big to hold: from here on it is forwarded as it comes, and cannot be replaced any more.
        first = b"".join(self._held)
        self._held = []
        if self._head.framing is Framing.LENGTH:
            self._begin(first, now_s, length=self._head.length)
        else:
            self._begin(chunk(first) if self._sink.chunked else first, now_s, length=None)

    def _begin(self, first: bytes, now_s: float, *, length: int | None) -> None:
        assert self._head is not None
        self._began = True
        self._last_s = now_s
        self._telemetry.ttft.observe(now_s - self._sink.arrived_s)
        self._sink.begin(self._head, first, length=length)

    # --- streams -------------------------------------------------------------------------------------------------
    def _forward(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        text = self._carry + payload if self._carry else payload
        if legs.unfinished(text, self._route):
            self._give_up(payload, now_s)
            return
        self._watch(text)
        if last and not self._ended:
            self._end_too_early(payload, now_s)
            return
        verbatim = self._verbatim
        out = payload if not verbatim else wire
        if not verbatim and self._sink.chunked:
            out = chunk(payload) if payload else b""
            if last:
                out += LAST_CHUNK
        if self._began:
            self._telemetry.itl.observe(now_s - self._last_s)
            self._last_s = now_s
            self._sink.write(out)
        else:
            self._begin(out, now_s, length=None)
        self._verbatim_events = verbatim and self._at_event

    @property
    def _verbatim(self) -> bool:
        """The engine's chunk framing is the client's."""
        assert self._head is not None
        return self._sink.chunked and self._head.framing is Framing.CHUNKED

    def _failed_at_once(self, payload: bytes) -> bool:
        """The stream has no token: the request may go elsewhere as if the engine had not answered."""
        if payload.startswith(b"data: [DONE]"):
            self.done.set_exception(EngineAborted("The engine aborted the request."))
            return True
        if _FAILURE.match(payload) and self._replaceable():
            self.done.set_exception(EngineStatus("The engine failed."))
            return True
        return False

    def _watch(self, text: bytes) -> None:
        """Notes what the text, from the beginning of a line, tells of the stream's state."""
        self._events += text.count(b"data: {")
        if b'"usage":{' in text or b'"usage": {' in text:
            self.usage = legs.streamed_usage(text) or self.usage
        if b"[DONE]" in text or b"event:" in text or b'"error"' in text:
            lines = b"\n" + text
            if legs.STREAM_END[self._route].search(lines) or _ERROR_EVENT in lines:
                self._ended = True
                self.told_failure = self.told_failure or _FAILURE.search(lines) is not None
        if text.endswith(b"\n"):
            self._at_event = text.endswith((b"\n\n", b"\r\n\r\n")) or text in _BLANK_LINE
            self._carry = b""
        else:
            self._at_event = False
            self._carry = text[text.rfind(b"\n") + 1 :][-_MAX_LINE_BYTES:]
            # An unfinished line is looked at again with what follows; its object counts once.
            self._events -= self._carry.count(b"data: {")

    def _give_up(self, payload: bytes, now_s: float) -> None:
        """The engine ends the request with `abort` or `error`: as a break, whatever it says after that."""
        fault = EngineAborted("The engine aborted the request.")
        found = legs.UNFINISHED[self._route].search(payload)
        start = found.start() if found is not None else 0
        whole_before = payload[: payload.rfind(b"\n\n", 0, start) + 2] if b"\n\n" in payload[:start] else b""
        if not self._began:
            # A chat's first event tells the role and no token.
            if whole_before.count(b"data: {") <= (self._route is legs.Route.CHAT):
                self.done.set_exception(fault)
                return
            # As if its tokens had come in reads of their own.
            self._begin(b"", now_s, length=None)
        elif found is None or not self._at_event or (self._verbatim and not self._was_aligned):
            self._cut(fault)
            return
        self._last_s = now_s
        self._close_with_event(whole_before, fault)

    def _end_too_early(self, payload: bytes, now_s: float) -> None:
        fault = EngineReset("The engine ended the stream before its end.")
        if not self._began:
            if not payload:
                self.done.set_exception(fault)
                return
            self._begin(b"", now_s, length=None)
        elif self._verbatim and not self._was_aligned:
            self._cut(fault)
            return
        if not self._at_event:
            self._cut(fault)
            return
        self._close_with_event(payload, fault)

    @property
    def _was_aligned(self) -> bool:
        """What was forwarded before this read ended between two chunks."""
        return self._upstream is not None and self._upstream.was_at_chunk_boundary

    def _break(self, fault: EngineFault) -> None:
        """The connection broke after bytes were forwarded."""
        aligned = not self._verbatim or (self._upstream is not None and self._upstream.at_chunk_boundary)
        if self._streaming and aligned and self._at_event:
            self._close_with_event(b"", fault)
        else:
            self._cut(fault)

    def _close_with_event(self, before: bytes, fault: EngineFault) -> None:
        event = before + self._sink.error_event(fault)
        self._sink.write(chunk(event) + LAST_CHUNK if self._sink.chunked else event)
        self._telemetry.truncated_streams += 1
        self.done.set_result(Relayed(fault))

    def _cut(self, fault: EngineFault) -> None:
        self._telemetry.truncated_streams += 1
        # In this order: the reset cancels whoever waits for the client, and the account must come first.
        self.done.set_result(Relayed(fault))
        self._sink.abort()


def _is_token(payload: bytes) -> bool:
    """Whether a piece of a stream is one event that goes on: it tells no end, no fault and no usage of the whole."""
    # Searched from the end, where it stands, and by a single byte: this runs for every token.
    return (
        payload.rfind(b'"finish_reason":null') > 0
        and payload.find(b"\n") == len(payload) - 2
        and payload.endswith(b"\n\n")
    )
