"""A pool as a fluid, second by second: work flows in, engines take it off, what stays is the queue.

Boundary: sizes and load in, queues and shares of requests inside the SLO out. Between two seconds only sums change:
requests, and the work that they are (seconds of prefill, tokens and KV of decode), none of which is lost. Chance inside
a second is added as the waiting time of M/G/n (Sakasegawa 1977, with the Pollaczek-Khinchine factor), prompt lengths
as those that came, or as quantiles of a log-normal distribution.
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
_NONE: Final = 1e-9
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


LOAD_S: Final = 15.0
"""A line that chance makes grows and goes in about so long: shorter peaks of the load do not make it."""


class Work:
    """Seconds that prompts of one slot take on one engine: quantiles, their mean and their second moment."""

    def __init__(self, slot: Slot, spread: float, shape: EngineShape) -> None:
        scale = slot.prompt_tokens * math.exp(-spread * spread / 2)
        lengths = slot.lengths or [max(1, round(scale * math.exp(spread * each))) for each in _QUANTILES]
        self.times_s: Final = sorted(shape.costs.prefill_s(length, 0) for length in lengths)
        count = len(self.times_s)
        self.mean_s: Final = sum(self.times_s) / count
        self.factor: Final = sum(each * each for each in self.times_s) / count / (2 * self.mean_s * self.mean_s)
        """(1 + squared coefficient of variation) / 2."""


class Fluid:
    """One pool."""

    def __init__(self, prefill: EngineShape, decode: EngineShape, slo: Slo, spread: float) -> None:
        self._prefill, self._decode, self._slo, self._spread = prefill, decode, slo, spread
        self.waiting = 0.0
        """Requests that no prefill engine has begun."""
        self.work_s = 0.0
        """Seconds of one engine that they take."""
        self.running = 0.0
        """Requests at decode, those that wait for room there included."""
        self.left_tokens = 0.0
        """What they still have to say."""
        self.held_tokens = 0.0
        """Their KV, were there room for all."""
        self._load: float | None = None
        """Share of prefill's time that is asked for, of late."""
        self._work: dict[Slot, Work] = {}

    def begin(self, slot: Slot, running: float) -> None:
        """Begins with so many of a slot's requests at decode."""
        self.running = running
        self.left_tokens, self.held_tokens = running * slot.output_tokens, running * slot.context_tokens

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
        ahead_s = self.work_s / prefills if prefills else math.inf
        self.waiting += arrived
        self.work_s += arrived * work.mean_s
        done = min(1.0, prefills / self.work_s) if self.work_s else 1.0
        through = self.waiting * done
        busy = min(1.0, self.work_s / prefills) if prefills else 1.0
        self.waiting -= through
        self.work_s *= 1 - done
        context = self.held_tokens / self.running if self.running > _NONE else slot.context_tokens
        output = self.left_tokens / self.running if self.running > _NONE else slot.output_tokens
        seats = self._seats(context) * decodes
        active = min(self.running, seats)
        itl_s = self._step_s(active / decodes, context) if decodes else math.inf
        tokens = active / itl_s if decodes else 0.0
        ended = min(self.running, tokens / max(1.0, output))
        held = max(0.0, self.running - seats)
        decode_wait_s = held / (seats / (itl_s * max(1.0, output))) if seats else math.inf
        stay = 1 - ended / self.running if self.running > _NONE else 0.0
        self.running = self.running * stay + through
        self.left_tokens = self.left_tokens * stay + through * slot.output_tokens
        self.held_tokens = self.held_tokens * stay + through * slot.context_tokens
        self._load = busy if self._load is None else self._load + (busy - self._load) / LOAD_S
        chance, mean_wait_s = _waiting(self._load, prefills, work)
        base_s = ahead_s + decode_wait_s + _FIRST_STEPS * (itl_s if decodes else math.inf)
        inside = _inside(self._slo.ttft_s - base_s, work, chance, mean_wait_s)
        meets = inside if itl_s <= self._slo.itl_s else 0.0
        ttft_s = base_s + work.times_s[int(0.95 * len(work.times_s))] + (mean_wait_s * 3 * chance if chance else 0.0)
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

    def _seats(self, context: float) -> float:
        return min(float(self._decode.max_seqs), self._decode.kv_tokens / max(1.0, context))

    def _step_s(self, batch: float, context: float) -> float:
        tokens = batch * context
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
    return inside / len(work.times_s)
