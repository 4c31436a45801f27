"""Undoing everything a ledger tells of, in the order that nothing can be made anew meanwhile.

Boundary: works from the ledger, the marker and the kernel's own lists only; it needs no daemon alive and no program
of the cluster.
Each step finds out for itself whether there is anything to do, so it can be killed and run again.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.commands import run, succeeds
from e2e.cluster.processes import end, marked, named
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.ledger import Ledger

RESTARTERS = ("kubelet", "containerd", "controller-manager", "scheduler")
GONE_TIMEOUT_S = 20.0
POLL_S = 0.1


def undo(cluster: str, ledger: Ledger, kept: frozenset[Path] = frozenset()) -> None:
    """Take down everything of the cluster and at last its ledger; folders in `kept` stay.

    Raises `ClusterError` if something cannot be removed; the ledger then stays for the next attempt.
    """
    _end_processes(cluster, ledger)
    folders = [Path(entry.name) for entry in ledger.entries("folder")]
    _remove_shim_sockets(folders)
    _unmount_below(folders)
    _remove_network(ledger)
    _remove_cgroups(ledger)
    _restore_sysctls(ledger)
    _remove_cni_results(folders)
    for entry in ledger.entries("file-prefix"):
        _remove_prefixed(Path(entry.name))
    _remove_log_links(folders)
    for entry in ledger.entries("shared-folder"):
        _remove_empty_below(Path(entry.name))
    # Folders last, newest first: what they hold told the steps above where to look.
    for folder in dict.fromkeys(reversed(folders)):
        _remove_folder(folder, kept | {ledger.path})
    ledger.path.unlink(missing_ok=True)
    _remove_if_empty(ledger.path.parent)


def _end_processes(cluster: str, ledger: Ledger) -> None:
    for name in RESTARTERS:
        end(lambda name=name: named(ledger, name), name)  # type: ignore[misc]
    end(lambda: marked(ledger), f"the daemons of cluster {cluster}")
    end(lambda: set(_contained(ledger)), f"the containers of cluster {cluster}")


def _contained(ledger: Ledger) -> Iterator[int]:
    """The pids in the cluster's cgroups: containers do not carry our marker."""
    for group in _cgroups(ledger):
        for listing in group.rglob("cgroup.procs"):
            try:
                yield from (int(pid) for pid in listing.read_text().split())
            except OSError:
                continue


def _cgroups(ledger: Ledger) -> list[Path]:
    return [path for entry in ledger.entries("cgroup") if (path := Path(entry.name)).is_dir()]


def _remove_shim_sockets(folders: list[Path]) -> None:
    """A killed shim leaves its socket in a folder that all instances of containerd share; its bundle says which."""
    for folder in folders:
        for note in folder.glob("containerd/state/io.containerd.runtime.v2.task/*/*/address"):
            Path(note.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)


def _unmount_below(folders: list[Path]) -> None:
    deadline_s = time.monotonic() + GONE_TIMEOUT_S
    while mounts := _mounts_below(folders):
        for mount in mounts:
            if not succeeds(["umount", mount]) and time.monotonic() < deadline_s:
                succeeds(["umount", "--lazy", mount])
        if time.monotonic() >= deadline_s:
            for mount in _mounts_below(folders):
                run(["umount", "--lazy", mount])


def _mounts_below(folders: list[Path]) -> list[str]:
    """Mount points under the folders, the deepest and newest first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [point.encode().decode("unicode_escape") for point in points]
    return [point for point in reversed(decoded) if any(Path(point).is_relative_to(folder) for folder in folders)]


def _remove_network(ledger: Ledger) -> None:
    for entry in ledger.entries("iptables-rule"):
        succeeds(["iptables", "-D", *entry.name.split()])
    for entry in ledger.entries("link"):
        for port in _bridge_ports(entry.name):
            succeeds(["ip", "link", "delete", port])
        if Path("/sys/class/net", entry.name).exists():
            run(["ip", "link", "delete", entry.name])
    for entry in ledger.entries("nft-table"):
        _remove_table(entry.name)


def _bridge_ports(bridge: str) -> list[str]:
    folder = Path("/sys/class/net", bridge, "brif")
    return [port.name for port in folder.iterdir()] if folder.is_dir() else []


def _remove_table(table: str) -> None:
    if f"table {table}\n" in run(["nft", "list", "tables"]):
        run(["nft", "delete", "table", *table.split()])


def _remove_cgroups(ledger: Ledger) -> None:
    """The kernel lets go of a cgroup some time after its last process ended."""
    deadline_s = time.monotonic() + GONE_TIMEOUT_S
    while groups := _cgroups(ledger):
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    Path(folder).rmdir()
                except OSError:
                    continue
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"cannot remove the control group {groups[0]}")
        time.sleep(POLL_S)


def _restore_sysctls(ledger: Ledger) -> None:
    for entry in ledger.entries("sysctl"):
        path = Path("/proc/sys") / entry.name
        if path.exists() and path.read_text().strip() != entry.value:
            path.write_text(entry.value)


def _remove_prefixed(prefix: Path) -> None:
    if prefix.parent.is_dir():
        for path in prefix.parent.glob(f"{prefix.name}*"):
            path.unlink(missing_ok=True)


def _remove_cni_results(folders: list[Path]) -> None:
    """CNI keeps what it answered in one folder of the machine; each answer names the network namespace it was for."""
    results = Path("/var/lib/cni/results")
    for result in results.iterdir() if results.is_dir() else ():
        told = result.read_text(errors="replace")
        if any(f'"{folder}/' in told for folder in folders):
            result.unlink()


def _remove_log_links(folders: list[Path]) -> None:
    """The kubelet links each container's log from one folder of the machine."""
    links = Path("/var/log/containers")
    for link in links.iterdir() if links.is_dir() else ():
        if link.is_symlink() and any(link.readlink().is_relative_to(folder) for folder in folders):
            link.unlink()


def _remove_empty_below(root: Path) -> None:
    """Others may have put files into a folder that we caused to exist: only what is empty goes."""
    for folder, _, _ in os.walk(root, topdown=False):
        _remove_if_empty(Path(folder))


def _remove_folder(folder: Path, kept: frozenset[Path]) -> None:
    if not folder.exists():
        return
    for child in folder.iterdir():
        if child in kept:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
