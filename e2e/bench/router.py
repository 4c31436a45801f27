"""`make bench-router`: what one request and one chunk cost our router and its peers, side by side on one machine.

Boundary: the straight line of a run: engines, routers, warm-up, rounds, table. Routers share one core, one of them
working at a time; engines and client share another. In each round everything is measured of every router, one right
after the other and in changing order, so that what the host does to the machine meets all. Everything is bounded in
count and time and ends with this process, however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import platform
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import uvloop

from e2e.bench import cpu, ours, plot
from e2e.bench.contest import DIRECT, Contestant, start_engines, start_routers, titles
from e2e.bench.load import LoadError
from e2e.bench.measures import Bench, Measure, closed_loop, crowd, latency, per_chunk, per_request
from e2e.bench.peers import DYNAMO, PEERS, SGLANG_ROUTER, SMG, VLLM_ROUTER, PeerError
from e2e.bench.processes import ProcessError
from e2e.bench.report import OURS, OURS_ALL_ON, Row, figures, judged, table, verdicts
from e2e.bench.workloads import LATENCY, W1, W2, W4, long_streams
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress
from pdpool_sim import asked
from pdpool_sim.figure import write_json

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence
    from pathlib import Path

CORES_NEEDED: Final = 2
SIGNALLED: Final = 128
QUIET_LOAD: Final = 1.0
TRIES: Final = 2
"""A measure that a peer fails so often in a row is not taken of it any more: each failure takes its deadline."""
_OWN: Final = (OURS, OURS_ALL_ON)


@dataclass(frozen=True)
class Plan:
    """How much is measured, of whom."""

    peers: Sequence[str]
    measures: Sequence[Measure]
    rounds: int
    crowd: Measure
    crowd_of: Sequence[str]
    """Measured once at the end, of these: opening so many streams takes longer than any round."""
    budget_s: float
    """No round begins that would not end within this time since the start."""


def plan(*, quick: bool) -> Plan:
    """Of a run, short or full."""
    if quick:
        measures = [per_request(one, offered_s=0.5) for one in (W1, W2, W4)]
        measures += [per_chunk(long_streams(100, duration_s=1.0), window_s=0.5), latency(offered_s=0.5)]
        return Plan((VLLM_ROUTER.name,), measures, 3, crowd(window_s=1), (OURS,), budget_s=32)
    measures = [per_request(one, offered_s=2.5) for one in (W1, W2, W4)]
    measures += [per_chunk(long_streams(100, duration_s=3.5), 2.5), per_chunk(long_streams(300, duration_s=4.5), 2.5)]
    measures += [latency(offered_s=4), closed_loop(count=6000)]
    peers = (VLLM_ROUTER.name, SMG.name, SGLANG_ROUTER.name, DYNAMO.name)
    of_crowd = (OURS, OURS_ALL_ON, VLLM_ROUTER.name, SMG.name, DYNAMO.name)
    return Plan(peers, measures, 9, crowd(window_s=5), of_crowd, budget_s=1150)


def _cores() -> tuple[int, int]:
    """One core for the routers, one for everything else."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES_NEEDED:
        raise ProcessError(f"the benchmark needs {CORES_NEEDED} cores, this process may use {len(cores)}")
    return cores[1], cores[0]


class Run:
    """The samples of a run: what was measured, and what went wrong."""

    def __init__(self, plan: Plan, contestants: Sequence[Contestant], direct: Contestant, progress: Progress) -> None:
        """`direct`: an engine that is asked without a router."""
        self._plan = plan
        self._contestants = contestants
        self._direct = direct
        self._progress = progress
        self.bench: Final = Bench()
        self.rows: Final[list[Row]] = []
        self.notes: Final[list[str]] = []
        self._failed: Final[Counter[tuple[str, ...]]] = Counter()
        self.ours_failed = False

    async def measure(self, until_s: float) -> None:
        """Warm-up, rounds, and the crowd; no round begins that would not end at `until_s`.

        Raises:
            LoadError: our router does not serve a workload at all.
        """
        plan = self._plan
        for contestant in self._contestants:
            for measure in plan.measures:
                await self._warm_up(measure, contestant)
        await self.bench.warm_up(self._direct, LATENCY)
        rows = [(measure, self._begin(measure)) for measure in plan.measures]
        longest_s = 0.0
        for number in range(plan.rounds):
            began_s = time.monotonic()
            if number and began_s + longest_s > until_s:
                self._progress.say(f"stopping after {number} of {plan.rounds} rounds: the time is used up")
                break
            for measure, of in rows:
                await self._round(measure, of, number)
            longest_s = max(longest_s, time.monotonic() - began_s)
            self._progress.say(f"round {number + 1} of {plan.rounds}: {self._ratios()}")
        memory = Row("rss", "memory after the rounds", "MB")
        memory.samples = {one.name: [_rss_mb(one)] for one in self._contestants}
        self.rows.append(memory)
        of = self._begin(plan.crowd)
        for contestant in self._contestants:
            if contestant.name in plan.crowd_of:
                await self._take(plan.crowd, of, contestant, 0)
                self._progress.say(f"{contestant.title}: a crowd of streams")

    async def _warm_up(self, measure: Measure, contestant: Contestant) -> None:
        """A peer's failure is noted, and counts as one of its tries."""
        try:
            await self.bench.warm_up(contestant, measure.warm_up)
        except (LoadError, OSError) as fault:
            if contestant.name in _OWN:
                raise LoadError(f"{contestant.title}: {fault}") from fault
            await self._note(measure, contestant, "warm-up", fault)

    def _begin(self, measure: Measure) -> dict[str, Row]:
        """The rows of a measure, to be filled."""
        rows = measure.empty_rows()
        self.rows.extend(rows)
        return {row.name: row for row in rows}

    async def _round(self, measure: Measure, rows: dict[str, Row], number: int) -> None:
        """One sample of each, in another order than in the last round."""
        turn = number % len(self._contestants)
        order = [*self._contestants[turn:], *self._contestants[:turn]]
        for contestant in [self._direct, *order] if "latency_p50" in rows else order:
            await self._take(measure, rows, contestant, number)

    async def _take(self, measure: Measure, rows: dict[str, Row], contestant: Contestant, number: int) -> None:
        """One sample; a failure is noted and leaves a gap, so that it does not cost all that was measured."""
        found: dict[str, float] = {}
        if self._failed[contestant.name, *measure.rows] < TRIES:
            try:
                found = await measure.take(self.bench, contestant, number)
                self._failed[contestant.name, *measure.rows] = 0
            except (LoadError, OSError) as fault:
                self.ours_failed = self.ours_failed or contestant.name in _OWN
                await self._note(measure, contestant, f"round {number + 1}", fault)
        for name, row in rows.items():
            row.samples.setdefault(contestant.name, []).append(found.get(name))

    async def _note(self, measure: Measure, contestant: Contestant, when: str, fault: Exception) -> None:
        """Count a failure and let the router come to rest."""
        self._failed[contestant.name, *measure.rows] += 1
        more = "; not tried again" if self._failed[contestant.name, *measure.rows] >= TRIES else ""
        self.notes.append(f"{contestant.title}, {next(iter(measure.rows))}, {when}: {fault}{more}")
        await self.bench.settle(contestant)

    def _ratios(self) -> str:
        """The last round's, to the first peer, for whoever watches."""
        peer = next(one.name for one in self._contestants if one.name not in _OWN)
        ratios = ((row.name, row.ratios(OURS, peer)) for row in self.rows)
        return ", ".join(f"{name} {found[-1]:.2f}" for name, found in ratios if found)


def _rss_mb(contestant: Contestant) -> float | None:
    """Resident memory; None of a router that has ended."""
    try:
        return contestant.rss_bytes() / 1e6
    except OSError:
        return None


def _add_added(rows: list[Row], contestants: Sequence[Contestant]) -> None:
    """Rows of what a router adds: a request's time through it, less twice an engine's own median."""
    by_name = {row.name: row for row in rows}
    alone_ms = by_name["latency_p50"].samples.pop(DIRECT, [])
    for name in ("latency_p50", "latency_p99", "latency_p999"):
        row = by_name[name]
        row.samples.pop(DIRECT, None)
        added = Row(name.replace("latency", "added"), f"{row.title}: added", "ms")
        for one in contestants:
            legs = PEERS[one.name].legs if one.name in PEERS else 2
            added.samples[one.name] = [
                took - legs * alone if took is not None and alone is not None else None
                for took, alone in zip(row.samples[one.name], alone_ms, strict=True)
            ]
        rows.insert(rows.index(row) + 1, added)


async def _ended_by_signal(work: Coroutine[object, object, None]) -> None:
    """SIGTERM cancels the work, because an exception raised in a signal handler ends in some callback."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


@contextmanager
def _sole_run() -> Iterator[Path]:
    """The folder of the logs, while no other benchmark runs: two at once would measure each other."""
    folder = cache_root() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProcessError("another benchmark is running on this machine") from None
        for log in folder.glob("*.log"):
            log.unlink()
        yield folder


def _run(plan: Plan, json_file: Path | None, plot_file: Path | None) -> bool:
    """Measures and tells; whether every answer of our router was right and in time."""
    progress = Progress("bench-router")
    router_core, other_core = _cores()
    os.sched_setaffinity(0, {other_core})
    load_before = os.getloadavg()[0]
    program = ours.program()
    until_s = time.monotonic() + plan.budget_s
    with _sole_run() as folder, ExitStack() as stack:
        engines = start_engines(stack, other_core, folder)
        contestants = start_routers(stack, (router_core, other_core), folder, engines, program, plan.peers)
        whole = next(one for one in engines if one.role == "whole")
        direct = Contestant(DIRECT, "an engine alone", whole.port, os.getpid())
        progress.say("engines and routers answer")
        before = {core: cpu.core_ticks(core) for core in (router_core, other_core)}
        run = Run(plan, contestants, direct, progress)
        uvloop.run(_ended_by_signal(run.measure(until_s)))
        spent = {core: cpu.core_ticks(core).since(ticks) for core, ticks in before.items()}
    rows = run.rows
    _add_added(rows, contestants)
    found = list(verdicts(rows, [name for name in plan.peers if PEERS[name].legs == 2]))  # noqa: PLR2004 - as ours
    conditions = {
        "router_core_steal": (spent[router_core].steal_share, "share of time"),
        "load_core_steal": (spent[other_core].steal_share, "share of time"),
        "load_core_busy": (spent[other_core].busy_share, "share of time"),
        "load_average_before": (load_before, "processes"),
        "load_average_after": (os.getloadavg()[0], "processes"),
        "rounds": (len(rows[0].samples[OURS]), "rounds"),
        "answers_checked": (run.bench.answered, "answers"),
        "answers_checked_by_form": (run.bench.answered_by_form, "answers"),
    }
    print(table(rows, titles(contestants)), judged(found), sep="\n\n")
    print(_said({name: value for name, (value, _) in conditions.items()}, ours.described(program), run.notes))
    write_json(figures(rows, found, conditions), json_file)
    if plot_file is not None:
        plot.draw(rows, titles(contestants), plot_file)
    return not run.ours_failed


def _said(value: dict[str, float], interpreter: str, notes: Sequence[str]) -> str:
    """Under what conditions the figures were taken."""
    busy = " (others work here: run it again when they do not)" if value["load_average_before"] > QUIET_LOAD else ""
    failed = "".join(f"\nno figure: {note}" for note in notes)
    by_form = value["answers_checked_by_form"]
    more = f", {by_form:.0f} more by their form (engines that make up their texts)" if by_form else ""
    return f"""
{value["answers_checked"]:.0f} answers checked byte for byte{more}
{value["rounds"]:.0f} interleaved rounds: medians of their samples and of their ratios
our router's interpreter {interpreter}, uvloop {version("uvloop")}, kernel {platform.release()}
stolen by the host: {value["router_core_steal"]:.1%} of the routers' core, {value["load_core_steal"]:.1%} of the other
core of engines and client: {value["load_core_busy"]:.0%} busy
load average {value["load_average_before"]:.1f} before, {value["load_average_after"]:.1f} after{busy}{failed}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """What our router costs beside its peers (environment: QUICK=1, JSON=file, PLOT=file)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.router", description=main.__doc__)
    parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(SIGNALLED + signum))
    try:
        good = _run(plan(quick=asked.quick()), asked.file("JSON"), asked.file("PLOT"))
    except (LoadError, PeerError, ProcessError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return SIGNALLED + signal.SIGTERM
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
