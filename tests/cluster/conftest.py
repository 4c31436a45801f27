"""Fixtures of clusters, and what a machine looks like before and after one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import debian
from e2e.cluster.fixtures import control_plane, full_cluster, shared_node
from e2e.cluster.paths import data_root, run_root
from e2e.cluster.processes import bearing
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["control_plane", "full_cluster", "machine", "shared_node", "traces"]

KILLS = "test_cluster_kills.py"
SYSCTLS = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take the machine's node down come first: later there are fixtures of others in it."""
    items.sort(key=lambda item: item.path.name != KILLS)


def _output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()


def _names(folder: str) -> list[str]:
    path = Path(folder)
    return sorted(found.name for found in path.iterdir()) if path.is_dir() else []


def _mounts() -> list[str]:
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _sockets() -> list[str]:
    return sorted(line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:])


def _traces(name: str) -> dict[str, list[str]]:
    """What bears the cluster's name, by kind; kinds of which there is nothing are left out."""
    part = f"/{name}/"
    found = {
        "processes": [str(pid) for pid in bearing(f"{name}.")],
        "command lines": [line for line in _output("ps", "-ww", "-eo", "stat,args") if part in line and line[0] != "Z"],
        "mounts": [path for path in _mounts() if part in path],
        "sockets": [path for path in _sockets() if part in path],
        "folders": [str(path) for path in (run_root() / name, data_root() / name / "pki") if path.exists()],
    }
    return {kind: things for kind, things in found.items() if things}


def _machine(name: str) -> dict[str, object]:
    """Everything that a full cluster changes or could leave on the machine, by kind."""
    shared = [Path("/var/lib/kubelet"), Path("/run/containerd"), Path("/usr/libexec/kubernetes")]
    return {
        "traces": _traces(name),
        "mounts": _mounts(),
        "links": _names("/sys/class/net"),
        "routes": sorted(_output("ip", "route", "show", "table", "all")),
        "tables": sorted(_output("nft", "list", "tables")),
        "iptables": [line for line in _output("iptables-save") if line.startswith("-A")],
        "namespaces": sorted(set(_output("lsns", "-t", "net", "-n", "-o", "NS"))),
        "named namespaces": _names("/run/netns"),
        "control groups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("*/kubepods")),
        "sockets": [path for path in _sockets() if "containerd" in path],
        "folders": [str(path) for path in shared if path.exists()],
        "answers of CNI": _names("/var/lib/cni/results"),
        "log links": _names("/var/log/containers"),
        "kernel parameters": {key: Path("/proc/sys", key).read_text().strip() for key in SYSCTLS},
    }


@pytest.fixture
def traces() -> Callable[[str], dict[str, list[str]]]:
    """What bears a cluster's name on this machine now."""
    return _traces


@pytest.fixture
def machine() -> Callable[[str], dict[str, object]]:
    """What the machine looks like now, as far as a full cluster can change it; for tests that have the node alone."""
    # A fresh machine lacks the programs that tell, and installing them would look like a change.
    debian.ensure(debian.NODE_PACKAGES, Progress("tests"))
    return _machine
