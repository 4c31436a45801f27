"""The progress of a run of steps, some side by side: a live table on a terminal, plain lines elsewhere.

Boundary: shows; it starts and judges nothing. What the tools print on stderr meanwhile appears above the table.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

MARKS = {"waiting": "[dim]·[/dim]", "done": "[green]✓[/green]", "failed": "[red]✗[/red]"}


@dataclass
class Step:
    """One row: what is done, since when, and while it runs the last word about it."""

    name: str
    state: str = "waiting"
    start_s: float = 0.0
    took_s: float = 0.0
    word: str = ""

    def elapsed_s(self) -> float:
        """Seconds that it took, or takes so far."""
        return time.monotonic() - self.start_s if self.state == "running" else self.took_s


class View:
    """Every step of a run, in order; use as a context manager. Steps may run in several threads."""

    def __init__(self, names: list[str], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._steps = {name: Step(name) for name in names}
        self._spinners = {name: Spinner("dots") for name in names}
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()
        self._live = (
            Live(get_renderable=self._table, console=self.console, refresh_per_second=4)
            if self.console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun_s

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Run one step; an error marks it as failed and passes through."""
        step = self._steps[name]
        step.state, step.start_s = "running", time.monotonic()
        self._line(f"{name} …")
        try:
            yield step
        except BaseException:
            step.took_s, step.state = step.elapsed_s(), "failed"
            self._line(f"{name}: FAILED after {step.took_s:.1f} s")
            raise
        step.took_s, step.state = step.elapsed_s(), "done"
        step.word = ""
        self._line(f"{name}: done in {step.took_s:.1f} s")

    def say(self, step: Step, word: str) -> None:
        """The last word about a step that runs."""
        step.word = word
        self._line(f"{step.name}: {word}")

    def _line(self, text: str) -> None:
        if self._live is None:
            with self._lock:
                self.console.print(f"[{self.elapsed_s:6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for step in self._steps.values():
            mark = self._spinners[step.name] if step.state == "running" else MARKS[step.state]
            elapsed = f"{step.elapsed_s():.1f} s" if step.state != "waiting" else ""
            table.add_row(mark, step.name, elapsed, f"[dim]{step.word[:100]}[/dim]")
        return table
