"""Keys of prefixes: chained hashes over text in chunks, and over tokens in blocks.

Boundary: pure; from text or token ids to keys. Two prompts share a key exactly as far as they agree from their root,
so that the deepest common key tells the length of the common prefix. The root holds what makes equal text another
prompt: model or adapter, salt, tools and whatever else the engine renders before it.

XXH3 is fast and not cryptographic: whoever makes two texts collide gets a bad guess of where his own request runs
best, and nothing else; what an engine holds is decided by the engine. Keys are the same in every process, so that
several routers agree without a shared store.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from xxhash import xxh3_64_intdigest as digest

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_BYTES: Final = 256
"""Text of one key: about 64 tokens of English."""
KEYED_BYTES: Final = 1 << 22
"""So much of a text has keys, which is more than contexts hold: no body of a client may hold up all others."""
KEY_MASK: Final = (1 << 60) - 1
"""Keys have 60 bits: such a number takes 32 bytes in CPython, one of 64 bits takes 48."""
_TOKEN_BYTES: Final = 4
_encode = msgspec.msgpack.Encoder().encode


def text_root(*parts: bytes) -> int:
    """The key that a prompt's chain begins with; `parts` keep their borders."""
    key = 0
    for part in parts:
        key = digest(part, key ^ len(part))
    return key & KEY_MASK


def chunk_keys(text: bytes, root: int) -> list[int]:
    """One key for each whole chunk of a text, up to `KEYED_BYTES`, chained from the root."""
    key = root
    return [
        key := digest(text[at : at + CHUNK_BYTES], key) & KEY_MASK
        for at in range(0, min(len(text), KEYED_BYTES) - CHUNK_BYTES + 1, CHUNK_BYTES)
    ]


def whole_key(text: bytes, keys: Sequence[int], root: int) -> int:
    """The key of a whole text, with what of it has no keys; differs from that of any chunk."""
    rest = text[len(keys) * CHUNK_BYTES :]
    return digest(rest, (keys[-1] if keys else root) ^ KEY_MASK) & KEY_MASK


@lru_cache(maxsize=1024)
def token_root(adapter: str) -> int:
    """Where the token chains of an adapter begin; empty: the model itself."""
    return digest(adapter.encode(), 1) & KEY_MASK


def with_extra_keys(key: int, extra_keys: Sequence[Any]) -> int:
    """A parent's key as seen by a block with further keys of its own: a salt, or the contents of an image."""
    return digest(_encode(extra_keys), key) & KEY_MASK


def packed(ids: Sequence[int]) -> bytes | None:
    """Token ids as bytes; None where they are no tokens (negative, beyond 32 bits)."""
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError):
        return None


def block_keys(tokens: bytes, block_tokens: int, parent: int) -> list[int]:
    """One key for each whole block of packed tokens, chained from the parent's."""
    step = block_tokens * _TOKEN_BYTES
    key = parent
    return [key := digest(tokens[at : at + step], key) & KEY_MASK for at in range(0, len(tokens) - step + 1, step)]


def block_keys_with_extras(
    tokens: bytes, block_tokens: int, parent: int, extras: Sequence[Sequence[Any] | None]
) -> list[int]:
    """The same where some blocks have further keys; `extras` has one entry a block."""
    step = block_tokens * _TOKEN_BYTES
    key = parent
    keys: list[int] = []
    for at, extra in zip(range(0, len(tokens) - step + 1, step), extras, strict=False):
        if extra:
            key = with_extra_keys(key, extra)
        key = digest(tokens[at : at + step], key) & KEY_MASK
        keys.append(key)
    return keys


class TokenChain:
    """The token ids of one prompt, and their keys for whatever block size is asked."""

    __slots__ = ("_by_size", "_packed", "_root", "tokens")

    def __init__(self, ids: bytes, *, adapter: str = "", salt: str = "") -> None:
        """`ids` are packed."""
        root = token_root(adapter)
        self._root = with_extra_keys(root, [salt]) if salt else root
        self._packed = ids
        self._by_size: dict[int, list[int]] = {}
        self.tokens = len(ids) // _TOKEN_BYTES

    def keys(self, block_tokens: int) -> list[int]:
        """One key for each whole block."""
        found = self._by_size.get(block_tokens)
        if found is None:
            found = self._by_size[block_tokens] = block_keys(self._packed, block_tokens, self._root)
        return found

    def usable_blocks(self, block_tokens: int) -> int:
        """Most blocks that an engine takes from its cache: at least one token is always computed."""
        return max(0, self.tokens - 1) // block_tokens
