"""What a process tree has cost and what the host took: the scheduler's own account.

Boundary: reads the kernel's counters; knows nothing of routers or workloads.
The CPU clock of a process counts all its threads, ended ones too, in nanoseconds: no sampling and no tick of 10 ms.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

_SCHEDULER_CLOCK = 2
_STAT_COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def _process_ns(pid: int) -> int:
    # What clock_getcpuclockid(3) returns for a pid: Python offers that call for threads only.
    return time.clock_gettime_ns((~pid << 3) | _SCHEDULER_CLOCK)


def tree(root: int) -> tuple[int, ...]:
    """The pids of a process and its living descendants, sorted."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The command may hold blanks and parentheses: count from the last one.
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = {root}
    while grown := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= grown
    return tuple(sorted(found))


def tree_ns(root: int) -> int:
    """CPU nanoseconds that a process and its living descendants have used.

    Raises:
        OSError: a process of the tree ended meanwhile.
    """
    return sum(_process_ns(pid) for pid in tree(root))


def tree_rss_bytes(root: int) -> int:
    """Resident memory of a process and its living descendants."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in tree(root))
    return pages * resource.getpagesize()


@dataclass(frozen=True)
class CoreTicks:
    """The kernel's ticks of one core since it started, by what they were spent on."""

    busy: int
    idle: int
    steal: int

    def since(self, earlier: CoreTicks) -> CoreTicks:
        """What was spent after `earlier`."""
        return CoreTicks(self.busy - earlier.busy, self.idle - earlier.idle, self.steal - earlier.steal)

    @property
    def busy_share(self) -> float:
        """Share of the time in which the core ran something, 0 to 1."""
        return self.busy / max(1, self.busy + self.idle + self.steal)

    @property
    def steal_share(self) -> float:
        """Share of the time in which the host ran something else, 0 to 1."""
        return self.steal / max(1, self.busy + self.idle + self.steal)


def core_ticks(core: int) -> CoreTicks:
    """The ticks of one core now."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name == f"cpu{core}":
            ticks = dict(zip(_STAT_COLUMNS, map(int, numbers), strict=False))
            idle = ticks["idle"] + ticks["iowait"]
            return CoreTicks(sum(ticks.values()) - idle - ticks["steal"], idle, ticks["steal"])
    raise ValueError(f"this machine has no core {core}")
