"""Prompts as runs of pieces, and the ids of the blocks that they fill.

Boundary: identity of content, no text. A piece is a name and a length; two prompts share a block exactly when all
pieces up to the block's end agree, as chained block hashes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from random import Random

    Piece = tuple[Hashable, int]


class Blocks:
    """Gives the same id to the same content behind the same prefix, and a new one to anything else."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._ids: dict[Hashable, int] = {}

    def ids(self, pieces: Iterable[Piece]) -> tuple[int, ...]:
        """Ids of the full blocks of a prompt."""
        found: list[int] = []
        parent, room = -1, self.block_tokens
        content: list[Hashable] = []
        for name, length in pieces:
            done = 0
            while length - done >= room:
                content.append((name, done, room))
                parent = self._ids.setdefault((parent, *content), len(self._ids))
                found.append(parent)
                done += room
                content, room = [], self.block_tokens
            if length > done:
                content.append((name, done, length - done))
                room -= length - done
        return tuple(found)


def tokens(rng: Random, median: float, spread: float, *, least: int = 8, most: int = 60_000) -> int:
    """A length from a log-normal distribution."""
    return max(least, min(most, round(rng.lognormvariate(0, spread) * median)))


def total(pieces: Iterable[Piece]) -> int:
    """Tokens of a prompt."""
    return sum(length for _, length in pieces)
