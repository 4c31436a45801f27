"""Which token blocks a text became: learned from prompts whose token ids an engine told.

Boundary: pure; one map per block size. A text's prefix is tokenised into a prefix of its tokens (up to two at the
border), but nobody tells where in the tokens a chunk of text ends. That is estimated: in proportion between points
that are known, which are the ends of whole prompts and the places where two prompts part. Estimates are put right
whenever another prompt shows that fewer blocks agree.

Two generations bound it: what is found in the old one moves to the young one, and when the young one is full it
becomes the old one. So what is used stays, and there is no list to keep in order.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pdpool_router.kv.blocks import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_router.records import Prompt

_BLOCKS_PER_NODE: Final = 4


class _Segment:
    """The keys that one prompt added to the chain of its parent."""

    __slots__ = ("base", "generation", "keys", "parent")

    def __init__(self, parent: _Segment | None, base: int, keys: array[int]) -> None:
        self.parent = parent
        self.base = base
        """Keys before these: the first ones of the parent's chain."""
        self.keys = keys
        self.generation = -1


class Node(msgspec.Struct, frozen=True, gc=False):
    """Where in the tokens a piece of text ends. A struct: there is one for each chunk of every text that is known."""

    segment: _Segment
    tokens: int

    def chain(self, blocks: int) -> list[int]:
        """The first keys of the chain that this text is on."""
        parts: list[array[int]] = []
        segment: _Segment | None = self.segment
        end = blocks
        while segment is not None:
            if end > segment.base:
                parts.append(segment.keys[: end - segment.base])
                end = segment.base
            segment = segment.parent
        chain: list[int] = []
        for part in reversed(parts):
            chain += part
        return chain

    @property
    def known_blocks(self) -> int:
        """Keys of the whole chain, beyond the end of this text too."""
        return self.segment.base + len(self.segment.keys)


class Found(NamedTuple):
    """The longest known prefix of a prompt."""

    node: Node
    chunks: int
    """Whole chunks of it that are known."""
    whole: bool
    """The very same prompt was seen."""


class _Anchor(NamedTuple):
    """A point known both in a text and in its tokens."""

    at_bytes: int
    at_tokens: float


class TextMap:
    """Texts to chains of token blocks, for one block size."""

    def __init__(self, block_tokens: int, max_blocks: int) -> None:
        self.block_tokens: Final = block_tokens
        self.max_blocks = max_blocks
        """Most keys of token blocks that are kept; texts are bounded by a quarter of it."""
        self._young: dict[int, Node] = {}
        self._old: dict[int, Node] = {}
        self._generation = 0
        self._young_blocks = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, prompt: Prompt) -> Found | None:
        """The longest known prefix of a prompt; None where nothing of it is known."""
        keys = prompt.keys
        node = self._get(prompt.whole)
        if node is not None:
            return Found(node, len(keys), whole=True)
        # The first chunk is kept young with the deepest, so that it tells at once whether there is anything.
        if not keys or self._get(keys[0]) is None:
            return None
        for chunks in range(len(keys), 0, -1):
            node = self._get(keys[chunks - 1])
            if node is not None:
                return Found(node, chunks, whole=False)
        return None

    def learn(self, prompt: Prompt, keys: Sequence[int], tokens: int) -> None:
        """A prompt became so many tokens, whose whole blocks have these keys."""
        found = self.find(prompt)
        if found is None:
            self._add(prompt, self._segment(None, 0, keys), 0, tokens, _Anchor(0, 0.0))
            return
        known = found.node.chain(found.node.known_blocks)
        common = common_prefix(known, keys)
        self._correct(prompt, found, common)
        if found.whole and common == len(keys) == found.node.tokens // self.block_tokens:
            return
        segment = self._segment(found.node.segment if common else None, common, keys)
        # Where the two part, in text and in tokens: somewhere in the next chunk and in the next block.
        parted = _Anchor(
            min(found.chunks * CHUNK_BYTES + CHUNK_BYTES // 2, prompt.text_bytes),
            min((common + 0.5) * self.block_tokens, float(tokens)),
        )
        self._add(prompt, segment, found.chunks, tokens, parted)

    def _segment(self, parent: _Segment | None, base: int, keys: Sequence[int]) -> _Segment:
        if parent is None:
            return _Segment(None, 0, array("Q", keys))
        return _Segment(parent, base, array("Q", keys[base:]))

    def _add(self, prompt: Prompt, segment: _Segment, known_chunks: int, tokens: int, start: _Anchor) -> None:
        """Nodes for the chunks of a prompt that are new, in proportion from a point on, and one for its whole."""
        span = prompt.text_bytes - start.at_bytes
        per_byte = (tokens - start.at_tokens) / span if span > 0 else 0.0
        for number in range(known_chunks, len(prompt.keys)):
            end = (number + 1) * CHUNK_BYTES
            at = start.at_tokens + max(0, end - start.at_bytes) * per_byte
            self._put(prompt.keys[number], Node(segment, min(int(at), tokens)))
        self._put(prompt.whole, Node(segment, tokens))

    def _correct(self, prompt: Prompt, found: Found, common: int) -> None:
        """No shared text reaches beyond the blocks that two prompts share."""
        most = (common + 1) * self.block_tokens - 1
        for chunks in range(found.chunks, 0, -1):
            key = prompt.keys[chunks - 1]
            node = self._get(key)
            if node is None:
                continue
            if node.tokens <= most:
                return
            self._put(key, Node(node.segment, most))

    def _get(self, key: int) -> Node | None:
        node = self._young.get(key)
        if node is None:
            node = self._old.get(key)
            if node is not None:
                self._put(key, node)
        return node

    def _put(self, key: int, node: Node) -> None:
        if len(self._young) >= self.max_blocks // (2 * _BLOCKS_PER_NODE) or self._young_blocks > self.max_blocks // 2:
            self._old, self._young = self._young, {}
            self._generation += 1
            self._young_blocks = 0
        if self._old:
            self._old.pop(key, None)
        self._young[key] = node
        if node.segment.generation != self._generation:
            self._keep(node.segment)

    def _keep(self, segment: _Segment | None) -> None:
        """A segment, and those before it, belong to the young generation."""
        while segment is not None and segment.generation != self._generation:
            segment.generation = self._generation
            self._young_blocks += len(segment.keys)
            segment = segment.parent


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading keys agree; keys are chained, so that one that agrees says it of all before it."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
