"""One measured value and what it should be: the form in which every benchmark tells its results to machines.

Boundary: pure. What is measured, and how it is shown to people, is each benchmark's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Figure(NamedTuple):
    """A value with its goal, where it has one."""

    name: str
    value: float
    unit: str = ""
    """Empty: a share, a ratio or a count."""
    goal: float | None = None
    at_least: bool = False
    """The goal is a least value, not a largest."""

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met; None without a goal, or where nothing was measured (NaN)."""
        if self.goal is None or math.isnan(self.value):
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def as_text(figures: Iterable[Figure]) -> str:
    """A line for each: name, value, unit."""
    return "\n".join(f"{each.name}: {each.value:.4g} {each.unit}".rstrip() for each in figures)


def as_json(figures: Iterable[Figure]) -> dict[str, dict[str, object]]:
    """`{name: {value, unit, goal, holds}}`; null stands for no goal, and for what JSON has no number for."""
    return {
        each.name: {
            "value": round(each.value, 4) if math.isfinite(each.value) else None,
            "unit": each.unit,
            "goal": each.goal,
            "holds": each.holds,
        }
        for each in figures
    }
