"""KV events of one rank over ZeroMQ, with replay, in vLLM's form: topic, 8-byte sequence, msgpack `[ts, events, rank]`.

Boundary: sockets and the buffer of sent batches; what happened to blocks is told by `kv`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

if TYPE_CHECKING:
    from e2e.engine.standin.kv import Event

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class EventsConfig(msgspec.Struct, forbid_unknown_fields=True):
    """`--kv-events-config`: the fields and defaults of vLLM 0.32."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        """Whether anything is sent."""
        return self.enable_kv_cache_events and self.publisher in {None, "zmq"}


def rank_endpoint(endpoint: str | None, rank: int) -> str | None:
    """The endpoint of a rank: TCP ports grow by the rank."""
    if endpoint is None or not endpoint.startswith("tcp://"):
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


class Publisher:
    """Sends batches and answers replay requests; without effect until `open`."""

    def __init__(self, config: EventsConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._topic = config.topic.encode()
        self._sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self._context: zmq.Context[Any] | None = None
        self._pub: zmq.Socket[Any] | None = None
        self._replay: zmq.Socket[Any] | None = None

    def open(self) -> None:
        """Bind the sockets on the running loop."""
        self._context = zmq.Context()
        self._pub = self._socket(zmq.PUB, self._config.endpoint)
        if self._config.replay_endpoint:
            self._replay = self._socket(zmq.ROUTER, self._config.replay_endpoint)
            asyncio.get_running_loop().add_reader(int(self._replay.getsockopt(zmq.FD)), self._answer_replays)

    def _socket(self, kind: int, endpoint: str) -> zmq.Socket[Any]:
        assert self._context is not None
        sock: zmq.Socket[Any] = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.set_hwm(self._config.hwm)
        own = rank_endpoint(endpoint, self._rank) or ""
        if "*" in own or "::" in own or own.startswith(("ipc://", "inproc://")):
            sock.bind(own)
        else:
            sock.connect(own)
        return sock

    def close(self) -> None:
        """Close the sockets."""
        if self._replay is not None:
            asyncio.get_running_loop().remove_reader(int(self._replay.getsockopt(zmq.FD)))
            self._replay.close()
        if self._pub is not None:
            self._pub.close()
        if self._context is not None:
            self._context.term()
        self._context = self._pub = self._replay = None

    def publish(self, events: list[Event]) -> None:
        """Send one batch."""
        if self._pub is None or not events:
            return
        payload = self._encoder.encode([time.time(), events, self._rank])
        self._buffer.append((self._sequence, payload))
        with contextlib.suppress(zmq.Again):
            self._pub.send_multipart((self._topic, self._sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        self._sequence += 1

    def _answer_replays(self) -> None:
        # The descriptor only tells that something changed: read until nothing is left.
        while self._replay is not None and int(self._replay.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._replay.recv_multipart()
            match frames:
                case [peer, b"", start]:
                    self._send_replay(peer, int.from_bytes(start, "big"))

    def _send_replay(self, peer: bytes, start: int) -> None:
        assert self._replay is not None
        for sequence, payload in self._buffer:
            if sequence >= start:
                self._replay.send_multipart((peer, b"", self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        self._replay.send_multipart((peer, b"", self._topic, END_OF_REPLAY, b""), zmq.NOBLOCK)
