"""`python -m e2e.observability.picture RECORD`: the dashboard's panels of stand-ins, as a real Prometheus saw them.

Boundary: drives a router between stand-in engines through a small day: quiet, busy, an engine that is gone for a while,
quiet. Engines' times are made up, so the record shows what panels look like and not how fast anything is.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from e2e.observability.watched import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.observability.watched import Watched

ROWS: Final = ("Service level", "Roles", "Transfer", "Prefixes", "Queues")
"""Without those whose subject is not there: no operator sizes the pool, and there are no GPUs."""
LEFT_OUT: Final = frozenset({"The router's own time"})
"""Engines and clients share this process's loop, and would be counted as the router."""
QUIET, BUSY = 3, 28
PROMPT_WORDS: Final = 160
ROOM: Final = 20
"""Requests that the router lets in at once, so that a busy time has a line."""


async def _client(pool: Watched, number: int, until_s: float) -> None:
    """Conversations of one client, each turn longer than the one before."""
    conversation = 0
    while time.monotonic() < until_s:
        conversation += 1
        prompt = f"conversation {conversation} of client {number}: " + "the quick brown fox " * PROMPT_WORDS
        for turn in range(4):
            if time.monotonic() >= until_s:
                return
            await pool.ask(prompt, 40)
            prompt += f"turn {turn} " * 40


async def _crowd(pool: Watched, clients: int, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(_client(pool, number, until_s) for number in range(clients)))


async def day(pool: Watched, part_s: float) -> None:
    """Five parts of equal length."""
    for engine in pool.prefill:
        engine.set_pace(prefill_s_per_token=0.0004)
    for engine in pool.decode:
        engine.set_pace(step_s=0.025)
    await _crowd(pool, QUIET, part_s)
    await _crowd(pool, BUSY, part_s)
    await pool.decode[0].close_listener()
    await _crowd(pool, BUSY // 2, part_s)
    await pool.decode[0].open_listener()
    await _crowd(pool, BUSY // 2, part_s)
    await _crowd(pool, QUIET, part_s)


async def _run(file: Path, part_s: float) -> None:
    limits = {"maxConcurrent": ROOM}
    with tempfile.TemporaryDirectory(prefix="pdpool-picture-") as folder:
        async with watched(Path(folder), limits=limits) as pool:
            start_s = time.time()
            await day(pool, part_s)
            record = await asyncio.to_thread(pool.board.recorded, ROWS, start_s, time.time(), LEFT_OUT)
            record.write(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the panels through a small day."""
    parser = argparse.ArgumentParser(prog="python -m e2e.observability.picture", description=main.__doc__)
    parser.add_argument("record", type=Path, help="the file to write, for `drawing`")
    parser.add_argument("--seconds", type=float, default=200, help="length of the day (default: 200)")
    given = parser.parse_args(arguments)
    uvloop.run(_run(given.record, given.seconds / 5))


if __name__ == "__main__":
    main()
