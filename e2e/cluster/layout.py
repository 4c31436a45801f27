"""Names, folders and ports of one cluster, chosen once when it is begun and read back by every later run.

Boundary: values; nothing here starts or changes anything but the file they are kept in.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from e2e.cluster.ledger import Ledger
from e2e.cluster.network import NODE_ADDRESS
from e2e.cluster.paths import data_root, run_root
from e2e.cluster.progress import ClusterError
from e2e.ports import free_ports

NODE_NAME: Final = "node1"
NAME_RULE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
PORT_NAMES: Final = (
    "etcd",
    "etcd_peer",
    "apiserver",
    "controller_manager",
    "scheduler",
    "kubelet_health",
    "proxy_health",
    "proxy_metrics",
    "dns_ready",
)


@dataclass(frozen=True)
class Layout:
    """One cluster: `node` tells whether it has a node (kubelet and all) or is a control plane only."""

    name: str
    node: bool
    ports: dict[str, int]
    data: str
    owner: str = ""
    """Pid and start time of the process without which nobody needs the cluster; empty if it stays until taken down."""
    begun_by: str = ""
    """Who began it, as `up` was told."""

    @property
    def run(self) -> Path:
        """Ledger, sockets and containerd's state."""
        return run_root() / self.name

    @property
    def folder(self) -> Path:
        """Keys, configuration, etcd and images."""
        return Path(self.data)

    @property
    def logs(self) -> Path:
        """One log per daemon, and the audit log."""
        return self.folder / "log"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log."""
        return self.logs / "audit.jsonl"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.run / "containerd.sock"

    @property
    def api_address(self) -> str:
        """The one address the API server listens on: the bridge, or loopback where there is none."""
        return NODE_ADDRESS if self.node else "127.0.0.1"

    @property
    def complete(self) -> Path:
        """A file that exists once everything has been started."""
        return self.run / "complete"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.api_address}:{self.ports['apiserver']}"

    @property
    def ledger(self) -> Ledger:
        """What this cluster has changed on the machine."""
        return Ledger(self.run / "ledger.jsonl")

    def save(self) -> None:
        """Write it to the run folder."""
        fresh = self.run / "layout.json.new"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(self.run / "layout.json")


def ledger_of(name: str) -> Ledger:
    """The ledger of the cluster of that name, whether or not it ever got as far as a layout."""
    return Ledger(run_root() / checked(name) / "ledger.jsonl")


def lock_of(name: str) -> Path:
    """The lock file of the cluster of that name."""
    return run_root() / f"{checked(name)}.lock"


def load(name: str) -> Layout | None:
    """The saved layout, or None if there is no such cluster."""
    try:
        return Layout(**json.loads((run_root() / checked(name) / "layout.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def chosen(name: str, *, node: bool, owner: str = "", begun_by: str = "") -> Layout:
    """A fresh layout with ports that are free now."""
    ports = dict(zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True))
    return Layout(checked(name), node, ports, str(data_root() / name), owner, begun_by)


def known_names() -> list[str]:
    """Every cluster that has a ledger on this machine."""
    return sorted(path.parent.name for path in run_root().glob("*/ledger.jsonl"))


def checked(name: str) -> str:
    """The name itself; raises `ClusterError` if it cannot be the name of folders, sockets and processes."""
    if not NAME_RULE.fullmatch(name):
        raise ClusterError(f"--name {name!r}: must be 1 to 40 lower-case letters, digits or inner hyphens")
    return name
