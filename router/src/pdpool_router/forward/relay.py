"""The decode leg's answer on its way to the client: a stream event by event, any other answer too big to be held.

Boundary: from the engine's bytes to the client's `Sink`, inside the read; it neither chooses nor retries. A stream is
forwarded byte for byte, chunk framing included, one write per read. Besides, the relay watches for what must not look
like success: an engine that gives up, a stream without its end. Nothing is sent to the client before the first byte
of the answer's body is there, so that until then the request can still go elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pdpool_api.engines.vllm import legs
from pdpool_router.faults import EngineAborted, EngineFault, EngineReset, EngineStatus, Fault
from pdpool_router.forward.framing import LAST_CHUNK, SIZE_LINE_BYTES, Framing, Head, chunk, chunk_size
from pdpool_router.forward.stream_text import FAILURE, MAX_LINE_BYTES, StreamText, after_comments

if TYPE_CHECKING:
    from pdpool_router.forward.upstream import Upstream
    from pdpool_router.telemetry import Telemetry
    from pdpool_router.trail import Trail


class Sink(Protocol):
    """The client's side of an answer."""

    chunked: bool
    """The client reads chunked coding (HTTP/1.1)."""
    arrived_s: float
    """`monotonic()` when the request was whole."""
    waited_s: float
    """How much of the time since then it waited in line."""
    trail: Trail | None
    """Where its steps are noted; None: nobody asks."""
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

    def feeds_from(self, upstream: Upstream) -> None:
        """Names the connection to pause while the client reads slowly."""

    def error_event(self, fault: Fault) -> bytes:
        """An event of a stream that tells the client of a fault."""

    def relay_answer(self, head: Head, body: bytes) -> None:
        """Writes an engine's whole answer."""

    def fail(self, fault: Exception) -> None:
        """Writes a fault as the answer; where one is begun, breaks it."""

    def end(self) -> None:
        """The answer is written, or broken: the request is over."""


class Source(Protocol):
    """The leg whose answer is relayed."""

    def replaceable(self) -> bool:
        """Whether another engine could answer instead."""

    def give_up(self, fault: EngineFault) -> None:
        """The answer is worth nothing, and nothing of it was forwarded."""

    def on_fault(self, fault: Exception) -> None:
        """The answer will not come, and nothing of it was forwarded; or the router itself is at fault."""

    def began(self, now_s: float) -> None:
        """The first event of a stream is here."""

    def forwarded(self, broken: EngineFault | None) -> None:
        """An answer was forwarded; `broken`: why it did not come to its end."""


class Stream:
    """Forwards a stream of events to the client. A `Body` of the answering leg."""

    __slots__ = (
        "_began",
        "_head",
        "_observe_gap",
        "_prelude",
        "_prelude_wire",
        "_route",
        "_sink",
        "_source",
        "_telemetry",
        "_upstream",
        "_verbatim",
        "_write",
        "first_s",
        "last_s",
        "text",
    )

    def __init__(
        self, source: Source, sink: Sink, route: legs.Route, telemetry: Telemetry, *, head: Head, upstream: Upstream
    ) -> None:
        self._source = source
        self._sink = sink
        self._write = sink.write
        self._route = route
        self._telemetry = telemetry
        self._observe_gap = telemetry.itl.observe
        self._head = head
        self._upstream = upstream
        self._verbatim = sink.chunked and head.framing is Framing.CHUNKED
        """The engine's chunk framing is the client's."""
        self._began = False
        self._prelude = b""
        self._prelude_wire = b""
        self.first_s = self.last_s = 0.0
        """When its first and its latest read came."""
        self.text = StreamText(route)
        upstream.expect_many()

    # --- the engine's side ---------------------------------------------------------------------------------------
    def on_event(self, wire: bytes, now_s: float) -> bool:
        """Forwards a read that is one whole chunk with one event that goes on; False: it is something else.

        Such an event tells no end, no fault and no usage of the whole. It is searched from its end, where that
        stands, and by a single byte, and all of it here: this runs for every token.

        Raises:
            FramingError: it is no chunk.
        """
        start = wire.find(b"\n", 0, SIZE_LINE_BYTES) + 1
        if (
            not start
            or not wire.endswith(b"\n\n\r\n")
            or start + chunk_size(wire[: start - 1]) + 2 != len(wire)
            or wire.find(b"\n", start) != len(wire) - 4
            or wire.rfind(b'"finish_reason":null', start) < 0
        ):
            return False
        self.text.events += 1
        self._observe_gap(now_s - self.last_s)
        self.last_s = now_s
        self._write(wire)
        return True

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """See `Body`."""
        if not self._began:
            wire = self._prelude_wire + wire
            payload = self._prelude + payload
            if not last and b"\n" not in payload and len(payload) < MAX_LINE_BYTES:
                # Its first line tells whether the stream is one at all.
                self._prelude_wire, self._prelude = wire, payload
                return
            if self._failed_at_once(payload):
                return
        if payload or last:
            self._forward(wire, payload, now_s, last=last)
        elif self._verbatim:
            self._write(wire)

    def on_end(self, now_s: float) -> None:
        """See `Body`."""
        del now_s
        if not self._began:
            self._source.give_up(EngineReset("The engine ended the stream before its first event."))
            return
        if self._head.framing is Framing.CLOSE:
            if not self.text.ended:
                self._break(EngineReset("The engine ended the stream before its end."))
                return
            if self._sink.chunked:
                self._write(LAST_CHUNK)
        self._source.forwarded(None)

    def on_fault(self, fault: Exception) -> None:
        """See `Body`."""
        if self._began and isinstance(fault, EngineFault):
            self._break(fault)
        else:
            self._source.on_fault(fault)

    # --- towards the client --------------------------------------------------------------------------------------
    def _forward(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        text = self.text
        if text.unfinished_with(payload):
            self._cut_short(payload, now_s)
            return
        between_events = text.at_event
        text.add(payload)
        if text.ended and not text.spoke:
            self._end_without_event(payload, between_events=between_events)
            return
        if last and not text.ended:
            self._end_too_early(payload, now_s)
            return
        if self._verbatim:
            out = wire
        elif self._sink.chunked:
            out = (chunk(payload) if payload else b"") + (LAST_CHUNK if last else b"")
        else:
            out = payload
        if self._began:
            self._observe_gap(now_s - self.last_s)
            self.last_s = now_s
            self._write(out)
        else:
            self._begin(out, now_s)
        if self._verbatim and text.spoke and text.at_event and self._upstream.at_chunk_boundary:
            self._upstream.on_event = self.on_event

    def _begin(self, first: bytes, now_s: float) -> None:
        self._began = True
        self.first_s = self.last_s = now_s
        self._telemetry.ttft.observe(now_s - self._sink.arrived_s)
        self._source.began(now_s)
        if self._sink.trail is not None:
            self._sink.trail.first_byte_s = now_s
        self._sink.begin(self._head, first, length=None)

    def _failed_at_once(self, payload: bytes) -> bool:
        """The stream has no token: the request may go elsewhere as if the engine had not answered."""
        beginning = after_comments(payload)
        if beginning.startswith((b"data: [DONE]", b"data:[DONE]")):
            self._source.give_up(EngineAborted("The engine aborted the request."))
            return True
        if FAILURE.match(beginning) and self._source.replaceable():
            self._source.give_up(EngineStatus("The engine failed."))
            return True
        return False

    # --- streams that must not look whole ------------------------------------------------------------------------
    def _cut_short(self, payload: bytes, now_s: float) -> None:
        """The engine ends the request with `abort` or `error`: as a break, whatever it says after that."""
        fault = EngineAborted("The engine aborted the request.")
        found = legs.UNFINISHED[self._route].search(payload)
        start = found.start() if found is not None else 0
        whole_before = payload[: _events_end(payload, start)]
        if not self._began:
            # A chat's first event tells the role and no token; in text a quote is escaped.
            roles = self._route is legs.Route.CHAT and b'"role"' in whole_before
            if whole_before.count(b"data: {") <= roles:
                self._source.give_up(fault)
                return
            # As if its tokens had come in reads of their own.
            self._begin(b"", now_s)
        elif found is None or not self.text.at_event or (self._verbatim and not self._upstream.was_at_chunk_boundary):
            self._abort(fault)
            return
        self._close_with_event(whole_before, fault)

    def _end_without_event(self, payload: bytes, *, between_events: bool) -> None:
        """The engine said that it is at its end, after nothing but comments: it gave the request up."""
        fault = EngineAborted("The engine aborted the request.")
        if not between_events or (self._verbatim and not self._upstream.was_at_chunk_boundary):
            self._abort(fault)
        else:
            self._close_with_event(payload[: _events_end(payload, payload.find(b"[DONE]"))], fault)

    def _end_too_early(self, payload: bytes, now_s: float) -> None:
        fault = EngineReset("The engine ended the stream before its end.")
        if not self._began:
            if not payload:
                self._source.give_up(fault)
                return
            self._begin(b"", now_s)
        elif self._verbatim and not self._upstream.was_at_chunk_boundary:
            self._abort(fault)
            return
        if self.text.at_event:
            self._close_with_event(payload, fault)
        else:
            self._abort(fault)

    def _break(self, fault: EngineFault) -> None:
        """The connection broke after bytes were forwarded."""
        if self.text.at_event and (not self._verbatim or self._upstream.broke_at_chunk_boundary):
            self._close_with_event(b"", fault)
        else:
            self._abort(fault)

    def _close_with_event(self, before: bytes, fault: EngineFault) -> None:
        event = before + self._sink.error_event(fault)
        self._write(chunk(event) + LAST_CHUNK if self._sink.chunked else event)
        self._source.forwarded(fault)

    def _abort(self, fault: EngineFault) -> None:
        self._sink.abort()
        self._source.forwarded(fault)


def _events_end(payload: bytes, before: int) -> int:
    """Where the last whole event before a place ends, whichever line ends the engine writes; 0: there is none."""
    return max(
        (at + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if (at := payload.rfind(blank, 0, before)) >= 0), default=0
    )


class Large:
    """Forwards an answer that is no stream and too big to be held: from here on it cannot be replaced."""

    def __init__(self, source: Source, sink: Sink, head: Head, first: bytes) -> None:
        self._source = source
        self._sink = sink
        self._length = head.length if head.framing is Framing.LENGTH else None
        self._chunked = self._length is None and sink.chunked
        sink.begin(head, self._framed(first), length=self._length)

    def _framed(self, payload: bytes) -> bytes:
        return chunk(payload) if self._chunked and payload else payload

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """See `Body`."""
        del wire, now_s, last
        self._sink.write(self._framed(payload))

    def on_end(self, now_s: float) -> None:
        """See `Body`."""
        del now_s
        if self._chunked:
            self._sink.write(LAST_CHUNK)
        self._source.forwarded(None)

    def on_fault(self, fault: Exception) -> None:
        """See `Body`."""
        if isinstance(fault, EngineFault):
            self._sink.abort()
            self._source.forwarded(fault)
        else:
            self._source.on_fault(fault)
