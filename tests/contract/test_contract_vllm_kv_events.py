"""KV events in every encoding that engines have used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.engines.vllm import kv_events
from pdpool_api.engines.vllm.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventError

STORED = {
    "type": "BlockStored",
    "block_hashes": [5, 2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "something_new": {"a": 1},
}


def encoded(*events: Any, rank: Any = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def test_maps_and_arrays_say_the_same() -> None:
    """The form of vLLM 0.32, and arrays of earlier releases, however many fields they knew."""
    maps = encoded(STORED, {"type": "BlockRemoved", "block_hashes": [b"\x01" * 32]}, {"type": "AllBlocksCleared"})
    array = ["BlockStored", [5, 2**64 - 1], None, [1, 2, 3, 4], 2, None, "GPU", None, [["salt"], None], 0]
    arrays = encoded(array, ["BlockRemoved", [b"\x01" * 32]], ["AllBlocksCleared"])
    for payload in (maps, arrays):
        found = kv_events.batch(payload)
        stored, removed, cleared = found.events
        assert isinstance(stored, BlockStored)
        assert (stored.block_hashes, stored.token_ids, stored.block_size) == ([5, 2**64 - 1], [1, 2, 3, 4], 2)
        assert kv_events.adapter_and_extras(stored) == ("", [["salt"], []])
        assert removed == BlockRemoved([b"\x01" * 32])
        assert isinstance(cleared, AllBlocksCleared)
        assert found.rank == 0
    for length in range(5, len(array)):
        (short,) = kv_events.batch(encoded(array[:length], rank=None)).events
        assert isinstance(short, BlockStored)
        assert short.block_size == 2


def test_unknown_events_are_passed_over() -> None:
    """A kind of event that nobody knows, or both encodings in one batch, hide no other event."""
    payload = encoded({"type": "BlockMoved", "x": 1}, STORED, ["BlockRemoved", [7]], ["Odd"], 5)
    kinds = [type(event) for event in kv_events.batch(payload).events]
    assert kinds == [BlockStored, BlockRemoved]


@given(st.binary(max_size=200))
def test_rubbish_is_refused(payload: bytes) -> None:
    """No message ends the follower."""
    try:
        kv_events.batch(payload)
    except EventError:
        return


@pytest.mark.parametrize(
    ("fields", "adapter", "extras"),
    [
        ({"lora_name": "a", "lora_id": 1, "extra_keys": [["a"], ["a"]]}, "a", None),
        ({"lora_name": "a", "lora_id": 1, "extra_keys": None}, "a", None),
        ({"lora_name": None, "lora_id": 1, "extra_keys": [["a"], ["a"]]}, "a", None),
        ({"lora_name": None, "lora_id": 1, "extra_keys": None}, "\0001", None),
        ({"lora_name": "a", "lora_id": 1, "extra_keys": [["a", "s"], ["a"]]}, "a", [["s"], []]),
        ({"lora_name": None, "lora_id": None, "extra_keys": [["s"], None]}, "", [["s"], []]),
        ({"lora_name": None, "lora_id": None, "extra_keys": [None, None]}, "", None),
        ({"lora_name": None, "lora_id": None, "extra_keys": [[["image", 3]], None]}, "", [[["image", 3]], []]),
        ({"lora_name": None, "lora_id": None, "extra_keys": ["s", None]}, "", [["s"], []]),
    ],
)
def test_adapters_and_salts_are_told_apart(fields: dict[str, Any], adapter: str, extras: Any) -> None:
    """Whether the adapter stands by itself, among the extra keys, or only as a number (Q57)."""
    event = kv_events.batch(encoded(STORED | fields)).events[0]
    assert isinstance(event, BlockStored)
    assert kv_events.adapter_and_extras(event) == (adapter, extras)


@pytest.mark.parametrize(
    ("kind", "group", "tells"),
    [
        ("full_attention", 0, True),
        ("full_attention", 1, True),
        ("mla_attention", 0, True),
        ("sliding_window", 0, False),
        ("mamba", 1, False),
        ("chunked_local_attention", 1, False),
        (None, None, True),
        (None, 0, True),
        (None, 1, False),
    ],
)
def test_only_caches_of_whole_prefixes_count(kind: str | None, group: int | None, *, tells: bool) -> None:
    """Windows and states keep the end of a prompt; that they hold a block says nothing of the prefix (Q99)."""
    event = BlockStored([1], kv_cache_spec_kind=kind, group_idx=group)
    assert kv_events.tells_prefixes(event) is tells


def test_tokens_must_fill_the_blocks() -> None:
    """What does not fit its own block size is no block."""
    assert kv_events.packed_tokens(BlockStored([1, 2], None, [1, 2, 3, 4], 2)) is not None
    for event in (
        BlockStored([1, 2], None, [1, 2, 3], 2),
        BlockStored([1], None, [1], 0),
        BlockStored([1], None, [-1], 1),
        BlockStored([1], None, [2**32], 1),
    ):
        assert kv_events.packed_tokens(event) is None


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([b"kv", (7).to_bytes(8, "big"), b"p"], (7, b"p")),
        ([(7).to_bytes(8, "big"), b"p"], (7, b"p")),
        ([b"", b"kv", (7).to_bytes(8, "big"), b"p"], (7, b"p")),
        ([b"", (7).to_bytes(8, "big"), b"p"], (7, b"p")),
        ([b"", b"kv", b"\xff" * 8, b""], (-1, b"")),
        ([b"", b"\xff" * 8, b""], (-1, b"")),
        ([b"", b"\xff" * 8], (-1, b"")),
        ([b"kv", b"x", b"p"], None),
        ([b"p"], None),
        ([], None),
    ],
)
def test_frames_with_and_without_topic(frames: list[bytes], found: Any) -> None:
    """Live and replayed messages differ in what stands before number and batch (Q59)."""
    assert kv_events.sequence_and_payload(frames) == found


def test_sources_are_read_in_every_shape() -> None:
    """By rank as in 0.32, and as the lists that vLLM's repository has besides."""
    listed = [
        {"data_parallel_rank": 1, "endpoint": "tcp://10.0.0.1:6558", "replay_endpoint": None, "topic": ""},
        {"data_parallel_rank": 0, "endpoint": "tcp://10.0.0.1:6557", "replay_endpoint": "tcp://*:6657", "topic": ""},
    ]
    by_rank = {str(each["data_parallel_rank"]): each for each in listed}
    for answer in (by_rank, listed, {"sources": listed}):
        found = kv_events.sources(msgspec.json.encode(answer))
        assert found == [kv_events.Source(0, 6557, 6657), kv_events.Source(1, 6558, None)]
    for nobody in (b"{}", b"[]", b'{"sources": []}'):
        assert not kv_events.sources(nobody)


def test_only_ports_of_sources_are_believed() -> None:
    """An engine says on which ports it publishes, never on which host: nobody is led elsewhere (Q100)."""
    answer = {
        "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "buffer_steps": 10},
        "1": {"endpoint": "tcp://evil.example:22", "replay_endpoint": None},
        "2": {"endpoint": "ipc:///tmp/x"},
        "3": {"endpoint": "tcp://*:99999"},
    }
    found = kv_events.sources(msgspec.json.encode(answer))
    assert found == [kv_events.Source(0, 5557, 5657), kv_events.Source(1, 22, None)]
    for wrong in (b"", b"[5]", b'{"a": {}}', b'{"0": 5}', b"\xff"):
        with pytest.raises(EventError):
            kv_events.sources(wrong)
