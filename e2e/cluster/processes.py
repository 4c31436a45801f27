"""Starting the cluster's daemons, finding them again, and ending them for certain.

Boundary: processes of this machine, recognised by an environment variable that only our daemons (and what they start)
carry,
or by pid together with start time; never by a name, which others may share.
Why a marker: a pid written after the start is lost when the tool is killed in between, the environment of a process
is not,
and the shims of containerd inherit it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.commands import run
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from e2e.cluster.ledger import Ledger

MARKER = "PDPOOL_CLUSTER_PROCESS"
POLL_S = 0.05
END_TIMEOUT_S = 30.0

# The shell forks and executes the program in one step, so `$!` is the daemon's own pid; it becomes a child of init,
# so that it neither dies with this tool nor stays behind as its zombie.
_DETACH = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


@dataclass(frozen=True)
class Daemon:
    """A program that stays: `name` within its cluster, its command line and the file its output goes to."""

    name: str
    command: Sequence[str]
    log: Path


def identify(cluster: str, ledger: Ledger) -> None:
    """Choose what the cluster's processes will bear.

    With a random part: a container of this machine may run a cluster of the same name, and its processes show here too.
    """
    ledger.record("marker", f"{cluster}.{secrets.token_hex(4)}")


def start(daemon: Daemon, ledger: Ledger) -> int:
    """Start a daemon detached from this process and return its pid; the cluster must have been identified."""
    marker = f"{ledger.identity}/{daemon.name}"
    daemon.log.parent.mkdir(parents=True, exist_ok=True)
    search_path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    environment = {MARKER: marker, "PATH": search_path, "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    answer = run(
        ["setsid", "--wait", "sh", "-c", _DETACH, "sh", daemon.log, *daemon.command],
        environment=environment,
        folder=Path("/"),
    )
    pid = int(answer)
    ledger.record("process", daemon.name, f"{pid} {_start_time(pid)}")
    return pid


def alive(ledger: Ledger) -> dict[str, bool]:
    """For each daemon the ledger knows, whether its last incarnation still runs."""
    return {entry.name: _is_running(entry.value) for entry in ledger.entries("process")}


def wait_until(ready: Callable[[], bool], what: str, ledger: Ledger, log: Path, timeout_s: float) -> None:
    """Poll until `ready`; raises `ClusterError` with the end of `log` when a daemon dies or the time is up."""
    deadline_s = time.monotonic() + timeout_s
    while not ready():
        dead = sorted(name for name, running in alive(ledger).items() if not running)
        if dead:
            raise ClusterError(f"{dead[0]} ended while waiting for {what}", log.with_name(f"{dead[0]}.log"))
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"{what} did not come within {timeout_s:.0f} s", log)
        time.sleep(POLL_S)


def marked(ledger: Ledger) -> set[int]:
    """The pids whose environment says that they belong to the cluster of that ledger."""
    return bearing(f"{ledger.identity}/") if ledger.identity else set()


def bearing(start_of_marker: str) -> set[int]:
    """The pids whose marker starts so."""
    needle = f"{MARKER}={start_of_marker}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if any(variable.startswith(needle) for variable in environment.split(b"\0")):
                found.add(int(folder.name))
    return found


def named(ledger: Ledger, daemon: str) -> set[int]:
    """The pids of one daemon of the cluster and of what it started."""
    needle = f"{MARKER}={ledger.identity}/{daemon}\0".encode()
    return {pid for pid in marked(ledger) if needle in _environment(pid)}


def end(find: Callable[[], Iterable[int]], what: str) -> None:
    """SIGKILL whatever `find` yields until nothing of it runs; raises `ClusterError` if something outlives that.

    Nothing of a test cluster is worth a graceful end: its data is thrown away, and a daemon that shuts down slowly
    restarts others meanwhile.
    """
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while True:
        pids = [pid for pid in find() if _start_time(pid)]
        if not pids:
            return
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"{what} cannot be ended: pids {sorted(pids)}")
        for pid in pids:
            _kill(pid)
        time.sleep(POLL_S)


def is_alive(pid: int, start_time: str) -> bool:
    """Whether the process with that pid is still the one that started at `start_time`."""
    return bool(start_time) and _start_time(pid) == start_time


def start_time_of(pid: int) -> str:
    """What tells this incarnation of a pid from every other: boot and tick of its start; empty if it has ended."""
    return _start_time(pid)


def _is_running(recorded: str) -> bool:
    pid, _, start_time = recorded.partition(" ")
    return is_alive(int(pid), start_time)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _start_time(pid: int) -> str:
    """Empty for a zombie too: it holds nothing any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    state, start_ticks = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}:{start_ticks}"
