"""One run at a time per cluster, and a clear word about who is at it.

Boundary: advisory locks (`flock`) of this machine; the kernel drops them when the holder dies, so a crash never
leaves one behind.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLL_S = 0.2


@contextmanager
def held(path: Path, *, wait_s: float = 0.0, waiting: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock file `path`, waiting at most `wait_s` and telling `waiting` so; it is removed at the end.

    Raises `ClusterError` naming the holder's pid, command and start when it stays taken.
    """
    deadline_s = time.monotonic() + wait_s
    told = wait_s <= 0
    while True:
        stream = _opened(path)
        if _taken(stream, path):
            break
        stream.seek(0)
        holder = stream.read().strip()
        stream.close()
        if not told:
            waiting(f"waiting for another run: {holder}")
            told = True
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"another run is at work on this cluster: {holder or 'unknown'} (lock {path})")
        time.sleep(POLL_S)
    try:
        stream.truncate(0)
        stream.write(f"pid {os.getpid()}, `{' '.join(sys.argv)}`, since {time.strftime('%H:%M:%S')}\n")
        stream.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        stream.close()


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+")


def _taken(stream: IO[str], path: Path) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The former holder may have removed the file between our open and our lock: then we hold a lock nobody else can
    # see.
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
