"""Framing of engines' answers: every split of the bytes, mutations, and h11 as the oracle."""

from __future__ import annotations

import contextlib
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import h11
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from pdpool_router.forward import framing
from pdpool_router.forward.framing import Chunks, Framing, FramingError, chunk, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = st.sampled_from(("{:x}", "{:X}", "0{:x}", "{:x};ext=1", '{:x} ;name="v;w"', "000{:x}"))
PAYLOADS = st.lists(st.binary(min_size=1, max_size=20) | st.integers(21, 300).map(bytes), max_size=6)
ODD = (b"+", b"_", b"0x", b"-", b" ", b"\t", b"\r", b"\n", b"\r\n", b";", b"0", b"1", b"2", b"a", b"f", b"g", b"X")
TRAILERS = st.sampled_from((b"", b"x: 1\r\n", b"x: 1\r\ny: 2\r\n"))
CUTS = st.lists(st.integers(min_value=0), max_size=12)


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


def followed(pieces: list[bytes], reader: type[Chunks] = Chunks) -> tuple[int, bytes]:
    """Bytes of the body (-1: it did not end) and its payload, as `Chunks` sees it."""
    chunks = reader()
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


SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\n]*)?\r\n")


def plainly_read(wire: bytes) -> tuple[int, bytes]:
    """The same by the grammar alone (RFC 9112, section 7.1), all at once.

    Raises:
        AssertionError: the bytes do not follow it.
    """
    at, payload = 0, b""
    while b"\n" in wire[at:]:
        line = SIZE_LINE.fullmatch(wire, at, wire.index(b"\n", at) + 1)
        assert line is not None, wire
        size, at = int(line[1], 16), line.end()
        if not size:
            break
        payload += wire[at : at + size]
        end, at = wire[at + size : at + size + 2], at + size + 2
        assert b"\r\n".startswith(end), wire
        if len(end) < len(b"\r\n"):
            return -1, payload
    else:
        return -1, payload
    while b"\n" in wire[at:]:
        start, at = at, wire.index(b"\n", at) + 1
        assert wire[at - 2 : at] == b"\r\n", wire
        if at - start == len(b"\r\n"):
            return at, payload
    return -1, payload


def splits_agree(reader: type[Chunks], body: tuple[bytes, bytes], at: list[int], following: bytes) -> None:
    """However the bytes are cut, the end is found exactly and the payload is whole."""
    wire, payload = body
    assert followed(cut(wire, at), reader) == (len(wire), payload)
    assert followed([wire + following], reader) == (len(wire), payload)
    assert followed([wire[index : index + 1] for index in range(len(wire))], reader) == (len(wire), payload)
    assert followed([wire[:-1]], reader)[0] == -1


def oracle_agrees(reader: type[Chunks], body: tuple[bytes, bytes], data: st.DataObject) -> None:
    """With bytes changed, taken out or put in: what we accept, oracles accept with the same end and payload."""
    wire = bytearray(body[0])
    for _ in range(data.draw(st.integers(1, 3))):
        # Lines of sizes are few among the bytes, and what a reader may get wrong stands where they begin.
        lines = [0, *(found.end() for found in re.finditer(rb"\r\n", wire))]
        anywhere = st.integers(0, len(wire))
        position = data.draw(st.sampled_from(lines) | st.sampled_from(lines).map(lambda at: at + 1) | anywhere)
        how = data.draw(st.sampled_from(("put", "cut", "change")))
        odd = data.draw(st.sampled_from(ODD))
        wire[position : position + (how != "put")] = b"" if how == "cut" else odd
    mutated = bytes(wire)
    try:
        ours = followed(cut(mutated, data.draw(st.lists(st.integers(min_value=0), max_size=4))), reader)
    except FramingError:
        return
    assert ours == plainly_read(mutated)
    # h11 also judges trailers and extensions as header fields, which nobody here reads.
    with contextlib.suppress(h11.RemoteProtocolError):
        assert ours == h11_reads(mutated)


def boundaries_are_exact(reader: type[Chunks], payloads: list[bytes]) -> None:
    """`at_boundary` holds between two chunks and nowhere else."""
    chunks = reader()
    assert chunks.at_boundary
    for payload in payloads:
        wire = chunk(payload)
        for index in range(len(wire)):
            chunks.feed(wire[index : index + 1], 0, [])
            assert chunks.at_boundary == (index == len(wire) - 1)


@given(bodies(), CUTS, st.binary(max_size=8))
def test_any_split_gives_the_same_end_and_payload(body: tuple[bytes, bytes], at: list[int], following: bytes) -> None:
    """However the bytes are cut, the end is found exactly and the payload is whole."""
    splits_agree(Chunks, body, at, following)


@given(bodies(), st.data())
def test_mutated_bodies_are_never_read_longer_than_the_oracle_reads_them(
    body: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """With bytes changed, taken out or put in: what we accept, oracles accept with the same end and payload."""
    oracle_agrees(Chunks, body, data)


FEW_PAYLOADS = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5)


@given(FEW_PAYLOADS)
def test_a_boundary_is_known_exactly(payloads: list[bytes]) -> None:
    """`at_boundary` holds between two chunks and nowhere else."""
    boundaries_are_exact(Chunks, payloads)


DRAWN: dict[Callable[..., None], st.SearchStrategy[tuple[Any, ...]]] = {
    splits_agree: st.tuples(bodies(), CUTS, st.binary(max_size=8)),
    oracle_agrees: st.tuples(bodies(), st.data()),
    boundaries_are_exact: st.tuples(FEW_PAYLOADS),
}


def breaks(law: Callable[..., None], reader: type[Chunks]) -> bool:
    """Whether a property tells that a reader is wrong; by the same examples as long as the same modules are loaded.

    Hypothesis also draws constants that it finds in them, hence many more examples than one module alone needs.
    """

    @settings(derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False, max_examples=3000)
    @given(DRAWN[law])
    def holds(drawn: tuple[Any, ...]) -> None:
        law(reader, *drawn)

    try:
        holds()
    except Exception:  # noqa: BLE001 - however it shows
        return True
    return False


@pytest.mark.parametrize(
    ("law", "right", "wrong"),
    [
        (splits_agree, "self._kept = _bounded(self._kept + wire[pos:])", "self._kept = _bounded(wire[pos:])"),
        (splits_agree, "line, self._kept = self._kept + wire[pos:end]", "line, self._kept = wire[pos:end]"),
        (splits_agree, "            self._kept = found\n", "            self._kept = b''\n"),
        (splits_agree, 'self._at, self._kept = _SIZE, b""', "self._at = _SIZE"),
        (splits_agree, "_PAYLOAD if self._left else _TRAILER", "_PAYLOAD if self._left else _DONE"),
        (splits_agree, '        if line == b"\\r":\n', "        if line:\n"),
        (splits_agree, 'digits.partition(b";")[0].rstrip(b" \\t")', 'digits.partition(b";")[0]'),
        (splits_agree, "return int(digits, 16)", "return int(digits, 16) & 31"),
        (oracle_agrees, 'raise FramingError("a chunk longer than its size")', "self._at, self._kept = _SIZE, b''"),
        (oracle_agrees, "not digits.isalnum() or", "not digits.strip(b'+').isalnum() or"),
        (oracle_agrees, ' or digits[1:2] in (b"x", b"X")', ""),
        (oracle_agrees, '    if line[-1:] != b"\\r":\n        raise', "    if not line:\n        raise"),
        (boundaries_are_exact, "self._at == _SIZE and not self._kept", "self._at == _SIZE"),
        (boundaries_are_exact, "self._at == _SIZE and not self._kept", "self._at in (_SIZE, _PAYLOAD_END)"),
    ],
)  # fmt: skip
def test_a_reader_that_is_wrong_is_found_out(law: Callable[..., None], right: str, wrong: str) -> None:
    """The fuzzing is worth something: with each of these faults put into `Chunks` the property fails."""
    source = Path(framing.__file__).read_text(encoding="utf-8")
    assert right in source
    module = ModuleType("mutant")
    exec(compile(source.replace(right, wrong, 1), "mutant", "exec"), vars(module))
    vars(module)["FramingError"] = FramingError
    assert breaks(law, module.Chunks)


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


def test_headers_of_the_connection_are_not_passed() -> None:
    """Neither the usual ones nor those that `Connection` names, however it is written."""
    lines = (b"Connection: X-Hop ,close", b"x-hop: 1", b"Keep-Alive: 5", b"x-kept: 2", b"content-length: 0")
    assert parse_head(b"\r\n".join((b"HTTP/1.1 200 OK", *lines))).passed == b"x-kept: 2\r\n"


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
