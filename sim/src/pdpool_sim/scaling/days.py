"""Days of load for the fluid model: requests a second, and how long their prompts and answers are.

Boundary: values made by chance from a seed. A day is a list of slots of 15 s; inside a slot nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdpool_sim.workload import Call, Workload

SLOT_S: Final = 15
DAY_S: Final = 86_400
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Slot:
    """Load of 15 seconds."""

    rate: float
    """Requests a second."""
    prompt_tokens: float
    """Mean tokens of the prompts that come; the part that must be computed."""
    output_tokens: float
    lengths: tuple[int, ...] = ()
    """Of the prompts that come, the parts that must be computed; empty: as the day's spread has them."""
    held_tokens: float = 0.0
    """Mean context of a running request, which long answers weigh most in; 0: that of a mean one."""

    @property
    def context_tokens(self) -> float:
        """KV of a running request, over its time at decode."""
        return self.held_tokens or self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Day:
    """One workload and what goes wrong in it."""

    name: str
    slots: tuple[Slot, ...]
    start_s: float = 120.0
    """From asking for a replica until it is ready."""
    spread: float = 0.7
    """Of the logarithm of prompt lengths."""
    metric_noise: float = 0.0
    """Relative error of each reading."""
    lost: float = 0.0
    """Share of ticks at which nothing can be read."""
    blackout: tuple[float, float] | None = None
    """From and to: nothing can be read for a long time."""
    schedulable: Mapping[str, int] = field(default_factory=dict)
    """By role: no node takes more replicas."""


def days(seed: int, hours: float = 24) -> list[Day]:
    """All generated days."""
    span = int(hours * _HOUR_S)

    def slots(shape: Callable[[float], Slot], name: str) -> tuple[Slot, ...]:
        rng = Random(f"{seed} {name}")  # noqa: S311 - reproducible by its seed
        drift, found = 0.0, []
        for at in range(0, span, SLOT_S):
            drift = 0.97 * drift + rng.gauss(0, 0.02)
            slot = shape(at / span)
            found.append(Slot(max(0.0, slot.rate * math.exp(drift)), slot.prompt_tokens, slot.output_tokens))
        return tuple(found)

    diurnal = slots(lambda x: Slot(_tide(x), 2500, 250), "diurnal")
    flat = slots(lambda _: Slot(25, 2500, 250), "flat")
    return [
        Day("diurnal", diurnal),
        Day("bursts", slots(lambda x: Slot(18 * (3.0 if (x * 47) % 1 < 0.12 else 1.0), 2500, 250), "bursts")),  # noqa: PLR2004
        Day("prompt-heavy shift", slots(lambda x: Slot(18, 9000 if 0.35 < x < 0.7 else 2200, 250), "prompts")),  # noqa: PLR2004
        Day("decode-heavy shift", slots(lambda x: Slot(20, 2500, 900 if 0.35 < x < 0.7 else 200), "answers")),  # noqa: PLR2004
        Day("slow starts", diurnal, start_s=600),
        Day("flapping metrics", diurnal, metric_noise=0.4),
        Day("lost scrapes", diurnal, lost=0.25, blackout=(span * 0.4, span * 0.4 + 900)),
        Day("unschedulable", flat, schedulable={"prefill": 3, "decode": 12}),
    ]


def of_workload(workload: Workload, scale: float, start_s: float, uncached: float) -> Day:
    """The load of a trace, slot by slot, `scale` times as fast; `uncached` is the share of prompt tokens to compute."""
    count = int(workload.span_s / scale) // SLOT_S + 1
    came: list[list[Call]] = [[] for _ in range(count)]
    for call in workload.calls:
        at = int((call.arrival_s - workload.calls[0].arrival_s) / scale) // SLOT_S
        came[min(count - 1, at)].append(call)
    return Day("trace", tuple(_slot(calls, uncached) for calls in came), start_s=start_s, spread=1.15)


def _slot(calls: Sequence[Call], uncached: float) -> Slot:
    prompts, outputs = sum(call.prompt_tokens for call in calls), sum(call.output_tokens for call in calls)
    held = sum(call.output_tokens * (call.prompt_tokens + call.output_tokens / 2) for call in calls)
    number = max(1, len(calls))
    return Slot(
        len(calls) / SLOT_S,
        prompts / number * uncached,
        outputs / number,
        tuple(max(1, round(call.prompt_tokens * uncached)) for call in calls),
        held / max(1, outputs),
    )


def _tide(share: float) -> float:
    """Night and day: 8 requests a second at four in the morning, 44 in the afternoon, and a peak after lunch."""
    wave = 0.5 - 0.5 * math.cos(2 * math.pi * (share - 0.17))
    lunch = math.exp(-(((share - 0.56) / 0.03) ** 2))
    return 8 + 30 * wave + 6 * lunch
