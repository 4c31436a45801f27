"""What is measured of one router in one round: each measure offers a workload and returns its figures.

Boundary: offers and reads; who is measured when is `router`'s business. Every answer is checked, and a measure whose
answers are not all right has no figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from e2e.bench.load import Client, LoadError
from e2e.bench.report import Row
from e2e.bench.workloads import CROWD, LATENCY, W1, Workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from e2e.bench.contest import Contestant

WARM_UP_REQUESTS: Final = 40
WARM_UP_CHUNKS: Final = 20
NS_PER_US: Final = 1000
FAULTS_SHOWN: Final = 3
SETTLE_S: Final = 30
SETTLE_STEP_S: Final = 0.25
SETTLED_SHARE: Final = 0.1
CLOSED_AT_ONCE: Final = 32
_KB: Final = 1000
_QUANTILES: Final = {"p50": 50, "p99": 99, "p999": 99.9}


class Bench:
    """Measures; numbers every request of a run once."""

    def __init__(self) -> None:
        self._next_number = 0
        self.answered = 0
        """Answers that were checked byte for byte."""
        self.answered_by_form = 0

    def _numbers(self, count: int) -> range:
        first, self._next_number = self._next_number, self._next_number + count
        return range(first, self._next_number)

    async def warm_up(self, contestant: Contestant, workload: Workload) -> None:
        """Let a router answer a few requests that are not measured.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        count = WARM_UP_REQUESTS
        if workload.streams:
            workload, count = dataclasses.replace(workload, chunks=WARM_UP_CHUNKS), 1
        async with self._asking(contestant, workload, count) as client:
            await client.offer(self._numbers(count), seed=0)

    async def settle(self, contestant: Contestant) -> None:
        """Wait until a router that failed has dropped what it had begun: the next one is measured on the same core."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SETTLE_S
        with contextlib.suppress(OSError):  # it has ended
            while loop.time() < until_s:
                before_ns, before_s = contestant.used_ns(), loop.time()
                await asyncio.sleep(SETTLE_STEP_S)
                if contestant.used_ns() - before_ns < SETTLED_SHARE * 1e9 * (loop.time() - before_s):
                    return

    async def open_loop(
        self, contestant: Contestant, workload: Workload, offered_s: float, seed: int
    ) -> tuple[float, list[float]]:
        """CPU microseconds a request, and each answer's seconds since it was due to be asked for, in order of size.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        count = int(workload.rate_per_s * offered_s)
        async with self._asking(contestant, workload, count) as client:
            began_ns = contestant.used_ns()
            await client.offer(self._numbers(count), seed)
            used_ns = contestant.used_ns() - began_ns
        return used_ns / NS_PER_US / count, sorted(client.tally.latencies_s)

    async def per_chunk(self, contestant: Contestant, workload: Workload, window_s: float) -> float:
        """CPU microseconds a chunk while long streams run.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        async with self._asking(contestant, workload, workload.streams) as client:
            used_ns, events = await client.hold(self._numbers(workload.streams), window_s, contestant.used_ns)
        return used_ns / NS_PER_US / events

    async def closed_loop(self, contestant: Contestant, count: int) -> tuple[float, float]:
        """CPU microseconds a request when there is always more to do, and requests a second then.

        Raises:
            LoadError: an answer is wrong or missing.
        """
        async with self._asking(contestant, W1, count) as client:
            began_ns = contestant.used_ns()
            took_s = await client.saturate(self._numbers(count), CLOSED_AT_ONCE)
            used_ns = contestant.used_ns() - began_ns
        return used_ns / NS_PER_US / count, count / took_s

    async def crowd(self, contestant: Contestant, window_s: float) -> dict[str, float]:
        """Figures of a great many slow streams, by the names of their rows.

        Raises:
            LoadError: a stream did not begin, broke, or brought something wrong.
        """
        client = Client(contestant.port, CROWD, contestant.answers)
        found = await client.crowd(
            self._numbers(CROWD.streams), window_s, read_ns=contestant.used_ns, rss_bytes=contestant.rss_bytes
        )
        self._count(contestant, client)
        return {
            "crowd_chunk": found.used_ns / NS_PER_US / max(found.events, 1),
            "crowd_core": found.used_ns / 1e9 / found.seconds,
            "crowd_rate": found.events / found.seconds,
            "crowd_rss": found.more_rss_bytes / _KB / CROWD.streams,
        }

    def _count(self, contestant: Contestant, client: Client) -> None:
        if contestant.answers.is_exact:
            self.answered += client.tally.answered
        else:
            self.answered_by_form += client.tally.answered

    @contextlib.asynccontextmanager
    async def _asking(self, contestant: Contestant, workload: Workload, expected: int) -> AsyncIterator[Client]:
        """A client, all of whose answers have to be right in the end."""
        client = Client(contestant.port, workload, contestant.answers)
        try:
            yield client
            self._check(client, contestant, workload, expected)
        finally:
            await client.close()

    def _check(self, client: Client, contestant: Contestant, workload: Workload, expected: int) -> None:
        tally = client.tally
        self._count(contestant, client)
        if tally.faults or tally.answered != expected:
            shown = "; ".join(tally.faults[:FAULTS_SHOWN])
            message = f"{contestant.title}, {workload.name}: {len(tally.faults)} of {expected} requests failed: {shown}"
            raise LoadError(message)


@dataclass(frozen=True)
class Measure:
    """Rows that are measured together, and how; `take` gets a round's number."""

    rows: Mapping[str, tuple[str, str]]
    """Name → title and unit."""
    warm_up: Workload
    take: Callable[[Bench, Contestant, int], Coroutine[object, object, dict[str, float]]]

    def empty_rows(self) -> list[Row]:
        """Rows without samples."""
        return [Row(name, title, unit) for name, (title, unit) in self.rows.items()]


def per_request(workload: Workload, offered_s: float) -> Measure:
    """CPU of a request in an open loop."""

    async def take(bench: Bench, contestant: Contestant, number: int) -> dict[str, float]:
        used_us, _ = await bench.open_loop(contestant, workload, offered_s, seed=number)
        return {workload.name: used_us}

    title = f"{workload.name.upper()} {workload.title}"
    return Measure({workload.name: (title, "CPU µs/request")}, workload, take)


def per_chunk(workload: Workload, window_s: float) -> Measure:
    """CPU of a chunk of long streams."""

    async def take(bench: Bench, contestant: Contestant, number: int) -> dict[str, float]:
        del number
        return {workload.name: await bench.per_chunk(contestant, workload, window_s)}

    return Measure({workload.name: (f"W3 {workload.title}", "CPU µs/chunk")}, workload, take)


def latency(offered_s: float) -> Measure:
    """How long a request takes whose two legs take nothing, at a fixed rate."""

    async def take(bench: Bench, contestant: Contestant, number: int) -> dict[str, float]:
        _, took_s = await bench.open_loop(contestant, LATENCY, offered_s, seed=number)
        return {f"latency_{name}": 1000 * _quantile(took_s, share) for name, share in _QUANTILES.items()}

    rows = {f"latency_{name}": (f"{LATENCY.rate_per_s:.0f} requests/s, {name}", "ms") for name in _QUANTILES}
    return Measure(rows, LATENCY, take)


def closed_loop(count: int) -> Measure:
    """CPU of a request when the router always has more to do; what one core could do at that price."""

    async def take(bench: Bench, contestant: Contestant, number: int) -> dict[str, float]:
        del number
        used_us, rate = await bench.closed_loop(contestant, count)
        return {"closed_us": used_us, "closed_core": 1e6 / used_us, "closed_rate": rate}

    rows = {
        "closed_us": (f"closed loop, {CLOSED_AT_ONCE} at once", "CPU µs/request"),
        "closed_core": ("closed loop: what a whole core could do", "requests/s"),
        "closed_rate": ("closed loop: as far as the client's core went", "requests/s"),
    }
    return Measure(rows, W1, take)


def crowd(window_s: float) -> Measure:
    """A great many slow streams: what a chunk costs, and what each of them holds in memory."""

    async def take(bench: Bench, contestant: Contestant, number: int) -> dict[str, float]:
        del number
        return await bench.crowd(contestant, window_s)

    rows = {
        "crowd_chunk": (CROWD.title, "CPU µs/chunk"),
        "crowd_core": ("4,000 streams: CPU", "cores"),
        "crowd_rate": ("4,000 streams: what came, of 32,000", "chunks/s"),
        "crowd_rss": ("4,000 streams: memory of each", "kB/stream"),
    }
    return Measure(rows, CROWD, take)


def _quantile(ordered: list[float], share: float) -> float:
    """A percentile, by the nearest rank."""
    if share == 50:  # noqa: PLR2004 - the median
        return statistics.median(ordered)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
