"""Engines that only answer: the lean counterpart of the stand-in engine, for measuring routers.

Boundary: answers the legs of a P/D request in vLLM's shape, as fast as Python can, so that one core carries all engines
and the client; it keeps no blocks, metrics or events. It is no stand-in for tests: that is `e2e.engine.standin`.
It still refuses a decode leg whose handoff no prefill here gave, or that came twice: a router that skips the first leg
fails.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import zlib
from typing import TYPE_CHECKING, cast

import httptools
import msgspec
import uvloop
import zmq

from e2e.bench import replies
from e2e.bench.workloads import serial_and_gap_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JSON_HEAD = (
    b"HTTP/1.1 %b\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n"
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
PHASES = 1024
LOOK_S = 0.1
_LAST_CHUNK = b"0\r\n\r\n"
_MODELS = {
    "object": "list",
    "data": [{"id": replies.MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131072}],
}
_PAGES = {
    "/health": b"",
    "/v1/models": msgspec.json.encode(_MODELS),
    "/metrics": b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
    "/version": b'{"version":"0.32.0"}',
    "/server_info": b'{"model_path":"m","version":"0.5.0"}',
    "/model_info": b'{"model_path":"m","is_generation":true}',
    "/kv_event_sources": b'{"sources":[]}',
}
_LEG_PATHS = {"/v1/chat/completions", "/v1/completions"}


class Leg(msgspec.Struct):
    """What an engine here looks at in a leg's body."""

    seed: int
    max_tokens: int = 1
    max_completion_tokens: int = 0
    """What sglang-router makes of the same."""
    stream: bool = False
    return_token_ids: bool = False
    kv_transfer_params: dict[str, msgspec.Raw] = {}


_TRUE = msgspec.Raw(b"true")
_decode_leg = msgspec.json.Decoder(Leg).decode


class Handoffs:
    """Which handoffs prefill gave and decode has not taken yet."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._given = 0

    def give(self) -> str:
        """A new handoff."""
        self._given += 1
        handoff = f"handoff-{self._given:012d}"
        self._open.add(handoff)
        return handoff

    def take(self, params: dict[str, msgspec.Raw]) -> bool:
        """Whether the parameters carry a handoff that is open; it is closed then."""
        handoff = msgspec.json.decode(params.get("remote_request_id", msgspec.Raw(b'""')), type=str)
        if handoff not in self._open:
            return False
        self._open.remove(handoff)
        return True


class Stream:
    """One streamed answer: an event each `gap_s`, at a phase of its own.

    An engine computes the tokens of a batch in one step, but its API server writes them one after another, further
    apart than a router needs for each: streams in lockstep would show a router bursts that it does not meet.
    """

    def __init__(self, transport: asyncio.Transport, serial: str, count: int, gap_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._serial = serial
        self._count = count
        self._gap_s = gap_s
        self._sent = 0
        self._due_s = 0.0

    def start(self) -> None:
        """Write the first event within one gap."""
        phase = zlib.crc32(self._serial.encode()) % PHASES / PHASES
        self._due_s = self._loop.time() + self._gap_s * phase
        self._loop.call_at(self._due_s, self._step)

    def _step(self) -> None:
        if self._transport.is_closing():
            return
        event = replies.stream_event(self._serial, self._sent, self._count)
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        if self._sent == 0:
            chunk = _STREAM_HEAD + chunk
        self._sent += 1
        if self._sent < self._count:
            # What is late stays late: missed events must not come at once.
            self._due_s = max(self._due_s + self._gap_s, self._loop.time())
            self._loop.call_at(self._due_s, self._step)
        else:
            chunk += b"%x\r\n%b\r\n" % (len(replies.STREAM_END), replies.STREAM_END) + _LAST_CHUNK
        self._transport.write(chunk)


class Engine:
    """One engine of a role: what all its connections share."""

    def __init__(self, role: str, handoffs: Handoffs) -> None:
        self.role = role
        self._handoffs = handoffs

    def answer(self, transport: asyncio.Transport, path: str, body: bytes) -> None:
        """Answer one request."""
        if path in _LEG_PATHS:
            self._answer_leg(transport, body)
        elif path in _PAGES:
            _write(transport, b"200 OK", _PAGES[path])
        else:
            _write(transport, b"404 Not Found", b'{"detail":"Not Found"}')

    def _answer_leg(self, transport: asyncio.Transport, body: bytes) -> None:
        try:
            leg = _decode_leg(body)
        except msgspec.MsgspecError as fault:
            _write(transport, b"400 Bad Request", msgspec.json.encode({"error": {"message": str(fault)}}))
            return
        serial, gap_ms = serial_and_gap_ms(leg.seed)
        wants_handoff = leg.kv_transfer_params.get("do_remote_decode") == _TRUE
        carries = self.role == "prefill" if wants_handoff else self.role == "whole" or self._takes(leg)
        if not carries:
            message = f"kv_transfer_params: not what a {self.role} leg carries"
            _write(transport, b"400 Bad Request", msgspec.json.encode({"error": {"message": message}}))
        elif wants_handoff:
            _write(
                transport,
                b"200 OK",
                replies.prefill(serial, self._handoffs.give(), len(body), ids=leg.return_token_ids),
            )
        elif leg.stream:
            Stream(transport, serial, leg.max_completion_tokens or leg.max_tokens, gap_ms / 1000).start()
        else:
            _write(transport, b"200 OK", replies.completion(serial))

    def _takes(self, leg: Leg) -> bool:
        return self.role == "decode" and self._handoffs.take(leg.kv_transfer_params)


def _write(transport: asyncio.Transport, status: bytes, body: bytes) -> None:
    transport.write(_JSON_HEAD % (status, len(body)) + body)


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; small writes go out at once."""
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it does not understand ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        """Start a request."""
        self._path = ""
        self._body = []

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._path += url.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request."""
        self._engine.answer(self._transport, self._path, b"".join(self._body))
        if not self._parser.should_keep_alive():
            self._transport.close()


class Publisher:
    """KV events of one engine: to whoever subscribes it says that the prompts that half of all requests have are there.

    What other prompts would leave is not told: what an event costs is measured by `make bench-index`.
    """

    def __init__(self, prompts_bytes: Sequence[int]) -> None:
        self._prompts_bytes = prompts_bytes
        self._sequence = 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
        self.port: int = self._socket.bind_to_random_port("tcp://127.0.0.1")

    def look(self) -> None:
        """Tells those who have subscribed since the last look."""
        while self._socket.poll(0):
            if self._socket.recv().startswith(b"\x01"):
                self._tell()

    def _tell(self) -> None:
        for prompt_bytes in self._prompts_bytes:
            ids = replies.token_ids("0", prompt_bytes)
            blocks = len(ids) // replies.BLOCK_TOKENS
            stored = {
                "type": "BlockStored",
                "block_hashes": [prompt_bytes * 100_000 + number for number in range(blocks)],
                "parent_block_hash": None,
                "token_ids": ids[: blocks * replies.BLOCK_TOKENS],
                "block_size": replies.BLOCK_TOKENS,
            }
            payload = msgspec.msgpack.encode([0.0, [stored], None])
            self._socket.send_multipart([b"kv", self._sequence.to_bytes(8, "big"), payload])
            self._sequence += 1


async def _serve(counts: Mapping[str, int], prompts_bytes: Sequence[int]) -> None:
    loop = asyncio.get_running_loop()
    handoffs = Handoffs()
    publishers = []
    for role in [role for role, count in counts.items() for _ in range(count)]:
        engine = Engine(role, handoffs)
        server = await loop.create_server(lambda engine=engine: Connection(engine), "127.0.0.1", 0, backlog=4096)  # type: ignore[misc]
        publishers.append(Publisher(prompts_bytes))
        print(role, server.sockets[0].getsockname()[1], publishers[-1].port, flush=True)
    print("ready", flush=True)
    while True:
        for publisher in publishers:
            publisher.look()
        await asyncio.sleep(LOOK_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve engines on free loopback ports; each is printed as `role port port-of-events`, then `ready`."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.responder", description=main.__doc__)
    parser.add_argument("--prefills", type=int, default=2)
    parser.add_argument("--decodes", type=int, default=2)
    parser.add_argument("--wholes", type=int, default=0)
    parser.add_argument("--known", type=int, action="append", default=[], help="bytes of a body whose prompt is cached")
    chosen = parser.parse_args(arguments)
    counts = {"prefill": chosen.prefills, "decode": chosen.decodes, "whole": chosen.wholes}
    uvloop.run(_serve(counts, chosen.known))


if __name__ == "__main__":
    main()
