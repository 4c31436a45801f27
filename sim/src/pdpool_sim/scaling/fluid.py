"""A pool as a fluid, second by second: work flows in, engines take it off, what stays is the queue.

Boundary: sizes and load in, queues and shares of requests inside the SLO out. Between two seconds only sums change;
chance inside a second is added as the waiting time of M/G/n (Sakasegawa 1977, with the Pollaczek-Khinchine factor),
and prompt lengths as quantiles of a log-normal distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pdpool_sim.hardware import EngineShape
    from pdpool_sim.run import Slo
    from pdpool_sim.scaling.days import Slot

_POINTS: Final = 16
_QUANTILES: Final = tuple(NormalDist().inv_cdf((n + 0.5) / _POINTS) for n in range(_POINTS))
_FIRST_STEPS: Final = 1.5
"""Decode steps until a pulled prompt's first token, on average: the running one, half of it, and its own."""


@dataclass(slots=True)
class Flows:
    """What a second of the fluid shows."""

    arrived: float = 0.0
    met: float = 0.0
    """Requests of this second that will be inside the SLO."""
    ttft_s: float = 0.0
    """At the 95th percentile."""
    itl_s: float = 0.0
    prefill_waiting: float = 0.0
    prefill_busy: float = 0.0
    """Share of prefill engines' time, 0 to 1."""
    decode_running: float = 0.0
    decode_waiting: float = 0.0
    kv_usage: float = 0.0
    prompt_rate: float = 0.0
    output_rate: float = 0.0


class Work:
    """Seconds that prompts of one slot take on one engine: quantiles, their mean and their second moment."""

    def __init__(self, slot: Slot, spread: float, shape: EngineShape) -> None:
        scale = slot.prompt_tokens * math.exp(-spread * spread / 2)
        lengths = [max(1, round(scale * math.exp(spread * each))) for each in _QUANTILES]
        self.times_s: Final = [shape.costs.prefill_s(length, 0) for length in lengths]
        self.mean_s: Final = sum(self.times_s) / _POINTS
        self.factor: Final = sum(each * each for each in self.times_s) / _POINTS / (2 * self.mean_s * self.mean_s)
        """(1 + squared coefficient of variation) / 2."""


class Fluid:
    """One pool."""

    def __init__(self, prefill: EngineShape, decode: EngineShape, slo: Slo, spread: float) -> None:
        self._prefill, self._decode, self._slo, self._spread = prefill, decode, slo, spread
        self.waiting = 0.0
        """Requests that no prefill engine has begun."""
        self.running = 0.0
        """Requests at decode, those that wait for room there included."""
        self._work: dict[Slot, Work] = {}

    def work(self, slot: Slot) -> Work:
        """What the prompts of a slot take."""
        found = self._work.get(slot)
        if found is None:
            if len(self._work) > 8:  # noqa: PLR2004 - slots come in order
                self._work.clear()
            found = self._work[slot] = Work(slot, self._spread, self._prefill)
        return found

    def second(self, slot: Slot, prefills: int, decodes: int) -> Flows:
        """One second with so many ready engines."""
        work = self.work(slot)
        arrived = slot.rate
        capacity = prefills / work.mean_s if work.mean_s else 0.0
        ahead_s = self.waiting / capacity if capacity else math.inf
        through = min(self.waiting + arrived, capacity)
        self.waiting += arrived - through
        busy = min(1.0, through / capacity) if capacity else 1.0
        seats = self._seats(slot) * decodes
        active = min(self.running, seats)
        itl_s = self._step_s(active / decodes, slot) if decodes else math.inf
        tokens = active / itl_s if decodes else 0.0
        ended = min(self.running, tokens / max(1.0, slot.output_tokens))
        held = max(0.0, self.running - seats)
        decode_wait_s = held / (seats / (itl_s * slot.output_tokens)) if seats else math.inf
        self.running += through - ended
        chance, mean_wait_s = _waiting(busy, prefills, work)
        base_s = ahead_s + decode_wait_s + _FIRST_STEPS * (itl_s if decodes else math.inf)
        inside = _inside(self._slo.ttft_s - base_s, work, chance, mean_wait_s)
        meets = inside if itl_s <= self._slo.itl_s else 0.0
        ttft_s = base_s + work.times_s[int(0.95 * _POINTS)] + (mean_wait_s * 3 * chance if chance else 0.0)
        return Flows(
            arrived=arrived,
            met=arrived * meets,
            ttft_s=min(ttft_s, 3600.0),
            itl_s=min(itl_s, 10.0),
            prefill_waiting=self.waiting + chance * mean_wait_s * arrived,
            prefill_busy=busy,
            decode_running=active,
            decode_waiting=held,
            kv_usage=min(1.0, active / seats) if seats else 1.0,
            prompt_rate=arrived * slot.prompt_tokens,
            output_rate=tokens,
        )

    def _seats(self, slot: Slot) -> float:
        context = slot.prompt_tokens + slot.output_tokens / 2
        return min(float(self._decode.max_seqs), self._decode.kv_tokens / max(1.0, context))

    def _step_s(self, batch: float, slot: Slot) -> float:
        tokens = batch * (slot.prompt_tokens + slot.output_tokens / 2)
        return self._decode.costs.step_s(round(batch), tokens, round(tokens))


def _waiting(busy: float, engines: int, work: Work) -> tuple[float, float]:
    """Chance that a request waits, and the mean wait of those that do."""
    load = min(busy, 0.995)
    if engines < 1:
        return 0.0, 0.0
    chance = load ** (math.sqrt(2 * (engines + 1)) - 1)
    return chance, work.mean_s * work.factor / (engines * (1 - load))


def _inside(left_s: float, work: Work, chance: float, mean_wait_s: float) -> float:
    """Share of prompts that are computed within so many seconds."""
    inside = 0.0
    for own_s in work.times_s:
        spare_s = left_s - own_s
        if spare_s >= 0:
            late = chance * math.exp(-spare_s / mean_wait_s) if mean_wait_s > 0 else 0.0
            inside += 1 - late
    return inside / _POINTS
