"""From an engine's events to the index of blocks.

Boundary: pure; one function, one holder at a time. An engine's names of blocks are only names: the keys are computed
here from the tokens, so that engines with other hash functions or seeds compare alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api.engines.vllm.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    adapter_and_extras,
    packed_tokens,
    tells_prefixes,
)
from pdpool_router.kv.blocks import KEY_MASK, block_keys, block_keys_with_extras, token_root
from pdpool_router.kv.index import handle_of

if TYPE_CHECKING:
    from pdpool_api.engines.vllm.kv_events import Batch
    from pdpool_router.kv.index import Holder
    from pdpool_router.kv.knowledge import Prefixes


def apply(known: Prefixes, holder: Holder, batch: Batch) -> int:
    """Takes a batch into account; how many blocks could not be placed, since what is before them is not known."""
    orphans = 0
    for event in batch.events:
        kind = type(event)
        if kind is BlockRemoved:
            assert isinstance(event, BlockRemoved)
            if not holder.other_groups or event.group_idx not in holder.other_groups:
                known.blocks.remove(holder, _handles(event.block_hashes))
        elif kind is BlockStored:
            assert isinstance(event, BlockStored)
            orphans += _store(known, holder, event)
        elif kind is AllBlocksCleared:
            known.blocks.clear(holder)
    return orphans


def _store(known: Prefixes, holder: Holder, event: BlockStored) -> int:
    if not tells_prefixes(event):
        holder.other_groups.add(event.group_idx)
        return 0
    tokens = packed_tokens(event)
    if tokens is None:
        return len(event.block_hashes)
    adapter, extras = adapter_and_extras(event)
    if event.parent_block_hash is None:
        parent: int | None = token_root(adapter)
    else:
        parent = holder.blocks.get(handle_of(event.parent_block_hash))
    if parent is None:
        return len(event.block_hashes)
    if holder.block_tokens != event.block_size:
        known.sees_block_size(holder, event.block_size)
    keys = (
        block_keys(tokens, event.block_size, parent)
        if extras is None
        else block_keys_with_extras(tokens, event.block_size, parent, extras)
    )
    known.blocks.store(holder, _handles(event.block_hashes), keys)
    return 0


def _handles(names: list[int | bytes]) -> list[int]:
    try:
        return [name & KEY_MASK for name in names]  # type: ignore[operator]
    except TypeError:
        return [handle_of(name) for name in names]
