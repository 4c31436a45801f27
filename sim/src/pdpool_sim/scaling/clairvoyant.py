"""The cheapest plan that knows the day: what any rule could at best have paid for the same attainment.

Boundary: sizes for each slot of 15 s, with the same limits and the same start delay, whose seconds cost as well. A
level of replicas is kept through a valley that is shorter than a start, because stopping would cost more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdpool_sim.scaling.days import SLOT_S
from pdpool_sim.scaling.fluid import Fluid
from pdpool_sim.scaling.simulation import LEAST, MOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_sim.scaling.days import Day, Slot
    from pdpool_sim.scaling.simulation import DayFigures, Site

_SETTLE_S: Final = 30
_STEPS_PER_E: Final = 60
"""Rates are looked at in steps of 1.7 %, rounded up."""
_ROUNDS: Final = 7


def cheapest(site: Site, day: Day, attainment: float) -> DayFigures:
    """The cheapest of plans that hold each slot at one level of attainment, with at least so much over the day."""
    low, high = 0.0, 0.9999
    best = site.follow(day, plan(site, day, high))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        found = site.follow(day, plan(site, day, middle))
        if found.attainment >= attainment:
            high = middle
            best = found if found.gpu_hours < best.gpu_hours or best.attainment < attainment else best
        else:
            low = middle
    return best


def plan(site: Site, day: Day, level: float) -> list[tuple[int, int]]:
    """Sizes by slot: the fewest replicas that hold the level, bridged over short valleys."""
    needs: dict[tuple[int, float, float], tuple[int, int]] = {}
    rows: list[tuple[int, int]] = []
    before = (LEAST, LEAST)
    for slot in day.slots:
        step = math.ceil(math.log(max(slot.rate, 1e-3)) * _STEPS_PER_E)
        key = (step, slot.prompt_tokens, slot.output_tokens)
        found = needs.get(key)
        if found is None:
            found = needs[key] = _fewest(site, day, replace(slot, rate=math.exp(step / _STEPS_PER_E)), level, before)
        rows.append(found)
        before = found
    most = [day.schedulable.get(role, MOST) for role in ("prefill", "decode")]
    columns = [bridged([min(row[role], most[role]) for row in rows], int(day.start_s // SLOT_S)) for role in (0, 1)]
    return list(zip(*columns, strict=True))


def _fewest(site: Site, day: Day, slot: Slot, level: float, start: tuple[int, int]) -> tuple[int, int]:
    """The fewest replicas of each role that hold a level when the load stays as it is; searched from a near answer."""

    def holds(prefills: int, decodes: int) -> bool:
        fluid = Fluid(site.prefill, site.decode, site.slo, day.spread)
        fluid.begin(slot, slot.rate * slot.output_tokens * site.slo.itl_s * 0.5)
        flows = [fluid.second(slot, prefills, decodes) for _ in range(_SETTLE_S)][-1]
        return flows.met >= level * flows.arrived and flows.prefill_busy < 1 and flows.decode_waiting <= 1

    def search(begin: int, check: object) -> int:
        assert callable(check)
        size = begin
        if check(size):
            while size > LEAST and check(size - 1):
                size -= 1
            return size
        while size < MOST and not check(size):
            size += 1
        return size

    prefills = search(start[0], lambda size: holds(size, MOST))
    decodes = search(start[1], lambda size: holds(prefills, size))
    return prefills, decodes


def bridged(needs: Sequence[int], slots: int) -> list[int]:
    """The cheapest sizes of at least the needs, where a start costs `slots` slots more: shorter valleys are kept."""
    sizes = list(needs)
    for level in range(1, max(sizes, default=0) + 1):
        last: int | None = None
        for at, need in enumerate(needs):
            if need < level:
                continue
            if last is not None and 1 < at - last <= slots + 1:
                for between in range(last + 1, at):
                    sizes[between] = max(sizes[between], level)
            last = at
    return sizes
