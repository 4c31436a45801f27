"""The stand-in's KV cache: blocks with keys and contents, and leases: vLLM's block pool without the memory.

Boundary: pure bookkeeping on one rank; no clock, no I/O. Events come out as plain lists for `events` to publish.

A block's *key* is the chained hash of the tokens it should hold, its *content* is what it really holds: the model
state before it and its tokens. They part when a block was pulled with the parameters of another prompt, and then a
later hit on the key continues the wrong text, as on a real engine.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from e2e.engine.standin.tokens import TOKEN_BYTES, token_ids

Event = dict[str, Any]


class Content(NamedTuple):
    """What a block holds: the state of all tokens before it, and its own tokens (fewer than a block's for the last)."""

    before: int
    tokens: bytes

    @property
    def after(self) -> int:
        """The state after its tokens."""
        return zlib.crc32(self.tokens, self.before)


class OutOfBlocksError(Exception):
    """Not enough free blocks now."""


@dataclass(slots=True)
class Block:
    """One block of the pool; `copies` of a key may exist, each in a block of its own."""

    number: int
    users: int = 0
    key: int | None = None
    content: Content | None = None


@dataclass(slots=True)
class Chain:
    """The prompt's keys: one per full block, with the extra keys that tell LoRA adapters and salts apart."""

    keys: list[int]
    extra_keys: list[tuple[Any, ...] | None]


def chain(
    tokens: bytes, block_tokens: int, *, lora: str | None = None, salt: str | None = None, parent: int | None = None
) -> Chain:
    """The keys of every full block of a sequence: 64 bits of a hash over the parent's key, tokens and extra keys.

    `parent` continues a chain (then `salt` is in it already).
    """
    size = block_tokens * TOKEN_BYTES
    keys: list[int] = []
    extras: list[tuple[Any, ...] | None] = []
    suffix = (lora or "").encode()
    before = b"root" if parent is None else parent.to_bytes(8, "big")
    for at in range(0, len(tokens) - size + 1, size):
        first_salt = salt if at == 0 and parent is None else None
        extra = (*((lora,) if lora else ()), *((first_salt,) if first_salt else ()))
        seed = suffix if first_salt is None else suffix + b"\0" + first_salt.encode()
        before = hashlib.blake2b(before + tokens[at : at + size] + seed, digest_size=8).digest()
        keys.append(int.from_bytes(before, "big"))
        extras.append(extra or None)
    return Chain(keys, extras)


def contents(tokens: bytes, block_tokens: int, before: int) -> list[Content]:
    """The contents of a sequence's blocks, its first token following the state `before`; the last may be partial."""
    size = block_tokens * TOKEN_BYTES
    found = []
    for at in range(0, len(tokens), size):
        piece = tokens[at : at + size]
        found.append(Content(before, piece))
        before = zlib.crc32(piece, before)
    return found


class BlockPool:
    """Blocks with reference counts, free ones in least-recently-used order with content, and the index by key."""

    def __init__(self, blocks: int, block_tokens: int, *, caching: bool) -> None:
        self.block_tokens = block_tokens
        self.size = blocks
        self.caching = caching
        # Block 0 is never used, as in vLLM. Blocks come into being when first taken: a pool must cost nothing to make.
        self._blocks = [Block(0)]
        self._released: OrderedDict[int, None] = OrderedDict()
        self._cached: dict[int, dict[int, None]] = {}

    @property
    def free(self) -> int:
        """How many blocks no request uses."""
        return len(self._released) + self.size - (len(self._blocks) - 1)

    @property
    def usage(self) -> float:
        """The share of blocks that requests use, 0 to 1."""
        return 1.0 - self.free / self.size

    def hit(self, keys: list[int]) -> list[Block]:
        """The cached blocks of the longest prefix of `keys`; they are not taken yet."""
        found = []
        for key in keys:
            copies = self._cached.get(key)
            if not copies:
                break
            found.append(self._blocks[next(iter(copies))])
        return found

    def take(self, hits: list[Block], fresh: int, events: list[Event]) -> list[Block]:
        """Take cached blocks and `fresh` empty ones for a request; evictions are appended to `events`.

        Raises:
            OutOfBlocksError: nothing was taken.
        """
        idle_hits = sum(1 for block in hits if block.users == 0)
        if fresh + idle_hits > self.free:
            raise OutOfBlocksError
        for block in hits:
            if block.users == 0:
                del self._released[block.number]
            block.users += 1
        taken = []
        for _ in range(fresh):
            block = self._unused(events)
            block.users = 1
            taken.append(block)
        return taken

    def _unused(self, events: list[Event]) -> Block:
        """A block without content: a new one while there are any, else the least recently used."""
        if len(self._blocks) <= self.size:
            self._blocks.append(Block(len(self._blocks)))
            return self._blocks[-1]
        number, _ = self._released.popitem(last=False)
        if self._blocks[number].key is not None:
            self._evict(self._blocks[number], events)
        return self._blocks[number]

    def _evict(self, block: Block, events: list[Event]) -> None:
        assert block.key is not None
        copies = self._cached[block.key]
        del copies[block.number]
        if not copies:
            del self._cached[block.key]
        events.append({"type": "BlockRemoved", "block_hashes": [block.key], "medium": "GPU", "group_idx": 0})
        block.key = block.content = None

    def store(self, blocks: list[Block], keys: list[int]) -> None:
        """Make filled blocks findable by their keys."""
        for block, key in zip(blocks, keys, strict=True):
            block.key = key
            self._cached.setdefault(key, {})[block.number] = None

    def release(self, blocks: list[Block]) -> None:
        """Give a request's blocks back, leaf first, so that leaves are evicted before roots."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self._released[block.number] = None

    def clear(self) -> bool:
        """Forget all cached blocks; False, without effect, while any is in use."""
        if self.free != self.size:
            return False
        for block in self._blocks:
            block.key = block.content = None
        self._cached.clear()
        return True


def stored_event(
    chain_part: Chain,
    parent: int | None,
    tokens: bytes,
    block_tokens: int,
    *,
    lora: tuple[int, str] | None,
    session_id: str | None,
) -> Event:
    """A BlockStored event for consecutive blocks, in vLLM 0.32's form: a map; fields at their default are missing."""
    event: Event = {
        "type": "BlockStored",
        "block_hashes": chain_part.keys,
        "parent_block_hash": parent,
        "token_ids": token_ids(tokens),
        "block_size": block_tokens,
        "lora_id": lora[0] if lora else None,
        "medium": "GPU",
        "lora_name": lora[1] if lora else None,
        "extra_keys": chain_part.extra_keys,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    if session_id is not None:
        event["session_id"] = session_id
    return event


@dataclass(slots=True)
class Lease:
    """Prefill's promise to keep the blocks of a request until they are pulled or the time is over."""

    request_id: str
    blocks: list[Block]
    held: list[Content]
    expires_s: float


@dataclass(slots=True)
class Leases:
    """The leases of one rank. One that is over stays readable for a while, as memory does."""

    active: dict[str, Lease] = field(default_factory=dict)
    over: OrderedDict[str, Lease] = field(default_factory=OrderedDict)
    kept_over: int = 1000

    def grant(self, lease: Lease) -> None:
        """Add one."""
        self.active[lease.request_id] = lease

    def find(self, request_id: str) -> Lease | None:
        """An active lease or one that is over."""
        return self.active.get(request_id) or self.over.get(request_id)

    def end(self, request_id: str) -> Lease | None:
        """End an active lease; None when there is none of that id."""
        lease = self.active.pop(request_id, None)
        if lease is not None:
            self.over[request_id] = lease
            while len(self.over) > self.kept_over:
                self.over.popitem(last=False)
        return lease

    def expired(self, now_s: float) -> list[Lease]:
        """End and return the leases whose time is over."""
        late = [lease.request_id for lease in self.active.values() if lease.expires_s <= now_s]
        return [lease for request_id in late if (lease := self.end(request_id)) is not None]

    def extend(self, request_id: str, expires_s: float) -> None:
        """A heartbeat: keep at least until then."""
        lease = self.active.get(request_id)
        if lease is not None:
            lease.expires_s = max(lease.expires_s, expires_s)
