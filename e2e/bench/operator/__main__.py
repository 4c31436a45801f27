"""The run: few pools, then many; for each how soon all are reconciled, what rest costs, and how soon an edit arrives.

Boundary: the straight line of a run and its table. All load is bounded in count and time, and everything that was
started ends with this process.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from e2e.bench.operator import ticks
from e2e.bench.operator.site import Site, rss_bytes, site
from e2e.bench.processes import ProcessError
from e2e.cluster import binaries
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import ClusterError, Progress
from e2e.scenarios.api import ApiError
from pdpool_sim import asked
from pdpool_sim.figure import Figure, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIGNALLED: Final = 128
GOALS: Final = {
    "steady_writes": 0.0,
    "steady_cpu_share": 0.10,
    "rss_mb": 300.0,
    "edit_p99_ms": 1000.0,
    "edit_beside_broken_p99_ms": 1000.0,
    "tick_cpu_share": 0.20,
}
"""At most so much, with all pools; figures that are not named have no goal."""
_UNITS: Final = {"_per_minute": "1/min", "_ms": "ms", "_mb": "MB", "_s": "s"}
_APART: Final = 100_000
_EDIT_EVERY_S: Final = 0.3


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: Sequence[int]
    settle_s: float
    """So long nobody but the operator may have written anything before rest is measured."""
    settled_within_s: float
    """Else it is measured all the same, and said."""
    steady_s: float
    """Rest with all pools; with fewer a fifth of it."""
    edits: int
    broken: int
    """Pools with a child's name taken, beside which edits are measured again."""
    budget_s: float


QUICK: Final = Plan(sizes=(2, 8), settle_s=1, settled_within_s=10, steady_s=3, edits=4, broken=2, budget_s=40)
FULL: Final = Plan(
    sizes=(50, 500), settle_s=20, settled_within_s=300, steady_s=300, edits=100, broken=10, budget_s=1500
)


def measure(where: Site, plan: Plan, count: int, already: int, progress: Progress) -> dict[str, float]:
    """The figures of one number of pools; `already` of them are there."""
    until_s = time.monotonic() + plan.budget_s
    where.make_pools(range(already, count))
    log = cache_root() / "bench" / f"operator-{count}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with where.operator(log) as pid:
        started_s = where.wait_reconciled(count, until_s)
        progress.say(f"{count} pools reconciled in {started_s:.1f} s, {rss_bytes(pid) / 1e6:.0f} MB")
        _settle(where, plan, progress)
        rest = where.window(pid, plan.steady_s if count == max(plan.sizes) else plan.steady_s / 5)
        written = ", ".join(f"{often} x {what}" for what, often in rest.written.items()) or "no write"
        progress.say(f"at rest {rest.cpu_share:.1%} of a core, {written}, {rest.requests} requests")
        alone = _edits(where, plan, count, 1)
        progress.say(f"an edit arrives in {_spread(alone)}")
        # Numbered apart from those that the next size makes: a name that is taken stays taken.
        first = _APART + count * plan.broken
        for number in range(first, first + plan.broken):
            where.break_reference(number)
        where.wait_reconciled(count + plan.broken, until_s)
        _settle(where, plan, progress)
        beside = _edits(where, plan, count, 2)
        progress.say(f"beside {plan.broken} broken pools in {_spread(beside)}")
        peak = rss_bytes(pid)
    return {
        "start_s": started_s,
        "steady_writes": float(rest.writes),
        "steady_requests_per_minute": rest.requests / rest.seconds * 60,
        "steady_cpu_share": rest.cpu_share,
        "rss_mb": max(rest.rss_bytes, peak) / 1e6,
        "edit_p50_ms": statistics.median(alone) * 1000,
        "edit_p99_ms": _p99(alone) * 1000,
        "edit_beside_broken_p99_ms": _p99(beside) * 1000,
    }


def _settle(where: Site, plan: Plan, progress: Progress) -> None:
    """Waits until every router is ready and the controllers of Kubernetes have caught up, which statuses follow.

    What the operator writes meanwhile does not count: a write that nothing asks for is to be seen in the window after.
    """
    until_s = time.monotonic() + plan.settled_within_s
    while time.monotonic() < until_s:
        since = where.cluster.audit.now()
        where.make_routers_ready()
        time.sleep(plan.settle_s)
        if not where.moved(since):
            return
    progress.say("controllers of Kubernetes still write, and statuses may follow them")


def _edits(where: Site, plan: Plan, count: int, value: int) -> list[float]:
    """Seconds of each edit, of pools chosen evenly; no pool is edited twice in a round."""
    chosen = random.Random(count + value).sample(range(count), min(plan.edits, count))  # noqa: S311 - which, not secret
    found = []
    for number in chosen:
        found.append(where.change(number, value))
        time.sleep(_EDIT_EVERY_S)
    return found


def _spread(samples: Sequence[float]) -> str:
    return f"{statistics.median(samples) * 1000:.0f} ms, p99 {_p99(samples) * 1000:.0f} ms"


def _p99(samples: Sequence[float]) -> float:
    """The smallest sample that at most one in a hundred exceeds; of fewer than a hundred, the largest."""
    return sorted(samples)[math.ceil(len(samples) * 0.99) - 1]


def table(sizes: Sequence[int], figures: Sequence[dict[str, float]]) -> str:
    """The figures under each other, one column for each number of pools, and how they grow."""
    cells = [["figure", *(f"{size} pools" for size in sizes), "growth", "goal", "holds"]]
    for name, largest in zip(figures[0], judged(sizes[-1:], figures[-1:]), strict=True):
        values = [each[name] for each in figures]
        growth = f"{values[-1] / values[0]:.1f}x" if values[0] else ""
        cells.append([name, *(f"{each:.3g}" for each in values), growth, largest.bound, largest.verdict])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def judged(sizes: Sequence[int], figures: Sequence[dict[str, float]]) -> list[Figure]:
    """Every figure by name and number of pools; the largest number is held to the goals."""
    return [
        Figure(f"{name}_{size}", value, _unit(name), GOALS.get(name) if size == sizes[-1] else None)
        for size, each in zip(sizes, figures, strict=True)
        for name, value in each.items()
    ]


def _unit(name: str) -> str:
    """By its name's ending; counts and shares have none."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def _run(plan: Plan, json_file: Path | None) -> None:
    progress = Progress("bench-operator")
    load_before = os.getloadavg()[0]
    kubectl = str(binaries.cached_path("kubectl"))
    figures: list[dict[str, float]] = []
    with site(kubectl) as where:
        already = 0
        for count in plan.sizes:
            figures.append(measure(where, plan, count, already, progress))
            already = count
    for each, share in zip(figures, ticks.cpu_shares(plan.sizes), strict=True):
        each["tick_cpu_share"] = share
    print(table(plan.sizes, figures))
    print(
        f"\npools with engines at zero and one router pod, said to be ready; API server, store and operator share"
        f" {os.cpu_count()} cores\n{platform.python_implementation()} {platform.python_version()}, kernel"
        f" {platform.release()}, load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    write_json(judged(plan.sizes, figures), json_file)


def main(arguments: Sequence[str] | None = None) -> int:
    """What hundreds of pools cost the operator (environment: QUICK=1, JSON=file)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.operator", description=main.__doc__)
    parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(SIGNALLED + signum))
    try:
        _run(QUICK if asked.quick() else FULL, asked.file("JSON"))
    except (ApiError, ClusterError, ProcessError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
