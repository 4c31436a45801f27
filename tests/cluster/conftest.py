"""Fixtures of clusters, and what a machine looks like before and after one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.cluster.fixtures import control_plane, full_cluster, shared_node
from e2e.cluster.processes import marked

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["control_plane", "full_cluster", "machine", "shared_node"]

SYSCTLS = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()


def _names(folder: str) -> list[str]:
    path = Path(folder)
    return sorted(found.name for found in path.iterdir()) if path.is_dir() else []


def _machine(name: str) -> dict[str, object]:
    """Everything a cluster of that name could leave on the machine, by kind."""
    sockets = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "processes": sorted(marked(name)),
        "command lines": [line for line in _output("ps", "-eo", "stat,args") if f"/{name}/" in line and line[0] != "Z"],
        "mounts": sorted(mounts),
        "links": sorted(_names("/sys/class/net")),
        "routes": sorted(_output("ip", "route", "show", "table", "all")),
        "tables": sorted(_output("nft", "list", "tables")),
        "iptables": [line for line in _output("iptables-save") if line.startswith("-A")],
        "namespaces": sorted(set(_output("lsns", "-t", "net", "-n", "-o", "NS"))),
        "named namespaces": _names("/run/netns"),
        "control groups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/kubepods")),
        "sockets": sorted(path for path in sockets if "containerd" in path or f"/{name}/" in path),
        "folders": [
            str(path)
            for path in (
                Path("/run/pdpool", name),
                Path("/var/lib/kubelet"),
                Path("/run/containerd"),
                Path("/usr/libexec/kubernetes"),
            )
            if path.exists()
        ],
        "answers of CNI": _names("/var/lib/cni/results"),
        "log links": _names("/var/log/containers"),
        "kernel parameters": {key: Path("/proc/sys", key).read_text().strip() for key in SYSCTLS},
    }


@pytest.fixture
def machine() -> Callable[[str], dict[str, object]]:
    """What the machine looks like now, as far as a cluster of the given name can change it."""
    return _machine
