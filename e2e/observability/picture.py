"""`python -m e2e.observability.picture`: the dashboard's panels as a picture, from what a real Prometheus saw.

Boundary: drives a router between stand-in engines through a small day: quiet, busy, an engine that is gone for a while,
quiet. Engines' times are made up, so the picture shows what panels look like and not how fast anything is. Needs
matplotlib, which only the benchmark's dependency group has.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from e2e.observability import dashboard
from e2e.observability.watched import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.observability.answers import Board
    from e2e.observability.watched import Watched

FILE: Final = Path(__file__).resolve().parents[2] / "docs" / "img" / "dashboard.png"
ROWS: Final = ("Service level", "Roles", "Transfer", "Prefixes", "Queues")
"""Without those whose subject is not there: no operator sizes the pool, and there are no GPUs."""
LEFT_OUT: Final = frozenset({"The router's own time"})
"""Engines and clients share this process's loop, and would be counted as the router."""
STEP_S: Final = 2.0
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


def draw(
    board: Board,
    titles: Sequence[str],
    start_s: float,
    end_s: float,
    file: Path,
    *,
    left_out: frozenset[str] = frozenset(),
) -> None:
    """Every panel of the rows of these titles, as the dashboard has them, but those that are left out.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see the module's boundary
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [row for row in dashboard.ROWS if row.title in titles]
    across = max(len(row.panels) for row in rows)
    figure = Figure(figsize=(4.0 * across, 2.7 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    for line, row in zip(figure.subplots(len(rows), across, squeeze=False), rows, strict=True):
        panels = [panel for panel in row.panels if panel.title not in left_out]
        for place, axes in enumerate(line):
            if place >= len(panels):
                axes.axis("off")
                continue
            panel = panels[place]
            for legend, points in board.shown(panel, start_s, end_s, STEP_S).items():
                axes.plot(*zip(*((at - start_s, value) for at, value in points), strict=True), label=legend)
            axes.set_title(f"{row.title}: {panel.title} ({panel.unit})", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.tick_params(labelsize=7)
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize=6, loc="upper left")
    figure.savefig(file, dpi=70)


async def _run(file: Path, part_s: float) -> None:
    limits = {"maxConcurrent": ROOM}
    with tempfile.TemporaryDirectory(prefix="pdpool-picture-") as folder:
        async with watched(Path(folder), limits=limits) as pool:
            start_s = time.time()
            await day(pool, part_s)
            await asyncio.to_thread(draw, pool.board, ROWS, start_s, time.time(), file, left_out=LEFT_OUT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture of the documentation."""
    parser = argparse.ArgumentParser(prog="python -m e2e.observability.picture", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=FILE, help="the file (default: the documentation's)")
    parser.add_argument("--seconds", type=float, default=200, help="length of the day (default: 200)")
    given = parser.parse_args(arguments)
    importlib.import_module("matplotlib")  # its absence is told before the day, not after it
    uvloop.run(_run(given.out, given.seconds / 5))
    print(given.out)


if __name__ == "__main__":
    main()
