"""Both protocols without sockets: requests and answers cut at any byte, against h11."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h11
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.edge.connection import Connection
from pdpool_router.faults import BodyTooLarge, EngineFault, Fault
from pdpool_router.forward.call import Body, Call, Carrier
from pdpool_router.forward.framing import chunk
from pdpool_router.forward.transport import Transport
from pdpool_router.forward.upstream import Upstream
from pdpool_router.records import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.forward.framing import Head


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.write: Callable[[bytes], None] = self._write

    def _write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        del name
        return self

    def setsockopt(self, *_: object) -> None: ...
    def fileno(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Desk:
    """A server with an application that notes each request and answers it at once."""

    shutting_down = False

    def __init__(self, limit: int = 1000) -> None:
        self.connections: set[Connection] = set()
        self.application = self
        self.limit = limit
        self.seen: list[tuple[bytes, bytes, bytes]] = []

    def screen(self, exchange: Exchange) -> Fault | None:
        exchange.body_limit = self.limit
        return BodyTooLarge("too long") if exchange.content_length > self.limit else None

    def serve(self, exchange: Exchange) -> None:
        if exchange.refusal is not None:
            exchange.fail(exchange.refusal)
        else:
            self.seen.append((exchange.method, exchange.path, exchange.body))
            exchange.answer(200, b"{}")
        exchange.end()

    def ended(self, exchange: Exchange) -> None: ...


def served(pieces: list[bytes], limit: int = 1000) -> tuple[Desk, Wire]:
    """What a server sees of some bytes, and what it writes."""
    desk, wire = Desk(limit), Wire()
    connection = Connection(desk)
    connection.connection_made(wire)  # type: ignore[arg-type]
    for piece in pieces:
        connection.data_received(piece)
    return desk, wire


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted({position % (len(data) + 1) for position in at}), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


BODIES = st.binary(max_size=60)
CUTS = st.lists(st.integers(min_value=0), max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request with a body in one of the two framings: wire form and body."""
    body = draw(BODIES)
    head = b"POST /p HTTP/1.1\r\nHost: r\r\nX-Note: %d\r\n" % draw(st.integers(0, 9))
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), body
    size = draw(st.integers(1, 20))
    pieces = b"".join(chunk(body[start : start + size]) for start in range(0, len(body), size))
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n", body


@given(st.lists(requests(), min_size=1, max_size=5), CUTS)
def test_pipelines_cut_anywhere_are_the_same_requests(pipeline: list[tuple[bytes, bytes]], at: list[int]) -> None:
    """However a pipeline is cut, each request is seen once, in order, with its body, and answered once."""
    wire = b"".join(one for one, _ in pipeline)
    for pieces in (cut(wire, at), [wire], [wire[index : index + 1] for index in range(len(wire))]):
        desk, answers = served(pieces)
        assert desk.seen == [(b"POST", b"/p", body) for _, body in pipeline]
        assert answers.written.count(b"HTTP/1.1 200 OK\r\n") == len(pipeline)


@settings(max_examples=300)
@given(requests(), st.data())
def test_mutated_requests_are_read_as_the_oracle_reads_them_or_refused(
    request: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """With bytes of a request changed: a body that we take is the body that h11 takes."""
    wire = bytearray(request[0])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(wire)))
        byte = data.draw(st.sampled_from(b"\r\n0123:;xX+-_ \tag,"))
        if data.draw(st.booleans()):
            wire.insert(position, byte)
        elif position < len(wire):
            wire[position] = byte
    desk, answers = served(cut(bytes(wire), data.draw(CUTS)))
    assert answers.written.count(b"HTTP/1.1 200 OK\r\n") == len(desk.seen)
    if not desk.seen:
        return
    oracle = h11.Connection(h11.SERVER)
    oracle.receive_data(bytes(wire))
    body = b""
    try:
        while True:
            event = oracle.next_event()
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            elif event is h11.NEED_DATA:
                return  # h11 waits where llhttp refused or took less
    except h11.RemoteProtocolError:
        return  # h11 is stricter about targets and header values
    assert desk.seen[0][2] == body


@given(st.binary(max_size=300), CUTS)
def test_noise_is_refused_once_and_ends_the_connection(noise: bytes, at: list[int]) -> None:
    """Arbitrary bytes never raise, and get at most one refusal."""
    desk, answers = served(cut(noise, at))
    assert desk.seen == []
    assert answers.written.count(b"HTTP/1.1 4") + answers.written.count(b"HTTP/1.1 5") <= 1
    assert not answers.written or answers.closed


# --- the engine's side -----------------------------------------------------------------------------------------------
class Notes:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.carrier: Carrier | None = None
        self.head: Head | None = None
        self.wire = b""
        self.payload = b""
        self.ended = 0
        self.faults: list[Exception] = []

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        del now_s
        assert self.head is None
        self.head = head
        self.wire = self.payload = body
        self.ended += 1

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        del upstream, now_s
        assert self.head is None
        self.head = head
        return self

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        del now_s, last
        self.wire += wire
        self.payload += payload

    def on_end(self, now_s: float) -> None:
        del now_s
        self.ended += 1

    def on_fault(self, fault: Exception) -> None:
        self.faults.append(fault)


ENGINE = Endpoint("u", "n", Role.DECODE, "127.0.0.1", 1)


def heard(pieces: list[bytes], *, lost: bool = False) -> tuple[Notes, Transport]:
    """What a receiver is told of an engine's bytes."""
    transport, notes = Transport(), Notes()
    upstream = Upstream(transport, ENGINE)
    upstream.connection_made(Wire())  # type: ignore[arg-type]
    upstream.send(Call(b"", notes, connect_s=1))
    for piece in pieces:
        upstream.data_received(piece)
    if lost:
        upstream.connection_lost(None)
    return notes, transport


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """An answer: wire form, payload, and whether the connection's end is its end."""
    body = draw(BODIES)
    head = draw(st.sampled_from((b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n")))
    head += b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    kind = draw(st.sampled_from(("length", "chunks", "close")))
    if kind == "length":
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body), body, False
    if kind == "close":
        return head + b"\r\n" + body, body, True
    size = draw(st.integers(1, 20))
    pieces = b"".join(chunk(body[start : start + size]) for start in range(0, len(body), size))
    return head + b"transfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n", body, False


@given(answers(), CUTS)
def test_answers_cut_anywhere_are_the_same_answer(answer: tuple[bytes, bytes, bool], at: list[int]) -> None:
    """However an answer is cut, its payload is whole, its end is told once, and the connection is kept or not."""
    wire, payload, by_close = answer
    for pieces in (cut(wire, at), [wire[index : index + 1] for index in range(len(wire))]):
        notes, transport = heard(pieces, lost=by_close)
        assert (notes.payload, notes.ended, notes.faults) == (payload, 1, [])
        assert not transport.busy
        if not by_close:
            assert wire.endswith(notes.wire)
            assert len(transport.shelf(ENGINE).idle) == 1


@given(answers(), st.integers(min_value=0))
def test_answers_that_break_are_faults(answer: tuple[bytes, bytes, bool], where: int) -> None:
    """An answer that ends early is a fault, told once, and never an end."""
    wire, _, by_close = answer
    if by_close:
        return
    notes, transport = heard([wire[: where % len(wire)]], lost=True)
    assert notes.ended == 0
    assert len(notes.faults) == 1
    assert isinstance(notes.faults[0], EngineFault)
    assert not transport.busy


@given(answers(), st.binary(min_size=1, max_size=5))
def test_bytes_behind_an_answer_end_the_connection(answer: tuple[bytes, bytes, bool], behind: bytes) -> None:
    """What follows an answer unasked is never taken for the next one: the connection is not kept."""
    wire, _, by_close = answer
    if by_close:
        return
    notes, transport = heard([wire + behind])
    assert notes.ended + len(notes.faults) == 1
    assert not transport.shelf(ENGINE).idle
    assert not transport.busy


@given(st.binary(max_size=200), CUTS)
def test_noise_of_an_engine_is_a_fault_at_most(noise: bytes, at: list[int]) -> None:
    """Arbitrary bytes never raise out of the protocol."""
    notes, _ = heard(cut(noise, at), lost=True)
    assert notes.ended + len(notes.faults) == 1
