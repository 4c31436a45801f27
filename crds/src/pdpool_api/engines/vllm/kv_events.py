"""KV events of vLLM: which blocks an engine has stored and removed.

Boundary: pure, from the bytes of a message to records; sockets and bookkeeping are the router's. A batch is MessagePack
`[time, [events], data-parallel rank]`. Newer engines write an event as a map with `type`, older ones as an array that
begins with it; both are read. Fields that are absent have their defaults, unknown fields and unknown kinds of events
are passed over (seen on vLLM 0.32; arrays as in its earlier releases).
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

END_OF_REPLAY: Final = -1
SOURCES_PATH: Final = "/kv_event_sources"
_SEQUENCE_BYTES: Final = 8
# Kinds of KV cache whose blocks say that the whole prefix before them is there. Windows and states do not.
_PARTIAL_KINDS: Final = ("sliding", "window", "chunked", "mamba", "cross", "encoder", "recurrent")


class EventError(ValueError):
    """A message that is no batch of KV events."""


class BlockStored(msgspec.Struct, tag="BlockStored", tag_field="type", gc=False):
    """Consecutive blocks are there: computed, pulled or loaded."""

    block_hashes: list[int | bytes]
    """The engine's names of them."""
    parent_block_hash: int | bytes | None = None
    """The block before the first one; None: the prompt begins here."""
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    """Per block what else tells it apart: adapter, salt, contents of images."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", tag_field="type", gc=False):
    """One copy of each block is gone."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False):
    """All blocks are gone."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What one step of an engine changed."""

    at_s: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


class _ArrayBatch(msgspec.Struct, array_like=True, gc=False):
    at_s: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    at_s: float
    events: list[Raw]
    rank: int | None = None


_decode_maps = msgspec.msgpack.Decoder(Batch).decode
_decode_arrays = msgspec.msgpack.Decoder(_ArrayBatch).decode
_decode_raw = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_map = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode
_decode_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray).decode


def batch(payload: bytes) -> Batch:
    """The events of a message, in order.

    Raises:
        EventError: it is no batch.
    """
    try:
        return _decode_maps(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        arrays = _decode_arrays(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _one_by_one(payload)
    return Batch(arrays.at_s, [_as_map(event) for event in arrays.events], arrays.rank)


def _one_by_one(payload: bytes) -> Batch:
    """A batch of mixed encodings, or with kinds of events that nobody knows yet."""
    try:
        raw = _decode_raw(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise EventError("not a batch of KV events") from fault
    events: list[Event] = []
    for one in raw.events:
        try:
            events.append(_decode_map(one))
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                events.append(_as_map(_decode_array(one)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
    return Batch(raw.at_s, events, raw.rank)


def _as_map(event: _StoredArray | _RemovedArray | _ClearedArray) -> Event:
    match event:
        case _StoredArray():
            return BlockStored(*(getattr(event, name) for name in event.__struct_fields__))
        case _RemovedArray():
            return BlockRemoved(event.block_hashes, event.medium, event.group_idx)
        case _:
            return AllBlocksCleared()


# --- what an event means ----------------------------------------------------------------------------------------


def tells_prefixes(event: BlockStored) -> bool:
    """Whether a block of this kind of cache says that the prefix before it is there."""
    kind = event.kv_cache_spec_kind
    return not event.group_idx if kind is None else not _is_partial(kind)


@lru_cache(maxsize=64)  # there are a handful, and one in every event
def _is_partial(kind: str) -> bool:
    return any(word in kind for word in _PARTIAL_KINDS)


def packed_tokens(event: BlockStored) -> bytes | None:
    """The tokens, four bytes each; None where they are no tokens, or do not fill the blocks that are named."""
    if event.block_size < 1 or len(event.token_ids) != event.block_size * len(event.block_hashes):
        return None
    try:
        return array("I", event.token_ids).tobytes()
    except OverflowError:
        return None


def adapter_and_extras(event: BlockStored) -> tuple[str, list[list[Any]] | None]:
    """The adapter (empty: none), and per block what else tells it apart; None where nothing does.

    An engine names the adapter among the extra keys of each block, newer ones also by itself. One that tells only a
    number of it is of an adapter that nobody can ask for by name.
    """
    extras = event.extra_keys
    adapter = event.lora_name or ""
    if extras is None or not any(extras):
        if not adapter and event.lora_id is not None:
            adapter = f"\0{event.lora_id}"
        return adapter, None
    cleaned = [list(each) if isinstance(each, list) else ([] if each is None else [each]) for each in extras]
    if not adapter and event.lora_id is not None:
        first = cleaned[0][0] if cleaned[0] else None
        adapter = first if isinstance(first, str) else f"\0{event.lora_id}"
    if adapter:
        for each in cleaned:
            if adapter in each:
                each.remove(adapter)
    return adapter, cleaned if any(cleaned) else None


# --- messages and where they come from --------------------------------------------------------------------------


def sequence_and_payload(frames: list[bytes]) -> tuple[int, bytes] | None:
    """Number and batch of a live or a replayed message, with or without topic and empty frames before them.

    Returns:
        None where it is no such message; -1 and nothing at the end of a replay.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQUENCE_BYTES:  # noqa: PLR2004 - number and batch
        # An end marker without a batch.
        if frames and len(frames[-1]) == _SEQUENCE_BYTES and frames[-1] == b"\xff" * _SEQUENCE_BYTES:
            return END_OF_REPLAY, b""
        return None
    return int.from_bytes(frames[-2], "big", signed=True), frames[-1]


def replay_request(start: int) -> list[bytes]:
    """What a DEALER socket sends to get every batch again from a number on; the empty frame is needed."""
    return [b"", start.to_bytes(_SEQUENCE_BYTES, "big")]


class Source(msgspec.Struct, frozen=True):
    """Where one data-parallel rank publishes."""

    rank: int
    events_port: int
    replay_port: int | None = None


class _Told(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    data_parallel_rank: int = 0
    """Where the answer is a list."""


_decode_sources = msgspec.json.Decoder(dict[str, _Told | list[_Told]] | list[_Told]).decode


def sources(answer: bytes) -> list[Source]:
    """What `GET /kv_event_sources` tells: ports by rank. Only ports: on which host an engine is, it need not say.

    vLLM 0.32 answers a map by rank. Its repository also has a list whose items name their ranks, by itself and under
    `sources`.

    Raises:
        EventError: the answer is not of that shape.
    """
    try:
        ranks = _by_rank(_decode_sources(answer))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as fault:
        raise EventError("not a list of sources") from fault
    found: list[Source] = []
    for rank, where in sorted(ranks.items()):
        port = port_of(where.endpoint)
        if port is not None:
            found.append(Source(rank, port, port_of(where.replay_endpoint)))
    return found


def _by_rank(told: dict[str, _Told | list[_Told]] | list[_Told]) -> dict[int, _Told]:
    listed = told.get("sources") if isinstance(told, dict) else told
    if isinstance(listed, list):
        return {each.data_parallel_rank: each for each in listed}
    assert isinstance(told, dict)
    return {int(rank): where for rank, where in told.items() if isinstance(where, _Told)}


def port_of(endpoint: str | None) -> int | None:
    """The port of a TCP endpoint as ZeroMQ writes it; None where there is none."""
    if not endpoint or not endpoint.startswith("tcp://"):
        return None
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and 0 < int(port) < 65_536 else None  # noqa: PLR2004
