"""Which holder has which blocks: kept by stores and removals, asked for the longest prefix of a chain of keys.

Boundary: pure bookkeeping, no clock; where events come from is the feeds' business. A holder is one incarnation of an
endpoint (a data-parallel rank of it); it dies with what it held, and whatever is said of it later is without effect.

Layout, for memory and speed in CPython: one dict from a block's key to a bit mask of holders (masks are shared
objects), and one dict per holder from the engine's own name of a block (its handle) to the key; copies beyond the
first stand apart. Both are CPython's open-addressed tables. Bit 0 of a mask says that the block was asked for since
the bound last passed by: such a block gets a second chance when blocks must be forgotten (the CLOCK rule).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from pdpool_router.kv.blocks import KEY_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_USED: Final = 1
_EVICT_AT_ONCE: Final = 256
_SWEEP_AT_ONCE: Final = 4096
_MOST_SHARED_MASKS: Final = 65_536


class Holder:
    """One life of an engine's cache; made by `BlockIndex.add`."""

    __slots__ = ("bit", "block_tokens", "blocks", "copies", "other_groups", "rank", "uid")

    def __init__(self, uid: str, rank: int, bit: int) -> None:
        self.uid: Final = uid
        self.rank: Final = rank
        self.bit = bit
        """Its mask; 0: gone."""
        self.blocks: dict[int, int] = {}
        """handle → key."""
        self.copies: dict[int, int] = {}
        """handle → copies, where there is more than one."""
        self.other_groups: set[int | None] = set()
        """Groups of its cache whose blocks say nothing of prefixes."""
        self.block_tokens = 0
        """Block size as its events say; 0: not known yet."""


class BlockIndex:
    """Blocks of all holders."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        """Most blocks over all holders together."""
        self.size = 0
        """Blocks over all holders together."""
        self.changes = 0
        """Grows whenever a question may be answered differently."""
        self.evictions = 0
        """Blocks forgotten because of the bound."""
        self._masks: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._holders: list[Holder | None] = [None]  # by the number of the bit; bit 0 is `_USED`
        self._free: list[int] = []
        self._garbage: list[tuple[int, Iterator[int]]] = []
        self._alive = 0

    # --- holders -------------------------------------------------------------------------------------------------
    def add(self, uid: str, rank: int = 0) -> Holder:
        """A new, empty holder."""
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._holders)
            self._holders.append(None)
        holder = Holder(uid, rank, 1 << number)
        self._holders[number] = holder
        self._alive |= holder.bit
        return holder

    def drop(self, holder: Holder) -> None:
        """A holder is gone with all that it held; at once, whatever it held."""
        if not holder.bit:
            return
        self.changes += 1
        number = holder.bit.bit_length() - 1
        self._alive &= ~holder.bit
        self._holders[number] = None
        self.size -= len(holder.blocks)
        # Its bit still stands in masks. It is used again only when `sweep` has cleared it there.
        self._garbage.append((holder.bit, iter(holder.blocks.values())))
        holder.bit = 0
        holder.blocks = {}
        holder.copies = {}

    def clear(self, holder: Holder) -> None:
        """A holder lost all blocks and lives on."""
        if not holder.bit:
            return
        self.changes += 1
        number = holder.bit.bit_length() - 1
        old = holder.bit
        self.size -= len(holder.blocks)
        self._alive &= ~old
        self._holders[number] = None
        self._garbage.append((old, iter(holder.blocks.values())))
        holder.blocks = {}
        holder.copies = {}
        fresh = self.add(holder.uid, holder.rank)
        holder.bit = fresh.bit
        self._holders[fresh.bit.bit_length() - 1] = holder

    def sweep(self) -> bool:
        """Clears some traces of holders that are gone; False: nothing is left to do. Call it now and then."""
        if not self._garbage:
            return False
        bit, keys = self._garbage[-1]
        done = 0
        for key in islice(keys, _SWEEP_AT_ONCE):
            self._unset(key, bit)
            done += 1
        if done < _SWEEP_AT_ONCE:
            self._garbage.pop()
            self._free.append(bit.bit_length() - 1)
        return True

    # --- what happens to blocks ------------------------------------------------------------------------------------
    def store(self, holder: Holder, handles: Sequence[int], keys: Sequence[int]) -> None:
        """Blocks are there; one that was there already is there once more."""
        bit = holder.bit
        if not bit:
            return
        self.changes += 1
        blocks = holder.blocks
        masks = self._masks
        before = len(blocks)
        for handle, key in zip(handles, keys, strict=False):
            if handle in blocks:
                holder.copies[handle] = holder.copies.get(handle, 1) + 1
                continue
            blocks[handle] = key
            mask = masks.get(key)
            if mask is None:
                masks[key] = bit
            elif not mask & bit:
                masks[key] = self._mask(mask | bit)
        self.size += len(blocks) - before
        if self.size > self.max_blocks:
            self._evict()

    def remove(self, holder: Holder, handles: Iterable[int]) -> None:
        """One copy of each block is gone."""
        bit = holder.bit
        if not bit:
            return
        self.changes += 1
        blocks = holder.blocks
        copies = holder.copies
        masks = self._masks
        for handle in handles:
            if copies and handle in copies:
                left = copies[handle] - 1
                if left > 1:
                    copies[handle] = left
                else:
                    del copies[handle]
                continue
            key = blocks.pop(handle, None)
            if key is None:
                continue
            self.size -= 1
            mask = masks.get(key, 0)
            if not mask & bit:
                continue  # two names for one block: the engine is odd, and we know less
            mask &= ~bit
            if mask > _USED:
                masks[key] = self._mask(mask)
            else:
                del masks[key]

    # --- questions -------------------------------------------------------------------------------------------------
    def match(self, keys: Iterable[int]) -> list[tuple[int, int]]:
        """How many leading keys each holder has: (count, mask of the holders with exactly it); counts descend.

        Holders that have none are left out. Blocks that were asked for are kept longer.
        """
        get = self._masks.get
        current = self._alive | _USED
        found: list[tuple[int, int]] = []
        depth = 0
        for key in keys:
            held = get(key)
            if held is None:
                break
            both = current & held
            if both != current:
                if not held & _USED:
                    self._masks[key] = self._mask(held | _USED)
                    both |= _USED
                if both != current:
                    if depth:
                        found.append((depth, current & ~both))
                    current = both
                    if current == _USED:
                        break
            depth += 1
        if depth and current != _USED:
            found.append((depth, current & ~_USED))
        found.reverse()
        return found

    def holders(self, mask: int) -> Iterator[Holder]:
        """The holders of a mask."""
        while mask:
            low = mask & -mask
            holder = self._holders[low.bit_length() - 1]
            if holder is not None:
                yield holder
            mask ^= low

    def all(self) -> list[Holder]:
        """Every holder."""
        return [holder for holder in self._holders if holder is not None]

    # --- inside ----------------------------------------------------------------------------------------------------
    def _mask(self, mask: int) -> int:
        """The same number, as an object that all blocks with that mask share."""
        shared = self._shared.setdefault(mask, mask)
        if len(self._shared) > _MOST_SHARED_MASKS:
            self._shared.clear()
        return shared

    def _unset(self, key: int, bit: int) -> None:
        mask = self._masks.get(key, 0)
        if mask & bit:
            mask &= ~bit
            if mask > _USED:
                self._masks[key] = self._mask(mask)
            else:
                del self._masks[key]

    def _evict(self) -> None:
        """Forgets blocks of the largest holder, those not asked for since they last passed by, oldest first."""
        while self.size > self.max_blocks:
            fullest = max((h for h in self._holders if h is not None), key=lambda each: len(each.blocks))
            wanted = min(_EVICT_AT_ONCE, max(1, self.max_blocks // 16))
            for handle, key in list(islice(fullest.blocks.items(), wanted)):
                mask = self._masks.get(key, 0)
                if mask & _USED:
                    self._masks[key] = self._mask(mask & ~_USED)
                    fullest.blocks[handle] = fullest.blocks.pop(handle)
                    continue
                del fullest.blocks[handle]
                fullest.copies.pop(handle, None)
                self._unset(key, fullest.bit)
                self.size -= 1
                self.evictions += 1


def handle_of(name: int | bytes) -> int:
    """An engine's name of a block as a small number: 60 bits of it."""
    if isinstance(name, bytes):
        name = int.from_bytes(name[-8:], "big")
    return name & KEY_MASK
