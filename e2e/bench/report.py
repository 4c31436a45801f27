"""From samples to a table and to JSON: medians, ratios within a round, and whether the goals hold.

Boundary: pure; measuring and printing are `router`'s business. A ratio is taken between two samples of one round,
because the machine's speed changes from round to round by more than the routers differ.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RATIO_GOALS = {"w1": 0.52, "w3_100": 0.84, "w3_300": 0.84}
"""At most so much of the peer's CPU; workloads that are not named have no goal."""


@dataclass(frozen=True)
class Pair:
    """What one unit of work cost us and the peer in the same round, in microseconds of CPU."""

    ours_us: float
    peer_us: float

    @property
    def ratio(self) -> float:
        """Ours over the peer's."""
        return self.ours_us / self.peer_us


@dataclass(frozen=True)
class Row:
    """One workload in all rounds."""

    name: str
    title: str
    unit: str
    pairs: Sequence[Pair] = field(default_factory=list)

    @property
    def ours_us(self) -> float:
        """Our median."""
        return statistics.median(pair.ours_us for pair in self.pairs)

    @property
    def peer_us(self) -> float:
        """The peer's median."""
        return statistics.median(pair.peer_us for pair in self.pairs)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(pair.ratio for pair in self.pairs)

    @property
    def goal(self) -> float | None:
        """The largest ratio that meets the goal; None: no goal."""
        return RATIO_GOALS.get(self.name)

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met; None: no goal."""
        return None if self.goal is None else self.ratio <= self.goal


_HOLDS = {True: "yes", False: "NO", None: ""}


def table(rows: Sequence[Row], ours: str, peer: str) -> str:
    """The rows as aligned text."""
    cells = [("workload", "CPU µs per", ours, peer, "ratio", "of rounds", "goal", "holds")]
    for row in rows:
        ratios = [pair.ratio for pair in row.pairs]
        cells.append(
            (
                f"{row.name.upper()}  {row.title}",
                row.unit,
                f"{row.ours_us:.1f}",
                f"{row.peer_us:.1f}",
                f"{row.ratio:.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                "" if row.goal is None else f"≤ {row.goal}",
                _HOLDS[row.holds],
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def as_json(rows: Sequence[Row], conditions: Mapping[str, tuple[float, str]]) -> dict[str, dict[str, object]]:
    """Every figure by name: `{value, unit, goal, holds}`, where goal and holds are null for what has no goal."""
    figures: dict[str, dict[str, object]] = {}
    for row in rows:
        figures[f"{row.name}_ratio"] = _figure(row.ratio, "ratio", row.goal, holds=row.holds)
        figures[f"{row.name}_ours"] = _figure(row.ours_us, f"us/{row.unit}")
        figures[f"{row.name}_peer"] = _figure(row.peer_us, f"us/{row.unit}")
    return figures | {name: _figure(value, unit) for name, (value, unit) in conditions.items()}


def _figure(value: float, unit: str, goal: float | None = None, *, holds: bool | None = None) -> dict[str, object]:
    return {"value": round(value, 4), "unit": unit, "goal": goal, "holds": holds}
