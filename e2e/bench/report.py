"""From samples to a table, to verdicts and to JSON: medians, ratios within a round, and whether the goals hold.

Boundary: pure; measuring and printing are `router`'s business. A ratio is taken between two samples of one round,
because the machine's speed changes from round to round by more than the routers differ.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pdpool_sim.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OURS: Final = "ours"
OURS_ALL_ON: Final = "ours-all-on"


@dataclass
class Row:
    """One figure of every contestant in all rounds; None where a contestant failed, or is not measured."""

    name: str
    title: str
    unit: str
    samples: dict[str, list[float | None]] = field(default_factory=dict)

    def median(self, contestant: str) -> float | None:
        """Of the rounds."""
        found = [one for one in self.samples.get(contestant, ()) if one is not None]
        return statistics.median(found) if found else None

    def ratios(self, contestant: str, peer: str) -> list[float]:
        """One contestant's over another's, for each round that has both."""
        pairs = zip(self.samples.get(contestant, ()), self.samples.get(peer, ()), strict=False)
        return [mine / theirs for mine, theirs in pairs if mine is not None and theirs]

    def least(self, peers: Sequence[str]) -> str | None:
        """Whose median is the smallest."""
        found = {peer: median for peer in peers if (median := self.median(peer)) is not None}
        return min(found, key=found.__getitem__) if found else None


@dataclass(frozen=True)
class Goal:
    """What a figure should be at most: alone, or as a share of what the best of the peers with two legs has."""

    row: str
    contestant: str
    limit: float
    is_ratio: bool = True

    @property
    def name(self) -> str:
        """As in JSON."""
        kind = "ratio" if self.is_ratio else "value"
        return f"{self.row}_{self.contestant.replace('-', '_')}_{kind}"


GOALS: Final = (
    Goal("w1", OURS, 0.52),
    Goal("w2", OURS, 0.7),
    Goal("w4", OURS, 0.7),
    Goal("w3_100", OURS, 0.84),
    Goal("w3_300", OURS, 0.84),
    Goal("w1", OURS_ALL_ON, 0.6),
    Goal("w4", OURS_ALL_ON, 0.8),
    Goal("latency_p99", OURS, 1.0),
    Goal("crowd_core", OURS, 1.0, is_ratio=False),
    Goal("crowd_rss", OURS, 30.0, is_ratio=False),
)


@dataclass(frozen=True)
class Verdict:
    """A goal and what was found."""

    goal: Goal
    peer: str
    """Whom it is compared with; empty: nobody."""
    value: float
    lowest: float
    highest: float

    @property
    def figure(self) -> Figure:
        """As every benchmark tells it."""
        return Figure(self.goal.name, self.value, "ratio" if self.goal.is_ratio else "", self.goal.limit)


def verdicts(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[Verdict]:
    """Each goal whose figure was measured; `peers`: those that make two legs."""
    by_name = {row.name: row for row in rows}
    for goal in GOALS:
        row = by_name.get(goal.row)
        if row is None or row.median(goal.contestant) is None:
            continue
        peer = row.least(peers) if goal.is_ratio else ""
        if peer is None:
            continue
        found = row.ratios(goal.contestant, peer) if peer else [one for one in row.samples[goal.contestant] if one]
        if found:
            yield Verdict(goal, peer, statistics.median(found), min(found), max(found))


def table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Every contestant's medians as aligned text."""
    lines = [("", "", *titles.values())]
    for row in rows:
        medians = (row.median(contestant) for contestant in titles)
        lines.append((row.title, row.unit, *("-" if one is None else f"{one:.4g}" for one in medians)))
    return _aligned(lines)


def judged(found: Sequence[Verdict]) -> str:
    """The verdicts as aligned text."""
    lines = [("figure", "of", "beside", "value", "of rounds", "goal", "holds")]
    lines += [
        (
            one.goal.row,
            one.goal.contestant,
            one.peer,
            f"{one.value:.3f}",
            f"{one.lowest:.3f} to {one.highest:.3f}",
            one.figure.bound,
            one.figure.verdict,
        )
        for one in found
    ]
    return _aligned(lines)


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def figures(
    rows: Sequence[Row], found: Sequence[Verdict], conditions: Mapping[str, tuple[float, str]]
) -> Iterator[Figure]:
    """Every verdict, every median and what else was so."""
    yield from (one.figure for one in found)
    for row in rows:
        for contestant in row.samples:
            median = row.median(contestant)
            if median is not None:
                yield Figure(f"{row.name}_{contestant.replace('-', '_')}", median, row.unit)
    for name, (value, unit) in conditions.items():
        yield Figure(name, value, unit)
