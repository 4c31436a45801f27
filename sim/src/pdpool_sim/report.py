"""From runs to a table, to JSON and to whether the goals hold.

Boundary: pure. A goal compares us with the best rival of the same cache, load and workload.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pdpool_sim.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


_UNITS: Final = {
    "hit_rate": "",
    "work_spread": "",
    "ttft_p50_s": "s",
    "ttft_p99_s": "s",
    "itl_p99_s": "s",
    "attainment": "",
    "goodput_rps": "1/s",
    "local_share": "",
}


def goals(rows: Sequence[Row], *, ours: str, least_loaded: str, on_trace: frozenset[str]) -> list[Figure]:
    """Every goal that these rows can judge.

    Args:
        rows: of all rules.
        ours: name of the rule that is judged.
        least_loaded: name of the rule that it must never fall below.
        on_trace: names of the workloads that count as the trace.
    """
    found: list[Figure] = []
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
            Figure(
                f"{where}: goodput / least-loaded",
                _ratio(mine.figures.goodput_rps, row.figures.goodput_rps),
                goal=1,
                at_least=True,
            )
            for row in base
        ]
    return found


def _of_trace(where: str, mine: Row, rivals: Sequence[Row]) -> list[Figure]:
    seen = mine.figures
    best_ttft = min(row.figures.ttft_p99_s for row in rivals)
    best_goodput = max(row.figures.goodput_rps for row in rivals)
    found = [
        Figure(
            f"{where}: hit rate / oracle", _ratio(seen.hit_rate, mine.oracle_hit_rate), goal=HIT_BOUND, at_least=True
        ),
        Figure(f"{where}: max/mean work", seen.work_spread, goal=SPREAD_BOUND),
    ]
    if mine.load in TTFT_BOUNDS:
        found += [
            Figure(f"{where}: TTFT p99 / best rival", seen.ttft_p99_s / best_ttft, goal=TTFT_BOUNDS[mine.load]),
            Figure(
                f"{where}: goodput / best rival",
                _ratio(seen.goodput_rps, best_goodput),
                goal=GOODPUT_BOUNDS[mine.load],
                at_least=True,
            ),
        ]
    return found


def _of_generated(where: str, mine: Row) -> list[Figure]:
    if mine.workload not in HIT_GENERATED:
        return []
    seen = mine.figures
    return [
        Figure(
            f"{where}: hit rate / oracle",
            _ratio(seen.hit_rate, mine.oracle_hit_rate),
            goal=GENERATED_HIT_BOUND,
            at_least=True,
        ),
        Figure(f"{where}: max/mean work", seen.work_spread, goal=SPREAD_BOUND),
    ]


def goal_lines(found: Iterable[Figure]) -> str:
    """The goals as text, those that are missed marked."""
    return "\n".join(map(_goal_line, found))


def _goal_line(goal: Figure) -> str:
    return f"{goal.verdict:3}  {goal.name}: {goal.value:.3f} ({goal.bound})"


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows, for machines."""
    return [
        {name: value for name, value in asdict(row).items() if name != "figures"} | _finite(asdict(row.figures))
        for row in rows
    ]


def figures(rows: Iterable[Row]) -> Iterator[Figure]:
    """What each rule came to, value by value."""
    for row in rows:
        for name, unit in _UNITS.items():
            value = float(getattr(row.figures, name))
            yield Figure(f"{row.workload}, {row.cache}, {row.load:.0%}: {name} of {row.rule}", value, unit)


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """NaN is no JSON: nothing was measured."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


def _ratio(value: float, other: float) -> float:
    return value / other if other else 1.0
