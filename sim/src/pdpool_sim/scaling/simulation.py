"""One day under one scaling rule; and the cheapest plan that knew the day beforehand.

Boundary: from a day, a rule and a seed to figures. Replicas are the fluid's; what a rule reads is a scrape old, may be
noisy, and may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from pdpool_sim.scaling.days import SLOT_S
from pdpool_sim.scaling.fluid import Flows, Fluid
from pdpool_sim.scaling.replicas import Replicas
from pdpool_sim.scaling.scaler import Bounds, Rates, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdpool_sim.hardware import EngineShape
    from pdpool_sim.run import Slo
    from pdpool_sim.scaling.days import Day, Slot
    from pdpool_sim.scaling.scaler import Scaler

LEAST: Final = 1
MOST: Final = 40
DRAIN_S: Final = 20.0
GOOD: Final = 0.95
"""Share of a minute's requests inside the SLO below which the minute counts as trouble."""
_MINUTE_S: Final = 60


@dataclass(frozen=True, slots=True)
class DayFigures:
    """What a day comes to."""

    attainment: float
    """Share of requests inside the SLO."""
    gpu_hours: float
    changes: int
    """Changes of a size, both roles."""
    recovery_s: float
    """Mean length of troubles: minutes in a row with fewer than 95 % inside the SLO."""
    most_size: int
    """Largest total that was asked for."""


def rates(prefill: EngineShape, decode: EngineShape, slot: Slot, slo: Slo) -> Rates:
    """What one replica of each role can do with prompts like a slot's."""
    context = slot.prompt_tokens + slot.output_tokens / 2
    batch = min(float(decode.max_seqs), decode.kv_tokens / context)
    while batch > 1 and decode.costs.step_s(round(batch), batch * context, round(batch * context)) > slo.itl_s:
        batch *= 0.95
    step_s = decode.costs.step_s(round(batch), batch * context, round(batch * context))
    return Rates(
        prefill_tokens_s=slot.prompt_tokens / prefill.costs.prefill_s(round(slot.prompt_tokens), 0) * 0.9,
        decode_tokens_s=batch / step_s * 0.9,
        kv_tokens=decode.kv_tokens,
        context_tokens=32_768,
        max_seqs=round(batch),
    )


@dataclass(slots=True)
class Site:
    """What a day is run on."""

    prefill: EngineShape
    decode: EngineShape
    slo: Slo

    def bounds(self, day: Day) -> Bounds:
        """For every rule alike; speeds as profiled with the day's first prompts."""
        return Bounds(LEAST, MOST, self.slo, rates(self.prefill, self.decode, day.slots[0], self.slo))

    def run(self, day: Day, make: Callable[[Bounds], Scaler], seed: int = 0) -> DayFigures:
        """One day under one rule."""
        bounds = self.bounds(day)
        scaler = make(bounds)
        rng = Random(f"{seed} {day.name}")  # noqa: S311 - reproducible by its seed
        prefill, decode = self.begin(day, bounds)
        account = Account()
        fluid = Fluid(self.prefill, self.decode, self.slo, day.spread)
        flows, most = Flows(), 0
        for second in range(len(day.slots) * SLOT_S):
            slot = day.slots[second // SLOT_S]
            now = float(second)
            if second and second % scaler.interval_s == 0:
                told = _told(day, flows, now, rng)
                seen = Seen(now, prefill, decode, told, slot.prompt_tokens, slot.output_tokens)
                for replicas, size in zip((prefill, decode), scaler.sizes(seen), strict=True):
                    replicas.resize(min(max(size, bounds.least), bounds.most), now)
                most = max(most, prefill.wanted + decode.wanted)
            flows = fluid.second(slot, prefill.second(now), decode.second(now))
            account.add(flows)
        return account.figures(prefill, decode, most)

    def follow(self, day: Day, plan: Sequence[tuple[int, int]]) -> DayFigures:
        """One day under sizes that are ready when the plan says so; starting costs as it does for everybody."""
        account, fluid = Account(), Fluid(self.prefill, self.decode, self.slo, day.spread)
        spent, before = 0.0, plan[0]
        changes = 0
        for index, (slot, sizes) in enumerate(zip(day.slots, plan, strict=True)):
            del index
            changes += sum(1 for new, old in zip(sizes, before, strict=True) if new != old)
            spent += sum(sizes) * SLOT_S
            spent += sum(max(0, new - old) * day.start_s for new, old in zip(sizes, before, strict=True))
            before = sizes
            for _ in range(SLOT_S):
                account.add(fluid.second(slot, *sizes))
        found = account.figures(None, None, max(map(sum, plan)))
        return replace(found, gpu_hours=spent / 3600, changes=changes)

    def begin(self, day: Day, bounds: Bounds) -> tuple[Replicas, Replicas]:
        """Both roles as large as the day's first load needs at 70 %, and one more."""
        first = day.slots[0]
        can = bounds.rates
        sizes = (
            first.rate * first.prompt_tokens / can.prefill_tokens_s,
            first.rate * first.output_tokens / can.decode_tokens_s,
        )
        made = []
        for role, size in zip(("prefill", "decode"), sizes, strict=True):
            replicas = Replicas(day.start_s, day.schedulable.get(role), DRAIN_S)
            replicas.begin(max(bounds.least, min(bounds.most, round(size / 0.7) + 1, day.schedulable.get(role, MOST))))
            made.append(replicas)
        return made[0], made[1]


class Account:
    """Sums of a day."""

    def __init__(self) -> None:
        self._arrived = self._met = 0.0
        self._minute = [0.0, 0.0]
        self._seconds = 0
        self._troubles: list[int] = []
        self._in_trouble = 0

    def add(self, flows: Flows) -> None:
        """One second."""
        self._arrived += flows.arrived
        self._met += flows.met
        self._minute[0] += flows.arrived
        self._minute[1] += flows.met
        self._seconds += 1
        if self._seconds % _MINUTE_S == 0:
            arrived, met = self._minute
            self._minute = [0.0, 0.0]
            if met < GOOD * arrived:
                self._in_trouble += _MINUTE_S
            elif self._in_trouble:
                self._troubles.append(self._in_trouble)
                self._in_trouble = 0

    def figures(self, prefill: Replicas | None, decode: Replicas | None, most: int) -> DayFigures:
        """What it came to."""
        troubles = [*self._troubles, self._in_trouble] if self._in_trouble else self._troubles
        roles = [each for each in (prefill, decode) if each is not None]
        return DayFigures(
            attainment=self._met / self._arrived if self._arrived else 1.0,
            gpu_hours=sum(each.spent_s for each in roles) / 3600,
            changes=sum(each.changes for each in roles),
            recovery_s=sum(troubles) / len(troubles) if troubles else 0.0,
            most_size=most,
        )


def _told(day: Day, flows: Flows, now: float, rng: Random) -> Flows | None:
    """What a scrape tells of the second before."""
    if day.lost and rng.random() < day.lost:
        return None
    if day.blackout is not None and day.blackout[0] <= now < day.blackout[1]:
        return None
    if not day.metric_noise:
        return flows
    low, high = 1 - day.metric_noise, 1 + day.metric_noise
    return replace(
        flows,
        ttft_s=flows.ttft_s * rng.uniform(low, high),
        itl_s=flows.itl_s * rng.uniform(low, high),
        prefill_waiting=flows.prefill_waiting * rng.uniform(low, high),
        decode_running=flows.decode_running * rng.uniform(low, high),
        kv_usage=min(1.0, flows.kv_usage * rng.uniform(low, high)),
        prompt_rate=flows.prompt_rate * rng.uniform(low, high),
        output_rate=flows.output_rate * rng.uniform(low, high),
        arrived=flows.arrived * rng.uniform(low, high),
    )
