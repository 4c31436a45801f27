"""One measured value and what it should be: the form in which every benchmark tells its results to machines.

Boundary: pure, but for writing the file that somebody asked for. What is measured, and how it is shown to people, is
each benchmark's.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


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

    @property
    def bound(self) -> str:
        """The goal for people, as `<= 300`; empty without one."""
        return "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}"

    @property
    def verdict(self) -> str:
        """For people: `yes`, `NO`, or nothing where nothing is judged."""
        return {True: "yes", False: "NO", None: ""}[self.holds]


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


def write_json(figures: Iterable[Figure], file: Path | None) -> None:
    """As `as_json` into a file, where one is asked for."""
    if file is not None:
        file.write_text(json.dumps(as_json(figures), indent=1) + "\n", encoding="utf-8")
