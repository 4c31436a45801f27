"""Rows about KV events: what is told of which blocks, and replay.

Boundary: `subscribed` and `replayed` are the two clients; the engine's publisher is `standin.events` or vLLM's.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from e2e.engine.exchanges.parts import (
    BLOCK_TOKENS,
    COMPLETIONS,
    Json,
    Pair,
    Target,
    exchange,
    ids,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Subscriber:
    """A SUB socket on an engine's events; `seen` gathers batches until something is there."""

    def __init__(self, target: Target) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(target.events)
        self._target = target

    def warm(self) -> None:
        """Wait until the subscription holds: publish something until it is heard."""
        for _ in range(50):
            self._target.ok(
                COMPLETIONS,
                plain([7] * 32, cache_salt=f"warm {uuid.uuid4()}"),
            )
            if self.batches(0.2):
                while self.batches(0.2):
                    pass
                return
        raise AssertionError("no event was heard")

    def batches(self, quiet_s: float) -> list[tuple[bytes, int, list[Any]]]:
        """(topic, sequence, batch) of what arrives until nothing does for so long."""
        found = []
        while self._socket.poll(int(quiet_s * 1000)):
            topic, sequence, payload = self._socket.recv_multipart()
            found.append((topic, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))
        return found

    def events(self, quiet_s: float = 0.5) -> list[Json]:
        """The events of those batches."""
        return [event for _, _, batch in self.batches(quiet_s) for event in batch[1]]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


@contextmanager
def subscribed(target: Target) -> Iterator[Subscriber]:
    """A subscriber that already hears the engine; closed whatever happens."""
    subscriber = Subscriber(target)
    try:
        subscriber.warm()
        yield subscriber
    finally:
        subscriber.close()


def replayed(target: Target, start: int) -> Iterator[tuple[int, bytes]]:
    """(sequence, payload) of a replay, the end marker included."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(target.replay)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while dealer.poll(3000):
            _, _, sequence, payload = dealer.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            yield number, payload
            if number == -1:
                return
        raise AssertionError("the replay did not end")


STORED_FIELDS = {
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
}


@exchange
def events_tell_the_chain(pair: Pair) -> None:
    """A prompt's whole blocks are told at once, chained from the root, and generated blocks as they fill."""
    with subscribed(pair.prefill) as subscriber:
        prompt = pair.prompt(70)
        answer = pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=40))
        batches = subscriber.batches(0.5)
        numbers = [number for _, number, _ in batches]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {topic for topic, _, _ in batches} == {b"kv"}
        assert {batch[2] for _, _, batch in batches} == {0}
        stored = [event for _, _, batch in batches for event in batch[1]]
        assert {event["type"] for event in stored} == {"BlockStored"}
        assert set(stored[0]) == STORED_FIELDS
        assert stored[0]["parent_block_hash"] is None
        assert stored[0]["token_ids"] == prompt[:64]
        assert len(stored[0]["block_hashes"]) == 2
        assert stored[0]["block_size"] == BLOCK_TOKENS
        assert stored[0]["extra_keys"] == [None, None]
        known = (prompt + ids(answer))[:-1]
        told = [token for event in stored for token in event["token_ids"]]
        assert told == known[: len(known) // BLOCK_TOKENS * BLOCK_TOKENS]
        assert stored[1]["parent_block_hash"] == stored[0]["block_hashes"][-1]
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        assert subscriber.events() == []


@exchange
def events_of_pulled_blocks(pair: Pair) -> None:
    """Decode tells pulled blocks as any, with prefill's hashes; an aligned prompt's last block comes again."""
    with subscribed(pair.prefill) as on_prefill, subscribed(pair.decode) as on_decode:
        prompt = pair.prompt(96)
        params = pair.first_leg(prompt)
        (first,) = on_prefill.events()
        pair.decode.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=params))
        (pulled,) = on_decode.events()
        assert pulled["block_hashes"] == first["block_hashes"]
        assert len(pulled["block_hashes"]) == 3
        assert pulled["medium"] == "GPU"
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        (again,) = on_prefill.events()
        assert again["block_hashes"] == first["block_hashes"][-1:]
        assert again["parent_block_hash"] == first["block_hashes"][-2]


@exchange
def events_with_salt_and_session(pair: Pair) -> None:
    """A salt is an extra key of the first block only; a session id is told; a full report tells cached blocks again."""
    with subscribed(pair.prefill) as subscriber:
        prompt = pair.prompt(70)
        pair.prefill.ok(COMPLETIONS, plain(prompt, cache_salt="tenant", session_id="s1"))
        (stored,) = subscriber.events()
        assert stored["extra_keys"] == [["tenant"], None]
        assert stored["session_id"] == "s1"
        pair.prefill.ok(COMPLETIONS, plain(prompt))
        (other,) = subscriber.events()
        assert not set(other["block_hashes"]) & set(stored["block_hashes"])
        pair.prefill.ok(COMPLETIONS, plain(prompt, vllm_xargs={"kv_cache_report_mode": "full"}))
        (full,) = subscriber.events()
        assert full["block_hashes"] == other["block_hashes"]
        assert full["token_ids"] == prompt[:64]
        assert full["parent_block_hash"] is None


@exchange
def replay(pair: Pair) -> None:
    """A DEALER that sends an empty frame and a sequence gets every batch from there and an end marker of -1."""
    pair.prefill.ok(COMPLETIONS, plain(pair.prompt(40)))
    time.sleep(0.3)
    numbers = [number for number, _ in replayed(pair.prefill, 0)]
    assert numbers[-1] == -1
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert len(numbers) > 1
    assert [number for number, _ in replayed(pair.prefill, 10**9)] == [-1]
