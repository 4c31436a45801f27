"""`make soak-router`: a great many requests, a share of them cut off by their client, while engines come, go and die.

Boundary: the real command between lean responders; it says whether memory, sockets and counters stay bounded and end
at nothing, not how fast the router is. Every whole answer is checked byte for byte. Two sets of engines, a revision
each, as handoffs are only good within one: the first stays, the second is taken out of the configuration and put back,
and killed now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import httptools
import httpx

from e2e.bench import replies
from e2e.bench.processes import running_anywhere, stop, wait_for, wait_for_line
from e2e.bench.workloads import CHAT_PATH, Workload, serial
from e2e.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT: Final = Workload("S1", "one token", prompt_bytes=1024)
STREAM: Final = Workload("S2", "a stream", prompt_bytes=4096, chunks=8, gap_ms=2)
CUT_SHARE: Final = 0.15
"""Requests whose client leaves at some moment, in whatever phase it then is."""
STREAM_SHARE: Final = 0.3
RESET_SHARE: Final = 0.5
"""Of those that leave; the others end in order."""
CHURN_S: Final = 2.0
KILL_EVERY: Final = 4
WARM_SHARE: Final = 0.3
"""After this share of the requests every pool and cache has its size."""
MAX_BLOCKS: Final = 50_000
"""Of the router's index: by default it is full after a quarter of a million requests like these."""
MORE_RSS_BYTES: Final = 12 * 2**20
MORE_RSS_SHARE: Final = 0.1
SPARE_SOCKETS: Final = 64
_MAY_FAIL: Final = frozenset({502, 503, 504})
_OK: Final = 200
_START_S: Final = 30


class SoakError(Exception):
    """What should have stayed bounded did not, or an answer was wrong."""


class Reading(NamedTuple):
    """The router's process at one moment."""

    rss_bytes: int
    sockets: int


class _Engines:
    """One set of engines: a prefill and a decode of a revision of their own."""

    def __init__(self, revision: str, folder: Path) -> None:
        self.revision = revision
        self._folder = folder
        self._lives = 0

    def start(self, stack: ExitStack) -> None:
        self._lives += 1
        log = self._folder / f"engines-{self.revision}-{self._lives}.log"
        command = [sys.executable, "-m", "e2e.bench.responder", "--prefills", "1", "--decodes", "1"]
        self.process = stack.enter_context(running_anywhere(command, log=log))
        told = [line.split() for line in wait_for_line(self.process, log, _START_S, "ready")]
        self.listed = [
            {"role": role, "url": f"http://127.0.0.1:{port}", "revision": self.revision, "uid": f"{port}-{self._lives}"}
            for role, port, _ in told
        ]


class _Answer:
    """Reads one answer with an independent parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.whole = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = True


class Soak:
    """One run."""

    def __init__(self, requests: int, at_once: int, folder: Path, *, seed: int = 1) -> None:
        self._requests = requests
        self._at_once = at_once
        self._folder = folder
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not secrets
        self._ends: Counter[str] = Counter()
        self._next = 0
        self._file = folder / "router.yaml"
        self._readings: list[Reading] = []

    async def run(self) -> str:
        """Runs it; a summary in words.

        Raises:
            SoakError: see there.
        """
        with ExitStack() as stack:
            stays, changes = _Engines("a", self._folder), _Engines("b", self._folder)
            for engines in (stays, changes):
                engines.start(stack)
            self._configure(stays, changes)
            self._port, admin = free_ports(2)
            self._admin = f"http://127.0.0.1:{admin}"
            log = self._folder / "router.log"
            command = ["pdpool-router", "--config", str(self._file), "--host", "127.0.0.1", "--access-log", "0.01"]
            ports = ["--port", str(self._port), "--admin-port", str(admin)]
            script = Path(sys.executable).with_name(command[0])
            process = stack.enter_context(running_anywhere([str(script), *command[1:], *ports], log=log))
            self._pid = process.pid
            wait_for(process, log, _START_S, f"{self._admin}/readyz")
            churning = asyncio.create_task(self._churn(stack, stays, changes))
            try:
                await asyncio.gather(*(self._ask_on() for _ in range(self._at_once)))
            finally:
                churning.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await churning
            await self._settle()
            return self._judge()

    # --- the load ------------------------------------------------------------------------------------------------
    async def _ask_on(self) -> None:
        reader: asyncio.StreamReader | None = None
        while self._next < self._requests:
            number = self._next
            self._next += 1
            if number % max(1, self._requests // 100) == 0:
                self._readings.append(reading(self._pid))
            if reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            workload = STREAM if self._chance.random() < STREAM_SHARE else SHORT
            writer.write(self._wire(workload, number))
            try:
                if self._chance.random() < CUT_SHARE:
                    await self._leave(reader, writer)
                    reader = None
                else:
                    kept = await self._read(reader, workload, number)
                    if not kept:
                        writer.close()
                        reader = None
            except (ConnectionError, httptools.HttpParserError):
                self._ends["broken"] += 1
                writer.close()
                reader = None
        if reader is not None:
            writer.close()

    def _wire(self, workload: Workload, number: int) -> bytes:
        body = workload.body(number)
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        return f"{head}\r\n\r\n".encode() + body

    async def _leave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Goes away: at once, after a moment, or in the middle of the answer; by a reset or an orderly end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._chance.choice((0, 0.0005, 0.002, 0.01))):
                await reader.read(self._chance.choice((1, 200, 2000)))
        self._ends["left"] += 1
        if self._chance.random() < RESET_SHARE:
            writer.transport.abort()
        else:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, workload: Workload, number: int) -> bool:
        """Reads a whole answer and checks it; whether the connection can be used again."""
        answer = _Answer()
        async with asyncio.timeout(60):
            while not answer.whole:
                data = await reader.read(65_536)
                if not data:
                    self._ends["broken"] += 1
                    return False
                answer.feed(data)
        said = serial(number)
        right = replies.stream(said, workload.chunks) if workload.chunks else replies.completion(said)
        if answer.status == _OK and answer.body == right:
            self._ends["whole"] += 1
        elif answer.status in _MAY_FAIL or (workload.chunks and b'data: {"error"' in answer.body):
            self._ends[f"failed {answer.status}"] += 1
        else:
            raise SoakError(f"request {number}: status {answer.status}, {len(answer.body)} bytes that are not its own")
        return True

    # --- the engines ---------------------------------------------------------------------------------------------
    def _configure(self, *present: _Engines) -> None:
        content = {
            "model": {"servedNames": [replies.MODEL]},
            "endpoints": {"static": [one for engines in present for one in engines.listed]},
            # Two legs, however short the prompt; and what is known of prompts is full soon, so that all can be flat.
            "routing": {"localPrefill": {"maxUncachedTokens": 0}, "index": {"maxBlocks": MAX_BLOCKS}},
        }
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self._file)

    async def _churn(self, stack: ExitStack, stays: _Engines, changes: _Engines) -> None:
        turn = 0
        while True:
            await asyncio.sleep(CHURN_S)
            turn += 1
            if turn % KILL_EVERY == 0:
                await asyncio.to_thread(stop, changes.process)  # while it is chosen
                await asyncio.to_thread(changes.start, stack)
                self._configure(stays, changes)
            elif turn % 2:
                self._configure(stays)
            else:
                self._configure(stays, changes)

    # --- the verdict ---------------------------------------------------------------------------------------------
    async def _settle(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(100):
                text = (await client.get(f"{self._admin}/metrics")).text
                busy = re.findall(
                    r"^(pdpool_router_(?:inflight|unstarted\w*|queued)\S*) (?!0(?:\.0)?$)(\S+)$", text, re.MULTILINE
                )
                if not busy:
                    break
                await asyncio.sleep(0.1)
            else:
                raise SoakError(f"counters do not end at 0: {busy}")
            if wrong := re.findall(r'^pdpool_router_requests_total\{.*code="500".*$', text, re.MULTILINE):
                raise SoakError(f"defects of the router's own: {wrong}")
        self._readings.append(reading(self._pid))

    def _judge(self) -> str:
        warm = self._readings[int(len(self._readings) * WARM_SHARE) :]
        first, last = warm[0], warm[-1]
        most = max(each.sockets for each in self._readings)
        words = (
            f"{self._requests} requests: {dict(sorted(self._ends.items()))}; RSS {first.rss_bytes >> 20} MiB when warm,"
            f" {last.rss_bytes >> 20} MiB at the end; at most {most} sockets, {last.sockets} at the end"
        )
        if last.rss_bytes > first.rss_bytes * (1 + MORE_RSS_SHARE) + MORE_RSS_BYTES:
            raise SoakError(f"memory grows: {words}")
        # A client's connection, and a leg's; kept ones and listeners besides.
        if most > 4 * self._at_once + SPARE_SOCKETS:
            raise SoakError(f"sockets are not bounded: {words}")
        if not self._ends["whole"]:
            raise SoakError(f"nothing was answered: {words}")
        return words


def reading(pid: int) -> Reading:
    """Memory and sockets of a process now."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    sockets = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets += str(fd.readlink()).startswith("socket:")
    return Reading(int(fields[1]) * os.sysconf("SC_PAGE_SIZE"), sockets)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where something was not bounded or wrong."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.soak", description="Soak the router.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdpool-soak-") as folder:
        try:
            said = asyncio.run(Soak(chosen.requests, chosen.at_once, Path(folder), seed=chosen.seed).run())
        except SoakError as fault:
            print(fault)
            return 1
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
