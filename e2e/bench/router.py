"""`make bench-router`: what one request and one chunk cost our router and a peer, side by side on one machine.

Boundary: the straight line of a run: engines, routers, warm-up, rounds, table. A router has one core for itself;
engines and client share another. In each round every workload runs on both routers, one right after the other and in
changing order, so that what the host does to the machine meets both. Everything is bounded in count and time and ends
with this process, however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import fcntl
import itertools
import json
import os
import platform
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from e2e.bench import cpu, ours
from e2e.bench.load import Client, LoadError
from e2e.bench.peers import VLLM_ROUTER, PeerError, Place
from e2e.bench.processes import ProcessError, free_ports, running, wait_for, wait_for_line
from e2e.bench.replies import MODEL
from e2e.bench.report import Pair, Row, as_json, table
from e2e.bench.workloads import W1, W2, W4, Workload, long_streams
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

READY_DEADLINE_S = 30
WARM_UP_REQUESTS = 40
WARM_UP_CHUNKS = 20
CORES_NEEDED = 2
NS_PER_US = 1000
FAULTS_SHOWN = 3
SIGNALLED = 128
QUIET_LOAD = 1.0


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    workloads: Sequence[Workload]
    rounds: int
    offered_s: float
    """How long an open loop is offered."""
    window_s: float
    """How long the long streams are measured."""
    budget_s: float
    """No round begins that would not end within this time since the start."""


def _plan(*, quick: bool) -> Plan:
    if quick:
        return Plan((W1, W2, W4, long_streams(100, duration_s=1.3)), 5, offered_s=0.8, window_s=0.8, budget_s=44)
    streams = (long_streams(100, duration_s=4), long_streams(300, duration_s=5))
    return Plan((W1, W2, W4, *streams), 9, offered_s=3, window_s=3, budget_s=540)


@dataclass(frozen=True)
class Contestant:
    """One running router."""

    name: str
    title: str
    port: int
    pid: int

    def used_ns(self) -> int:
        """CPU nanoseconds of its whole process tree so far."""
        return cpu.tree_ns(self.pid)


def _cores() -> tuple[int, int]:
    """One core for the router, one for everything else."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES_NEEDED:
        raise ProcessError(f"the benchmark needs {CORES_NEEDED} cores, this process may use {len(cores)}")
    return cores[1], cores[0]


def our_command(program: Path, place: Place, folder: Path) -> list[str]:
    """The command line of our router at that place; its configuration is written to the folder."""
    static = [
        {"role": role, "url": url}
        for role, urls in (("prefill", place.prefill_urls), ("decode", place.decode_urls))
        for url in urls
    ]
    # A policy without state, as the peer's; all else is what the router does by itself.
    settings = {
        "model": {"servedNames": [MODEL]},
        "endpoints": {"static": static},
        "routing": {"policy": "LeastLoaded"},
    }
    file = folder / "ours.json"  # JSON is YAML
    file.write_text(json.dumps(settings))
    return [
        str(program),
        *("--config", str(file)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--admin-port", str(place.admin_port)),
        *("--log-level", "warning"),
    ]


def _start_engines(stack: ExitStack, core: int, logs: Path) -> tuple[list[str], list[str]]:
    """URLs of the prefill and of the decode engines."""
    log = logs / "engines.log"
    command = [sys.executable, "-m", "e2e.bench.responder"]
    child = stack.enter_context(running(command, core=core, log=log))
    urls: dict[str, list[str]] = {"prefill": [], "decode": []}
    for line in wait_for_line(child, log, READY_DEADLINE_S, "ready"):
        role, port = line.split()
        urls[role].append(f"http://127.0.0.1:{port}")
    return urls["prefill"], urls["decode"]


def _start_routers(
    stack: ExitStack, core: int, logs: Path, engines: tuple[list[str], list[str]], program: Path
) -> list[Contestant]:
    ports = iter(free_ports(4))
    places = [Place(*engines, port=next(ports), admin_port=next(ports)) for _ in range(2)]
    commands = {"ours": our_command(program, places[0], logs), "peer": VLLM_ROUTER.command(places[1])}
    titles = {"ours": f"pdpool-router {version('pdpool-router')}", "peer": VLLM_ROUTER.title}
    contestants = []
    for (name, command), place in zip(commands.items(), places, strict=True):
        log = logs / f"{name}.log"
        child = stack.enter_context(running(command, core=core, log=log))
        wait_for(child, log, READY_DEADLINE_S, f"http://127.0.0.1:{place.port}/health")
        contestants.append(Contestant(name, titles[name], place.port, child.pid))
    return contestants


class Bench:
    """Measures samples; numbers every request of a run once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._next_number = 0
        self.answered = 0

    def _numbers(self, count: int) -> range:
        first, self._next_number = self._next_number, self._next_number + count
        return range(first, self._next_number)

    async def warm_up(self, contestant: Contestant, workload: Workload) -> None:
        """Let a router answer a few requests that are not measured.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        if workload.streams:
            workload, count = dataclasses.replace(workload, chunks=WARM_UP_CHUNKS), 1
        else:
            count = WARM_UP_REQUESTS
        client = Client(contestant.port, workload)
        try:
            await client.offer(self._numbers(count), seed=0)
            self._check(client, contestant, workload, count)
        finally:
            await client.close()

    async def sample_us(self, contestant: Contestant, workload: Workload, seed: int) -> float:
        """CPU microseconds of the router per request, or per chunk of long streams.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        client = Client(contestant.port, workload)
        try:
            if workload.streams:
                count = workload.streams
                used_ns, units = await client.hold(self._numbers(count), self._plan.window_s, contestant.used_ns)
            else:
                count = units = int(workload.rate_per_s * self._plan.offered_s)
                began_ns = contestant.used_ns()
                await client.offer(self._numbers(count), seed)
                used_ns = contestant.used_ns() - began_ns
            self._check(client, contestant, workload, count)
        finally:
            await client.close()
        return used_ns / NS_PER_US / units

    def _check(self, client: Client, contestant: Contestant, workload: Workload, expected: int) -> None:
        tally = client.tally
        self.answered += tally.answered
        if tally.faults or tally.answered != expected:
            shown = "; ".join(tally.faults[:FAULTS_SHOWN])
            message = f"{contestant.title}, {workload.name}: {len(tally.faults)} of {expected} requests failed: {shown}"
            raise LoadError(message)


async def _measure(
    bench: Bench, plan: Plan, contestants: Sequence[Contestant], progress: Progress, until_s: float
) -> list[Row]:
    """Warm-up and rounds; no round begins that would not end at `until_s`."""
    for contestant, workload in itertools.product(contestants, plan.workloads):
        await bench.warm_up(contestant, workload)
    pairs: dict[str, list[Pair]] = {workload.name: [] for workload in plan.workloads}
    longest_s = 0.0
    for number in range(plan.rounds):
        began_s = time.monotonic()
        if number and began_s + longest_s > until_s:
            progress.say(f"stopping after {number} of {plan.rounds} rounds: the time is used up")
            break
        order = contestants if number % 2 == 0 else contestants[::-1]
        for workload in plan.workloads:
            samples = {one.name: await bench.sample_us(one, workload, seed=number) for one in order}
            pairs[workload.name].append(Pair(samples["ours"], samples["peer"]))
        longest_s = max(longest_s, time.monotonic() - began_s)
        shown = ", ".join(f"{name} {rows[-1].ratio:.2f}" for name, rows in pairs.items())
        progress.say(f"round {number + 1} of {plan.rounds}: ratios {shown}")
    return [Row(workload.name, workload.title, workload.unit, pairs[workload.name]) for workload in plan.workloads]


async def _ended_by_signal(work: Coroutine[object, object, list[Row]]) -> list[Row]:
    """The work's result; SIGTERM cancels it, because an exception raised in a signal handler ends in some callback."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


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


def _run(plan: Plan, json_file: Path | None) -> None:
    progress = Progress("bench-router")
    router_core, other_core = _cores()
    os.sched_setaffinity(0, {other_core})
    load_before = os.getloadavg()[0]
    program = ours.program()
    until_s = time.monotonic() + plan.budget_s
    with _sole_run() as logs, ExitStack() as stack:
        engines = _start_engines(stack, other_core, logs)
        contestants = _start_routers(stack, router_core, logs, engines, program)
        progress.say("engines and routers answer")
        bench = Bench(plan)
        before = {core: cpu.core_ticks(core) for core in (router_core, other_core)}
        rows = uvloop.run(_ended_by_signal(_measure(bench, plan, contestants, progress, until_s)))
        spent = {core: cpu.core_ticks(core).since(ticks) for core, ticks in before.items()}
    conditions = {
        "router_core_steal": (spent[router_core].steal_share, "share of time"),
        "load_core_steal": (spent[other_core].steal_share, "share of time"),
        "load_core_busy": (spent[other_core].busy_share, "share of time"),
        "load_average_before": (load_before, "processes"),
        "load_average_after": (os.getloadavg()[0], "processes"),
        "rounds": (len(rows[0].pairs), "rounds"),
        "answers_checked": (bench.answered, "answers"),
    }
    print(table(rows, *(contestant.title for contestant in contestants)))
    print(_account({name: value for name, (value, _) in conditions.items()}, ours.described(program)))
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(rows, conditions), indent=2) + "\n")


def _account(value: dict[str, float], interpreter: str) -> str:
    """Under what conditions the figures were taken."""
    busy = " (others work here: run it again when they do not)" if value["load_average_before"] > QUIET_LOAD else ""
    return f"""
{value["answers_checked"]:.0f} answers checked byte for byte
{value["rounds"]:.0f} interleaved rounds: medians of their samples and of their ratios
our router's interpreter {interpreter}, uvloop {version("uvloop")}, kernel {platform.release()}
stolen by the host: {value["router_core_steal"]:.1%} of the router's core, {value["load_core_steal"]:.1%} of the other
core of engines and client: {value["load_core_busy"]:.0%} busy
load average {value["load_average_before"]:.1f} before, {value["load_average_after"]:.1f} after{busy}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """CPU per request and per chunk of our router beside a peer's (environment: QUICK=1, JSON=file)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.router", description=main.__doc__)
    parser.parse_args(arguments)
    json_name = os.environ.get("JSON", "")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(SIGNALLED + signum))
    try:
        _run(_plan(quick=os.environ.get("QUICK", "0") not in {"", "0"}), Path(json_name) if json_name else None)
    except (LoadError, PeerError, ProcessError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return SIGNALLED + signal.SIGTERM
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
