"""Progress a person can follow: each step with its elapsed time and, when it fails, its log's end and path.

Boundary: prints to stderr, so that stdout stays free for what a command answers (a kubeconfig, a path, JSON).
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAIL_LINES = 15
LINE_WIDTH = 400


class ClusterError(Exception):
    """A step failed for a reason worth telling; `log` is the file that says more, if there is one."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        message = super().__str__()
        if self.log is None:
            return message
        lines = "".join(f"\n    | {line}" for line in last_lines(self.log))
        return f"{message}\n  last lines of {self.log}:{lines}"


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """The last `count` lines of a log, cut to a readable width; empty if the file is missing."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - count * LINE_WIDTH * 4))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line[:LINE_WIDTH] for line in text.splitlines()[-count:]]


class Progress:
    """Prints steps under one title, counting seconds from its creation."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._start_s = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        if not self._quiet:
            elapsed_s = time.monotonic() - self._start_s
            print(f"[{self._title} {elapsed_s:7.1f}s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announce a step, then say how long it took or that it failed; the error passes through."""
        self.say(f"{name} …")
        start_s = time.monotonic()
        try:
            yield
        except BaseException:
            self.say(f"{name}: FAILED after {time.monotonic() - start_s:.1f} s")
            raise
        self.say(f"{name}: done in {time.monotonic() - start_s:.1f} s")
