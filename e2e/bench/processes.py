"""Child processes that are pinned to a core and end when the benchmark ends, however it ends.

Boundary: starts, waits for and stops; the kernel kills a child whose parent is gone, also after a kill -9.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from e2e.cluster.progress import last_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

STOP_GRACE_S = 5
POLL_S = 0.05


class ProcessError(Exception):
    """A child ended early or did not become ready; the message has the end of its log."""


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """The command on one core, killed by the kernel when its parent ends."""
    return ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", str(core), *command]


@contextmanager
def running(
    command: Sequence[str], *, core: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command pinned to a core while the block lasts; its output goes to the log."""
    with running_anywhere(pinned(core, command), log=log, environment=environment) as child:
        yield child


@contextlib.contextmanager
def running_anywhere(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on whatever core is free while the block lasts; its output goes to the log."""
    with log.open("ab") as stream:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ask a child and its group to end, then make them."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_GRACE_S)


def wait_for(
    child: subprocess.Popen[bytes],
    log: Path,
    deadline_s: float,
    url: str,
    fits: Callable[[bytes], bool] = lambda _: True,
) -> None:
    """Return when the URL answers 200, and with what `fits`.

    Raises:
        ProcessError: the child ended, or the time is over.
    """
    until_s = time.monotonic() + deadline_s
    # One client for all tries: each would load the certificates of the system anew.
    with httpx.Client(timeout=1, trust_env=False) as client:
        while time.monotonic() < until_s:
            _check_alive(child, log)
            with contextlib.suppress(httpx.TransportError):
                answer = client.get(url)
                if answer.status_code == httpx.codes.OK and fits(answer.content):
                    return
            time.sleep(POLL_S)
    raise ProcessError(f"{url} did not answer as it should within {deadline_s:.0f} s; {_tail(log)}")


def wait_for_line(child: subprocess.Popen[bytes], log: Path, deadline_s: float, line: str) -> list[str]:
    """The lines of the log up to `line`, once it is there.

    Raises:
        ProcessError: the child ended, or the time is over.
    """
    until_s = time.monotonic() + deadline_s
    while time.monotonic() < until_s:
        lines = log.read_text().splitlines()
        if line in lines:
            return lines[: lines.index(line)]
        _check_alive(child, log)
        time.sleep(POLL_S)
    raise ProcessError(f"no line `{line}` within {deadline_s:.0f} s; {_tail(log)}")


def _check_alive(child: subprocess.Popen[bytes], log: Path) -> None:
    if child.poll() is not None:
        raise ProcessError(f"process ended with {child.returncode}; {_tail(log)}")


def _tail(log: Path) -> str:
    return f"last lines of {log}:" + "".join(f"\n    | {line}" for line in last_lines(log))
