"""The workloads W1 to W4: what is asked, how often, for how long.

Boundary: numbers and request bodies; sending them is `load`'s business. Every count and every time is bounded here.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property

from e2e.bench.replies import MODEL

CHAT_PATH = "/v1/chat/completions"
SERIAL_DIGITS = 10
MESSAGE_BYTES = 1024
_WORDS = ("block", "key", "token", "prefix", "stream", "lease", "pair", "decode", "prompt", "replica", "queue", "batch")


@dataclass(frozen=True)
class Workload:
    """One kind of request and how it is offered.

    `rate_per_s` offers an open loop: arrivals do not wait for answers. `streams` instead holds so many long streams
    open and measures only while all of them run, so that their set-up is not counted.
    """

    name: str
    title: str
    prompt_bytes: int
    chunks: int = 0
    """Events of a streamed answer; 0: one token, not streamed."""
    gap_ms: int = 0
    """Time between two events of one stream."""
    rate_per_s: float = 0
    streams: int = 0

    @property
    def unit(self) -> str:
        """What the CPU is divided by."""
        return "chunk" if self.streams else "request"

    @cached_property
    def body_head(self) -> bytes:
        """The request body up to the serial, which `body` puts in."""
        body = {
            "model": MODEL,
            "messages": _messages(self.prompt_bytes),
            "temperature": 0,
            "max_tokens": max(1, self.chunks),
            "stream": bool(self.chunks),
            "user": "",
        }
        return json.dumps(body, separators=(",", ":")).encode().removesuffix(b'"}')

    @property
    def body_bytes(self) -> int:
        """The length of every body of this workload."""
        return len(self.body(0))

    def body(self, number: int) -> bytes:
        """The body of the request with that number.

        The user field carries serial and pace, because it is the one field of free text that every router passes on.
        """
        return b'%b%b/%03d"}' % (self.body_head, serial(number).encode(), self.gap_ms)


def serial(number: int) -> str:
    """A request's number at a fixed width, so that all bodies of a workload are equally long."""
    return f"{number:0{SERIAL_DIGITS}d}"


def _messages(prompt_bytes: int) -> list[dict[str, str]]:
    """A conversation of that many bytes of text, the same on every run."""
    chance = random.Random(prompt_bytes)  # noqa: S311 - text, not secrets
    messages: list[dict[str, str]] = []
    left = prompt_bytes
    while left > 0:
        size = min(left, MESSAGE_BYTES)
        text = " ".join(chance.choices(_WORDS, k=size // 4))[:size]
        messages.append({"role": "assistant" if len(messages) % 2 else "user", "content": text})
        left -= size
    if messages[-1]["role"] == "assistant":
        messages[-1]["role"] = "user"
    return messages


W1 = Workload("w1", "1 kB prompt, one token", 1024, rate_per_s=800)
W2 = Workload("w2", "16 kB chat, 8 chunks streamed", 16 * 1024, chunks=8, gap_ms=5, rate_per_s=150)
W4 = Workload("w4", "64 kB chat, 8 chunks streamed", 64 * 1024, chunks=8, gap_ms=5, rate_per_s=80)


def long_streams(streams: int, duration_s: float) -> Workload:
    """W3 with that many streams, each long enough for start, measurement and end."""
    gap_ms = 20
    chunks = int(duration_s * 1000 / gap_ms)
    return Workload(f"w3_{streams}", f"{streams} long streams", 1024, chunks=chunks, gap_ms=gap_ms, streams=streams)
