"""The life of requests with events in any order: everything but the sockets and the clock is the router's own.

Clients, connections and engines are driven call by call, as the event loop would, by a state machine that hypothesis
shrinks (`PDPOOL_FUZZ=2000` looks longer). After every step: what is reserved at an endpoint is what is on its way
there; a client has at most one answer, made of one engine's tokens in their order; no `[DONE]` that its engine did not
send, and nothing that was cut short looks whole.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdpool_router.assembly import Router
from pdpool_router.edge.connection import Connection
from pdpool_router.edge.server import Server
from pdpool_router.edge.stack import Stack
from pdpool_router.faults import ConnectFailed
from pdpool_router.feeds import static
from pdpool_router.forward.transport import Transport
from pdpool_router.forward.upstream import Upstream
from tests.router.conftest import config, raw_post

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pdpool_router.forward.call import Call, Receiver
    from pdpool_router.records import Endpoint

PREFILLS: Final = 2
DECODES: Final = 2
FAR_S: Final = 1e9
RARELY: Final = st.sampled_from([False, False, True])


class Wire:
    """A transport without a network: what is written is kept, and its end is told when the test says."""

    def __init__(self, told: Callable[[Exception | None], None]) -> None:
        self.written = b""
        self.ended = False
        self.told = False
        self.error: Exception | None = None
        self._told = told
        self._fds = os.pipe()

    def get_extra_info(self, name: str) -> Wire:
        assert name == "socket"
        return self

    def setsockopt(self, *_: int) -> None:
        pass

    def fileno(self) -> int:
        return self._fds[0]

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def write(self, data: bytes) -> None:
        if not self.ended:
            self.written += data

    def abort(self) -> None:
        self.ended = True

    close = abort

    def lose(self, error: Exception | None = None) -> None:
        """The end, told as the event loop would: once."""
        self.ended = True
        if not self.told:
            self.told = True
            self._told(error)
            for fd in self._fds:
                os.close(fd)


class Dial:
    """A connection that is being made."""

    def __init__(self, endpoint: Endpoint, call: Call) -> None:
        self.endpoint = endpoint
        self.call = call
        self.given_up = False
        call.receiver.carrier = self

    def abandon_for(self, receiver: Receiver) -> None:
        if receiver.carrier is self:
            self.given_up = True


class Engine:
    """The far end of one connection to an engine."""

    def __init__(self, owner: Transport, endpoint: Endpoint) -> None:
        self.upstream = Upstream(owner, endpoint)
        self.wire = Wire(self.upstream.connection_lost)
        self.upstream.connection_made(cast("asyncio.Transport", self.wire))
        self.left: list[bytes] = []
        """What is still to come of the present answer."""
        self.begun = False

    @property
    def asked(self) -> bool:
        """A request is unanswered."""
        return bool(self.wire.written) and not self.begun and not self.wire.ended

    @property
    def sending(self) -> bool:
        """Something of an answer is still to come."""
        return bool(self.left) and not self.wire.ended

    def take(self) -> dict[str, Any]:
        """The body of the request."""
        body: dict[str, Any] = json.loads(self.wire.written.partition(b"\r\n\r\n")[2])
        self.wire.written = b""
        self.begun = True
        return body


class DrivenTransport(Transport):
    """Connections that come up when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.dials: list[Dial] = []
        self.engines: list[Engine] = []

    def dial(self, endpoint: Endpoint, call: Call) -> None:
        self.dials.append(Dial(endpoint, call))


class Customer:
    """A client and its connection."""

    def __init__(self, server: Server) -> None:
        self.connection = Connection(server)
        self.wire = Wire(self.connection.connection_lost)
        self.connection.connection_made(cast("asyncio.Transport", self.wire))
        self.number = 0
        self.paused = False

    def answer(self) -> tuple[list[int], bytes, bool]:
        """Final statuses, body of the last, and whether it is whole, as an independent parser reads them."""
        if not self.wire.written:  # which h11 would take for the end of the connection
            return [], b"", False
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "h"), ("content-length", "0")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(self.wire.written)
        statuses: list[int] = []
        body = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                assert event is not h11.PAUSED or not parser.trailing_data[0], "a second answer"
                return statuses, body, parser.their_state is h11.DONE or parser.their_state is h11.MUST_CLOSE
            if isinstance(event, h11.Response):
                statuses.append(event.status_code)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert not parser.trailing_data[0], "bytes after the answer"
                return statuses, body, True


class Life(RuleBasedStateMachine):
    """Clients and engines, in any order."""

    def __init__(self) -> None:
        super().__init__()
        listed = [{"role": "prefill", "url": f"http://p{n}:1"} for n in range(PREFILLS)]
        listed += [{"role": "decode", "url": f"http://d{n}:1"} for n in range(DECODES)]
        approximate = {"index": {"source": "Approximate"}}  # no feed of events, which needs the event loop
        self.router = Router(config(listed, routing=approximate), rng=random.Random(1))
        self.transport = self.router._forwarder.transport = DrivenTransport()  # type: ignore[misc]
        self.all = static.endpoints(self.router.config.endpoints.static)
        self.router.endpoints.on_gone(self.transport.drop)
        self.router.endpoints.replace(self.all)
        self.router.admission.spare_tokens = lambda: float("inf")  # a line needs the event loop's futures
        self.server = Server(Stack(self.router.api, self.router.telemetry), cast("asyncio.AbstractEventLoop", None))
        self.customers: list[Customer] = []
        self.asked = 0
        self.calls = 0

    # --- clients -------------------------------------------------------------------------------------------------
    @precondition(lambda self: sum(not each.wire.written and not each.wire.ended for each in self.customers) < 4)
    @rule(stream=st.booleans(), cut=st.integers(0, 400), route=st.sampled_from(["completions", "chat/completions"]))
    def ask(self, stream: bool, cut: int, route: str) -> None:  # noqa: FBT001 - drawn
        self.asked += 1
        customer = Customer(self.server)
        customer.number = self.asked
        self.customers.append(customer)
        body = {"model": "tiny", "prompt": f"q{self.asked}", "messages": [], "max_tokens": 3, "stream": stream}
        wire = raw_post(f"/v1/{route}", json.dumps(body).encode())
        for piece in (wire[:cut], wire[cut:]):
            if piece:
                customer.connection.data_received(piece)

    @precondition(lambda self: self.customers)
    @rule(data=st.data(), really=RARELY)
    def leave(self, data: st.DataObject, really: bool) -> None:  # noqa: FBT001 - drawn
        if not really:
            return
        data.draw(st.sampled_from(self.customers)).wire.lose(ConnectionResetError())

    @precondition(lambda self: self.customers)
    @rule(data=st.data())
    def read_slowly_or_on(self, data: st.DataObject) -> None:
        customer = data.draw(st.sampled_from(self.customers))
        if not customer.wire.ended:
            customer.paused = not customer.paused
            (customer.connection.pause_writing if customer.paused else customer.connection.resume_writing)()

    # --- engines -------------------------------------------------------------------------------------------------
    @rule(data=st.data(), steps=st.integers(1, 12))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """What is expected to happen, somewhere."""
        for _ in range(steps):
            waiting = [*self.open_dials, *(each for each in self.transport.engines if each.asked or each.sending)]
            if not waiting:
                return
            one = data.draw(st.sampled_from(waiting))
            if isinstance(one, Dial):
                self._connect(one)
            elif one.sending:
                piece = one.left.pop(0)
                one.begun = bool(one.left)
                one.upstream.data_received(piece)
            else:
                self._begin_an_answer(one, data)

    def _connect(self, dial: Dial) -> None:
        self.transport.dials.remove(dial)
        engine = Engine(self.transport, dial.endpoint)
        self.transport.engines.append(engine)
        engine.upstream.send(dial.call)

    def _begin_an_answer(self, engine: Engine, data: st.DataObject) -> None:
        body = engine.take()
        self.calls += 1
        kinds = PREFILL_ANSWERS if body.get("max_tokens") == 1 else DECODE_ANSWERS
        good = data.draw(st.booleans())
        kind = "good" if good else data.draw(st.sampled_from(sorted(kinds)))
        wire = kinds[kind](self.calls, bool(body.get("stream")))
        cuts = data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=3))
        engine.left = [wire[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(wire)])]

    @precondition(lambda self: self.open_dials)
    @rule(data=st.data(), really=RARELY)
    def refuse_to_connect(self, data: st.DataObject, really: bool) -> None:  # noqa: FBT001 - drawn
        if not really:
            return
        dial = data.draw(st.sampled_from(self.open_dials))
        self.transport.dials.remove(dial)
        dial.call.receiver.on_fault(ConnectFailed("No connection to the engine."))

    @precondition(lambda self: any(not engine.wire.told for engine in self.transport.engines))
    @rule(data=st.data(), error=st.booleans(), really=RARELY)
    def break_off(self, data: st.DataObject, error: bool, really: bool) -> None:  # noqa: FBT001 - drawn
        if not really:
            return
        engine = data.draw(st.sampled_from([each for each in self.transport.engines if not each.wire.told]))
        engine.wire.lose(ConnectionResetError() if error else None)

    @precondition(lambda self: self.transport.busy)
    @rule(data=st.data(), really=RARELY)
    def fall_silent(self, data: st.DataObject, really: bool) -> None:  # noqa: FBT001 - drawn
        if not really:
            return
        busy = [each.upstream for each in self.transport.engines if each.upstream in self.transport.busy]
        upstream = data.draw(st.sampled_from(busy))
        upstream.expire_if_late(FAR_S)
        upstream.expire_if_late(FAR_S)

    @rule(gone=st.sets(st.integers(0, PREFILLS + DECODES - 1), max_size=2))
    def change_membership(self, gone: set[int]) -> None:
        self.router.endpoints.replace([each for number, each in enumerate(self.all) if number not in gone])

    @rule()
    def turn(self) -> None:
        """The event loop's next turn: whoever was closed or reset is told; and failed engines have recovered."""
        self.router.endpoints.health.keep(())
        self.router.endpoints.givers.keep(())
        self.tell_ends()

    def tell_ends(self) -> None:
        for wire in [*(each.wire for each in self.transport.engines), *(each.wire for each in self.customers)]:
            if wire.ended:
                wire.lose()

    # --- what holds ----------------------------------------------------------------------------------------------
    @property
    def open_dials(self) -> list[Dial]:
        return [dial for dial in self.transport.dials if not dial.given_up]

    @invariant()
    def what_is_reserved_is_on_its_way(self) -> None:
        on_their_way = Counter(dial.endpoint.uid for dial in self.open_dials)
        on_their_way.update(upstream.endpoint.uid for upstream in self.transport.busy)
        assert dict(self.router.endpoints.inflight.requests) == dict(on_their_way)

    @invariant()
    def nobody_works_for_a_client_that_left(self) -> None:
        left = sum(each.wire.told for each in self.customers)
        assert self.router.admission.admitted <= len(self.customers) - left
        assert len(self.open_dials) + len(self.transport.busy) <= len(self.customers) - left

    @invariant()
    def a_client_has_at_most_one_answer(self) -> None:
        for customer in self.customers:
            statuses, body, whole = customer.answer()
            assert len(statuses) <= 1
            assert 500 not in statuses, "a defect of the router's own"
            tokens = [tuple(map(int, word.split(b"-"))) for word in body.split(b"|")[1::2]]
            assert len({call for call, _ in tokens}) <= 1, "tokens of two engines"
            assert [number for _, number in tokens] == list(range(len(tokens))), "tokens lost, twice or out of order"
            assert b'"abort"' not in body, "given up, and told as an end"
            if b"[DONE]" in body:
                assert tokens[0][0] in SENT_DONE
            if whole and body.startswith(b"data:"):
                assert b"[DONE]" in body or b'data: {"error"' in body, "cut short, and told as whole"

    def teardown(self) -> None:
        for customer in self.customers:
            customer.wire.lose(ConnectionResetError())
        self.tell_ends()
        assert not self.router.endpoints.inflight.requests
        assert not self.router.endpoints.inflight.local_prefills
        assert not self.transport.busy
        assert not self.server.connections
        assert self.router.admission.admitted == 0
        assert sum(self.router.telemetry.requests.values()) == self.asked
        for engine in self.transport.engines:
            engine.wire.lose()


# --- what engines say ------------------------------------------------------------------------------------------------
SENT_DONE: set[int] = set()
"""Numbers of the calls whose answer ends with `[DONE]`."""


def _whole(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        content_type.encode(),
        len(body),
        body,
    )


def _prefilled(**over: object) -> bytes:
    answer = {"choices": [{"finish_reason": "length"}], "kv_transfer_params": {"remote_engine_id": "e"}, **over}
    return _whole(200, json.dumps(answer).encode())


def _token(call: int, number: int, finish: str | None) -> bytes:
    choice = {"index": 0, "text": f"|{call}-{number}|", "delta": {}, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}, separators=(",", ":")).encode()


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _stream(*events: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(map(_chunk, events)) + end


def _answered(call: int, stream: bool, finish: str = "length", *, done: bool = True) -> bytes:  # noqa: FBT001 - as asked
    if not stream:
        text = "".join(f"|{call}-{number}|" for number in range(3))
        return _whole(200, json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode())
    if done:
        SENT_DONE.add(call)
    events = [_token(call, 0, None), _token(call, 1, None), _token(call, 2, finish)]
    return _stream(*events, *([b"data: [DONE]\n\n"] if done else []))


def _failed_within(call: int) -> bytes:
    SENT_DONE.add(call)
    return _stream(_token(call, 0, None), b'data: {"error":{"message":"x","code":500}}\n\n', b"data: [DONE]\n\n")


Answers = dict[str, "Callable[[int, bool], bytes]"]
_REFUSAL: Final = b'{"error":{"message":"no","type":"x","param":null,"code":400}}'
PREFILL_ANSWERS: Final[Answers] = {
    "good": lambda _, __: _prefilled(),
    "no kv": lambda _, __: _prefilled(kv_transfer_params=None),
    "aborted": lambda _, __: _prefilled(choices=[{"finish_reason": "abort"}]),
    "no json": lambda _, __: _whole(200, b"{"),
    "refused": lambda _, __: _whole(400, _REFUSAL),
    "failed": lambda _, __: _whole(500, b"{}"),
    "no http": lambda _, __: b"\x00\x01\r\n\r\n",
}
DECODE_ANSWERS: Final[Answers] = {
    "good": _answered,
    "aborted": lambda call, stream: _answered(call, stream, "abort"),
    "no end": lambda call, stream: _answered(call, stream, done=False),
    "refused": lambda _, __: _whole(400, _REFUSAL),
    "failed": lambda _, __: _whole(503, b"gone", "text/plain"),
    "only its end": lambda _, __: _stream(b"data: [DONE]\n\n"),
    "nothing": lambda _, __: _stream(),
    "bad chunk": lambda call, _: _stream(_token(call, 0, None), end=b"zz\r\n"),
    "its own error": lambda call, _: (
        _stream(_token(call, 0, None), b'data: {"error":{"message":"x","code":500}}\n\n', b"data: [DONE]\n\n")
        if SENT_DONE.add(call) is None
        else b""
    ),
}

TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=int(os.environ.get("PDPOOL_FUZZ", "25")), stateful_step_count=50, deadline=None
)
