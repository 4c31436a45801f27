"""Running the machine's programs to their end, with a bound in time and an error that says what went wrong.

Boundary: programs that end by themselves; those that stay are started in `processes.py`.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DEFAULT_TIMEOUT_S = 120.0


def run(
    command: Sequence[str | Path],
    *,
    text_input: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> str:
    """The standard output of a program that succeeded.

    Raises `ClusterError` with the program's own words when it fails, cannot be started or takes longer than
    `timeout_s`.
    """
    shown = " ".join(str(word) for word in command)
    try:
        done = subprocess.run(
            [str(word) for word in command],
            input=text_input,
            stdin=subprocess.DEVNULL if text_input is None else None,
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"`{shown}` took longer than {timeout_s:.0f} s") from late
    except OSError as missing:
        raise ClusterError(f"cannot start `{shown}`: {missing}") from missing
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-1000:]
        raise ClusterError(f"`{shown}` failed with status {done.returncode}: {words}")
    return done.stdout


def succeeds(
    command: Sequence[str | Path], timeout_s: float = DEFAULT_TIMEOUT_S, *, folder: Path | None = None
) -> bool:
    """Whether a program ends well; for clean-up, where a failure means that there was nothing to do."""
    try:
        run(command, timeout_s=timeout_s, folder=folder)
    except ClusterError:
        return False
    return True
