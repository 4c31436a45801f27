"""From runs to a table, to JSON and to whether the goals hold.

Boundary: pure. A goal compares us with the best rival of the same cache, load and workload.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdpool_sim.run import Figures


@dataclass(frozen=True, slots=True)
class Row:
    """One rule under one load."""

    workload: str
    cache: str
    load: float
    """Share of saturation."""
    rule: str
    ours: bool
    figures: Figures
    oracle_hit_rate: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and what came of it."""

    name: str
    value: float
    bound: float
    at_least: bool

    @property
    def holds(self) -> bool:
        """Whether it is met."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


TTFT_BOUNDS: Final = {0.95: 0.8, 0.8: 0.9, 0.6: 1.02}
"""Our TTFT p99 over the best rival's, by load."""
GOODPUT_BOUNDS: Final = {0.95: 1.1, 0.8: 1.0, 0.6: 1.0}
HIT_BOUND: Final = 0.95
GENERATED_HIT_BOUND: Final = 0.9
SPREAD_BOUND: Final = 1.25
HIT_GENERATED: Final = frozenset({"rag", "agents", "shared-prompt"})

_HEAD: Final = (
    "workload",
    "cache",
    "load",
    "rule",
    "hit",
    "of oracle",
    "max/mean",
    "TTFT p50 s",
    "p99 s",
    "ITL p99 ms",
    "in SLO",
    "goodput/s",
    "local",
)


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text; ours are marked."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _cells(row: Row) -> tuple[str, ...]:
    seen = row.figures
    return (
        row.workload,
        row.cache,
        f"{row.load:.0%}",
        f"* {row.rule}" if row.ours else row.rule,
        f"{seen.hit_rate:.3f}",
        f"{_ratio(seen.hit_rate, row.oracle_hit_rate):.3f}",
        f"{seen.work_spread:.2f}",
        f"{seen.ttft_p50_s:.3f}",
        f"{seen.ttft_p99_s:.3f}",
        f"{seen.itl_p99_s * 1000:.1f}",
        f"{seen.attainment:.3f}",
        f"{seen.goodput_rps:.2f}",
        f"{seen.local_share:.2f}",
    )


def goals(rows: Sequence[Row], *, ours: str, least_loaded: str, on_trace: frozenset[str]) -> list[Goal]:
    """Every goal that these rows can judge.

    Args:
        rows: of all rules.
        ours: name of the rule that is judged.
        least_loaded: name of the rule that it must never fall below.
        on_trace: names of the workloads that count as the trace.
    """
    found: list[Goal] = []
    for key in dict.fromkeys((row.workload, row.cache, row.load) for row in rows):
        group = [row for row in rows if (row.workload, row.cache, row.load) == key]
        mine = next((row for row in group if row.rule == ours), None)
        rivals = [row for row in group if not row.ours]
        if mine is None or not rivals:
            continue
        where = f"{key[0]}, {key[1]}, {key[2]:.0%}"
        found += _of_trace(where, mine, rivals) if key[0] in on_trace else _of_generated(where, mine)
        base = [row for row in group if row.rule == least_loaded]
        found += [
            Goal(
                f"{where}: goodput / least-loaded",
                _ratio(mine.figures.goodput_rps, row.figures.goodput_rps),
                1,
                at_least=True,
            )
            for row in base
        ]
    return found


def _of_trace(where: str, mine: Row, rivals: Sequence[Row]) -> list[Goal]:
    seen = mine.figures
    best_ttft = min(row.figures.ttft_p99_s for row in rivals)
    best_goodput = max(row.figures.goodput_rps for row in rivals)
    found = [
        Goal(f"{where}: hit rate / oracle", _ratio(seen.hit_rate, mine.oracle_hit_rate), HIT_BOUND, at_least=True),
        Goal(f"{where}: max/mean work", seen.work_spread, SPREAD_BOUND, at_least=False),
    ]
    if mine.load in TTFT_BOUNDS:
        found += [
            Goal(
                f"{where}: TTFT p99 / best rival", seen.ttft_p99_s / best_ttft, TTFT_BOUNDS[mine.load], at_least=False
            ),
            Goal(
                f"{where}: goodput / best rival",
                _ratio(seen.goodput_rps, best_goodput),
                GOODPUT_BOUNDS[mine.load],
                at_least=True,
            ),
        ]
    return found


def _of_generated(where: str, mine: Row) -> list[Goal]:
    if mine.workload not in HIT_GENERATED:
        return []
    seen = mine.figures
    return [
        Goal(
            f"{where}: hit rate / oracle",
            _ratio(seen.hit_rate, mine.oracle_hit_rate),
            GENERATED_HIT_BOUND,
            at_least=True,
        ),
        Goal(f"{where}: max/mean work", seen.work_spread, SPREAD_BOUND, at_least=False),
    ]


def goal_lines(found: Iterable[Goal]) -> str:
    """The goals as text, those that are missed marked."""
    return "\n".join(map(_goal_line, found))


def _goal_line(goal: Goal) -> str:
    bound = f"{'at least' if goal.at_least else 'at most'} {goal.bound}"
    return f"{'yes' if goal.holds else 'NO':3}  {goal.name}: {goal.value:.3f} ({bound})"


def as_json(rows: Iterable[Row], found: Iterable[Goal], conditions: dict[str, Any]) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "conditions": conditions,
        "rows": [
            {name: value for name, value in asdict(row).items() if name != "figures"} | _finite(asdict(row.figures))
            for row in rows
        ],
        "goals": [asdict(goal) | {"holds": goal.holds} for goal in found],
    }


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """NaN is no JSON: nothing was measured."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


def _ratio(value: float, other: float) -> float:
    return value / other if other else 1.0
