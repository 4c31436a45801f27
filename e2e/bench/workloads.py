"""The workloads W1 to W4: what is asked, how often, for how long.

Boundary: numbers and request bodies; sending them is `load`'s business. Every count and every time is bounded here.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property

from e2e.bench.replies import MODEL, is_known

CHAT_PATH = "/v1/chat/completions"
SERIAL_DIGITS = 10
GAP_DIGITS = 3
MESSAGE_BYTES = 1024
_FIRST_WORD = "0" * SERIAL_DIGITS
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
    model: str = MODEL

    @property
    def unit(self) -> str:
        """What the CPU is divided by."""
        return "chunk" if self.streams else "request"

    @cached_property
    def _parts(self) -> tuple[bytes, bytes]:
        """The request body before and after the prompt's first word, up to the serial."""
        messages = _messages(self.prompt_bytes)
        messages[0]["content"] = _FIRST_WORD + messages[0]["content"][len(_FIRST_WORD) :]
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max(1, self.chunks),
            "stream": bool(self.chunks),
            "seed": 0,
        }
        text = json.dumps(body, separators=(",", ":")).encode().removesuffix(b"0}")
        before, _, after = text.partition(_FIRST_WORD.encode())
        return before, after

    @property
    def body_bytes(self) -> int:
        """The length of every body of this workload."""
        return len(self.body(0))

    def body(self, number: int) -> bytes:
        """The body of the request with that number.

        The seed carries serial and pace, because it is a field that every router passes on.
        The prompts of even numbers are all the same, those of odd ones differ from the first word on.
        """
        before, after = self._parts
        name = serial(number)
        first = _FIRST_WORD if is_known(name) else name
        return b"%b%b%b%d}" % (before, first.encode(), after, seed(name, self.gap_ms))


def seed(name: str, gap_ms: int) -> int:
    """A serial and a pace as one number, whose digits are always as many."""
    return int(f"1{name}{gap_ms:0{GAP_DIGITS}d}")


def serial_and_gap_ms(seed_: int) -> tuple[str, int]:
    """The reverse."""
    digits = str(seed_)
    return digits[1:-GAP_DIGITS], int(digits[-GAP_DIGITS:])


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


ALL_STREAMS = 4000
W1 = Workload("w1", "1 kB prompt, one token", 1024, rate_per_s=800)
W2 = Workload("w2", "16 kB chat, 8 chunks streamed", 16 * 1024, chunks=8, gap_ms=5, rate_per_s=150)
W4 = Workload("w4", "64 kB chat, 8 chunks streamed", 64 * 1024, chunks=8, gap_ms=5, rate_per_s=80)
LATENCY = Workload("latency", "1 kB prompt, one token", 1024, rate_per_s=500)
CROWD = Workload("crowd", "4,000 streams of 8 chunks a second", 1024, chunks=1_000_000, gap_ms=125, streams=ALL_STREAMS)
"""Streams that end only when their client leaves."""


def long_streams(streams: int, duration_s: float) -> Workload:
    """W3 with that many streams, each long enough for start, measurement and end."""
    gap_ms = 20
    chunks = int(duration_s * 1000 / gap_ms)
    return Workload(f"w3_{streams}", f"{streams} long streams", 1024, chunks=chunks, gap_ms=gap_ms, streams=streams)
