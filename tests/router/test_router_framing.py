"""Framing of engines' answers: every split of the bytes, mutations, and h11 as the oracle."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdpool_router.forward.framing import Chunks, Framing, FramingError, chunk, parse_head

SIZES = st.sampled_from(("{:x}", "{:X}", "0{:x}", "{:x};ext=1", '{:x} ;name="v;w"', "000{:x}"))
PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
TRAILERS = st.sampled_from((b"", b"x: 1\r\n", b"x: 1\r\ny: 2\r\n"))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A chunked body: its wire form and its payload."""
    payloads = draw(PAYLOADS)
    wire = b"".join(draw(SIZES).format(len(one)).encode() + b"\r\n" + one + b"\r\n" for one in payloads)
    return wire + b"0\r\n" + draw(TRAILERS) + b"\r\n", b"".join(payloads)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The data in pieces, cut at some positions."""
    edges = [0, *sorted({position % (len(data) + 1) for position in at}), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


def followed(pieces: list[bytes]) -> tuple[int, bytes]:
    """Bytes of the body (-1: it did not end) and its payload, as `Chunks` sees it."""
    chunks = Chunks()
    payload: list[bytes] = []
    before = 0
    for piece in pieces:
        end = chunks.feed(piece, 0, payload)
        if end >= 0:
            return before + end, b"".join(payload)
        before += len(piece)
    return -1, b"".join(payload)


def h11_reads(wire: bytes) -> tuple[int, bytes]:
    """The same, as h11 sees it.

    Raises:
        h11.ProtocolError: it refuses the bytes.
    """
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "e")]))
    client.send(h11.EndOfMessage())
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    client.receive_data(head + wire)
    payload = b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Data):
            payload += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return len(wire) - len(client.trailing_data[0]), payload
        elif event is h11.NEED_DATA:
            return -1, payload


@given(bodies(), st.lists(st.integers(min_value=0), max_size=12), st.binary(max_size=8))
def test_any_split_gives_the_same_end_and_payload(body: tuple[bytes, bytes], at: list[int], following: bytes) -> None:
    """However the bytes are cut, the end is found exactly and the payload is whole."""
    wire, payload = body
    assert followed(cut(wire, at)) == (len(wire), payload)
    assert followed([wire + following]) == (len(wire), payload)
    assert followed([wire[index : index + 1] for index in range(len(wire))]) == (len(wire), payload)
    assert followed([wire[:-1]])[0] == -1


@given(bodies(), st.data())
def test_mutated_bodies_are_never_read_longer_than_the_oracle_reads_them(
    body: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """With bytes changed, taken out or put in: what we accept, h11 accepts with the same end and payload."""
    wire = bytearray(body[0])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(wire)))
        how = data.draw(st.sampled_from(("put", "cut", "change")))
        byte = data.draw(st.sampled_from(b"\r\n0123;xX+-_ \tafg"))
        if how == "put":
            wire.insert(position, byte)
        elif position < len(wire):
            if how == "cut":
                del wire[position]
            else:
                wire[position] = byte
    mutated = bytes(wire)
    try:
        ours = followed(cut(mutated, data.draw(st.lists(st.integers(min_value=0), max_size=4))))
    except FramingError:
        return
    try:
        theirs = h11_reads(mutated)
    except h11.RemoteProtocolError:
        # h11 also judges trailers and extensions as header fields; what matters is the end of the payload.
        return
    assert ours == theirs


@pytest.mark.parametrize(
    "wire",
    [
        b"+5\r\nhello\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"5_0\r\n",
        b" 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"\r\n",
        b"g\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\rX",
        b"ffffffffffffffffffff\r\n",
        b"5;" + b"x" * 5000,
        b"0\r\nx: 1\n\r\n",
        b"0\r\n" + b"x: 1\r\n" * 4000,
    ],
)
def test_what_is_not_chunked_coding_is_refused(wire: bytes) -> None:
    """Signs, prefixes, underscores, bare line feeds, too long lines and wrong sizes are errors."""
    with pytest.raises(FramingError):
        followed([wire])


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_boundary_is_known_exactly(payloads: list[bytes]) -> None:
    """`at_boundary` holds between two chunks and nowhere else."""
    chunks = Chunks()
    assert chunks.at_boundary
    for payload in payloads:
        wire = chunk(payload)
        for index in range(len(wire)):
            chunks.feed(wire[index : index + 1], 0, [])
            assert chunks.at_boundary == (index == len(wire) - 1)


@pytest.mark.parametrize(
    ("head", "framing", "length", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 12", Framing.LENGTH, 12, True),
        (b"HTTP/1.1 200\r\nContent-Length:0", Framing.LENGTH, 0, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", Framing.CHUNKED, 0, True),
        (b"HTTP/1.1 200 OK\r\ncontent-type: x", Framing.CLOSE, 0, False),
        (b"HTTP/1.1 204 No Content", Framing.LENGTH, 0, True),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1", Framing.LENGTH, 1, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: Keep-Alive", Framing.LENGTH, 1, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: foo, close", Framing.LENGTH, 1, False),
    ],
)
def test_how_a_body_ends_is_told_by_its_head(head: bytes, framing: Framing, length: int, *, keep_alive: bool) -> None:
    """Length, chunks, or the connection's end; and whether the connection can be used again."""
    parsed = parse_head(head)
    assert (parsed.framing, parsed.length, parsed.keep_alive) == (framing, length, keep_alive)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 2x0 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 099 X",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1 1",
        b"HTTP/1.1 200 OK\r\ncontent-length:",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\n folded: 1",
        b"HTTP/1.1 200 OK\r\nname : v",
        b"HTTP/1.1 200 OK\r\nnocolon",
        b"HTTP/1.1 200 OK\r\n: v",
        b"HTTP/1.1 200 OK\r\nx: a\nb: c",
        b"HTTP/1.1 200 OK\r\nx: a\rb",
        b"HTTP/1.1 200 OK\r\nx: \0",
    ],
)
def test_ambiguous_heads_are_refused(head: bytes) -> None:
    """What two readers could frame differently, or what could forge a header, is an error."""
    with pytest.raises(FramingError):
        parse_head(head)


NAMES = st.sampled_from((b"Content-Type", b"X-A", b"server", b"Vary", b"retry-after"))
VALUES = st.binary(max_size=12).map(lambda raw: bytes(byte for byte in raw if 32 < byte < 127))


@given(st.integers(200, 599), st.lists(st.tuples(NAMES, VALUES), max_size=5), st.integers(0, 10**6))
@example(200, [(b"X-A", b"")], 0)
def test_heads_are_read_as_the_oracle_reads_them(status: int, headers: list[tuple[bytes, bytes]], length: int) -> None:
    """Status, names, values and length of a sound head are those of h11."""
    lines = b"".join(b"\r\n%b: %b" % pair for pair in [*headers, (b"content-length", b"%d" % length)])
    block = b"HTTP/1.1 %d OK%b" % (status, lines)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "e")]))
    client.receive_data(block + b"\r\n\r\n")
    event = client.next_event()
    assert isinstance(event, h11.Response)
    ours = parse_head(block)
    assert (ours.status, list(ours.headers)) == (event.status_code, list(event.headers))
    assert ours.length == (0 if status in (204, 304) else length)


@given(st.binary(max_size=200))
def test_nothing_but_framing_errors_is_raised(noise: bytes) -> None:
    """Arbitrary bytes give an answer or a `FramingError`, nothing else."""
    with contextlib.suppress(FramingError):
        parse_head(noise)
    with contextlib.suppress(FramingError):
        followed([noise])
