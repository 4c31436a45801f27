"""Stabilisation windows and steps: when what is asked for is done, and how much of it at once.

Boundary: pure. A role grows to the least that was asked for during its window, and shrinks to the most; a window that
is not yet full of fresh readings changes nothing. Single lost readings do not begin a window anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdpool_operator.autoscale.memory import RISING, RoleMemory

if TYPE_CHECKING:
    from pdpool_operator.autoscale.limits import RoleLimits

GAP_INTERVALS: Final = 4
"""So many intervals without a known signal begin the windows anew; fewer are lost scrapes."""
_EXACT_S: Final = 1e-6


def noted(
    memory: RoleMemory, limits: RoleLimits, now: float, interval_s: float, *, asked: int | None, need: float
) -> RoleMemory:
    """The memory with one more reading; `asked` None: no signal is known."""
    kept = memory
    if memory.asked and now - memory.asked[-1][0] > GAP_INTERVALS * interval_s + _EXACT_S:
        kept = replace(memory, asked=(), since=None, needs=())
    if asked is None:
        return kept
    oldest = now - max(limits.up_window_s, limits.down_window_s) - _EXACT_S
    return replace(
        with_need(kept, need, now),
        asked=(*(each for each in kept.asked if each[0] >= oldest), (now, asked)),
        since=now if kept.since is None else kept.since,
    )


def with_need(memory: RoleMemory, need: float, now: float) -> RoleMemory:
    """The memory with one more need."""
    return replace(memory, needs=(*memory.needs, (now, need))[-RISING:])


def settled(asked: int, current: int, memory: RoleMemory, limits: RoleLimits, now: float) -> int:
    """The size that windows and steps allow; `memory` holds this reading too, when it is known."""
    if not memory.asked or memory.asked[-1][0] != now:
        return current
    if asked > current and _is_full(memory, limits.up_window_s, now):
        least = min(_within(memory, limits.up_window_s, now))
        return min(max(current, least), current + (limits.up_step or asked))
    if asked < current and _is_full(memory, limits.down_window_s, now):
        most = max(_within(memory, limits.down_window_s, now))
        return max(min(current, most), current - (limits.down_step or current))
    return current


def _is_full(memory: RoleMemory, window_s: float, now: float) -> bool:
    return memory.since is not None and now - memory.since >= window_s - _EXACT_S


def _within(memory: RoleMemory, window_s: float, now: float) -> list[int]:
    return [size for at, size in memory.asked if at >= now - window_s - _EXACT_S]
