"""Rows about KV events: what is told of which blocks, and replay.

Boundary: `subscribed` and `replayed` are the two clients; the engine's publisher is `standin.events` or vLLM's.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

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
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE_S, QUIET_S = 15.0, 0.3
"""How late an event may be that must come; how long one is waited for that must not."""


class Subscriber:
    """A SUB socket on an engine's events."""

    def __init__(self, target: Target) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(target.events)
        self._target = target

    def warm(self) -> None:
        """Wait until the subscription holds: publish something until it is heard.

        Events come in their order, so that none of these is left when the newest has come.
        """
        for _ in range(20):
            salt = f"warm {uuid.uuid4()}"
            self._target.ok(COMPLETIONS, plain([7] * 32, cache_salt=salt))
            while (batch := self._batch(1.0)) is not None:
                if any(event.get("extra_keys") == [[salt]] for event in batch[2][1]):
                    return
        raise AssertionError("no event was heard")

    def batches(self, blocks: int) -> list[tuple[bytes, int, list[Any]]]:
        """(topic, sequence, batch) of what arrives until so many blocks were told, and for a moment after that."""
        found: list[tuple[bytes, int, list[Any]]] = []
        told = 0
        while (batch := self._batch(QUIET_S if told >= blocks else LATE_S)) is not None:
            found.append(batch)
            told += sum(len(event["block_hashes"]) for event in batch[2][1] if event["type"] == "BlockStored")
        return found

    def events(self, blocks: int) -> list[Json]:
        """The events of those batches."""
        return [event for _, _, batch in self.batches(blocks) for event in batch[1]]

    def _batch(self, within_s: float) -> tuple[bytes, int, list[Any]] | None:
        if not self._socket.poll(int(within_s * 1000)):
            return None
        topic, sequence, payload = self._socket.recv_multipart()
        return topic, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)

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
        while dealer.poll(int(LATE_S * 1000)):
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
        known = (prompt + ids(answer))[:-1]
        batches = subscriber.batches(len(known) // BLOCK_TOKENS)
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
        told = [token for event in stored for token in event["token_ids"]]
        assert told == known[: len(known) // BLOCK_TOKENS * BLOCK_TOKENS]
        assert stored[1]["parent_block_hash"] == stored[0]["block_hashes"][-1]
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        assert subscriber.events(0) == []


@exchange
def events_of_pulled_blocks(pair: Pair) -> None:
    """Decode tells pulled blocks as any, with prefill's hashes; an aligned prompt's last block comes again."""
    with subscribed(pair.prefill) as on_prefill, subscribed(pair.decode) as on_decode:
        prompt = pair.prompt(96)
        params = pair.first_leg(prompt)
        (first,) = on_prefill.events(3)
        pair.decode.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=params))
        (pulled,) = on_decode.events(3)
        assert pulled["block_hashes"] == first["block_hashes"]
        assert len(pulled["block_hashes"]) == 3
        assert pulled["medium"] == "GPU"
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        (again,) = on_prefill.events(1)
        assert again["block_hashes"] == first["block_hashes"][-1:]
        assert again["parent_block_hash"] == first["block_hashes"][-2]


@exchange
def events_with_salt_and_session(pair: Pair) -> None:
    """A salt is an extra key of the first block only; a session id is told; a full report tells cached blocks again."""
    with subscribed(pair.prefill) as subscriber:
        prompt = pair.prompt(70)
        pair.prefill.ok(COMPLETIONS, plain(prompt, cache_salt="tenant", session_id="s1"))
        (stored,) = subscriber.events(2)
        assert stored["extra_keys"] == [["tenant"], None]
        assert stored["session_id"] == "s1"
        pair.prefill.ok(COMPLETIONS, plain(prompt))
        (other,) = subscriber.events(2)
        assert not set(other["block_hashes"]) & set(stored["block_hashes"])
        pair.prefill.ok(COMPLETIONS, plain(prompt, vllm_xargs={"kv_cache_report_mode": "full"}))
        (full,) = subscriber.events(2)
        assert full["block_hashes"] == other["block_hashes"]
        assert full["token_ids"] == prompt[:64]
        assert full["parent_block_hash"] is None


@exchange
def replay(pair: Pair) -> None:
    """A DEALER that sends an empty frame and a sequence gets every batch from there and an end marker of -1."""
    pair.prefill.ok(COMPLETIONS, plain(pair.prompt(40)))

    def told() -> list[int]:
        return [number for number, _ in replayed(pair.prefill, 0)]

    assert wait_for(lambda: len(told()) > 1, LATE_S)
    numbers = told()
    assert numbers[-1] == -1
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert len(numbers) > 1
    assert [number for number, _ in replayed(pair.prefill, 10**9)] == [-1]
