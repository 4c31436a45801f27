"""Nodes simulated by kwok, for a control plane alone: a process for each, as each kubelet is one.

Boundary: nodes, and which of them are heard; the scheduler that binds pods to them is Kubernetes' own, as are the
controllers that find out about a silent one. No container runs. The processes are the cluster's: they are in its
ledger, and `down` ends them.
Why a process for each: ending one is the loss of a node, whose lease lapses and whose pods nobody ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.cluster import binaries
from e2e.cluster.control_plane import client_kubeconfig
from e2e.cluster.lifecycle import READY_TIMEOUT_S, start_daemon, stop_daemon
from e2e.cluster.processes import Daemon, start, wait_until
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.cluster.cluster import Cluster

_MODULE: Final = "sigs.k8s.io/kwok"
_NODE_STAGES: Final = ("fast/node-initialize.yaml", "heartbeat-with-lease/node-heartbeat-with-lease.yaml")
_POD_STAGES: Final = Path(__file__).with_name("kwok-pods.yaml")
_LEASE_S: Final = 40
"""As a kubelet has it: renewed every ten seconds."""


@dataclass(frozen=True)
class KwokNodes:
    """The simulated nodes of one control plane."""

    cluster: Cluster
    names: Sequence[str]
    accelerators: int
    """Of each."""

    def start(self) -> None:
        """A scheduler, and every node; they are Ready when this returns.

        Raises `ClusterError` when a program cannot be built, or a node does not come up.
        """
        progress, layout = Progress("kwok"), self.cluster.layout
        binaries.ensure(("kube-scheduler", "kwok"), progress)
        published = binaries.module_source(_MODULE, binaries.KWOK, progress) / "kustomize" / "stage" / "node"
        stages = [*(published / each for each in _NODE_STAGES), _POD_STAGES]
        self._stages.write_text("---\n".join(each.read_text() for each in stages))
        self.cluster.kubeconfig_for_user("system:kube-scheduler", path=client_kubeconfig(layout, "scheduler"))
        start_daemon(self.cluster, "scheduler")
        nodes = [self._node(number, name) for number, name in enumerate(self.names)]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes})
        self.cluster.kubectl("create", "-f", "-", text_input=listed)
        for name in self.names:
            self.heal(name)
        log = self._daemon(self.names[0]).log
        is_ready = self.cluster.node_is_ready
        wait_until(lambda: all(map(is_ready, self.names)), "the nodes", layout.ledger, log, READY_TIMEOUT_S)

    def lose(self, name: str) -> None:
        """Nothing is heard of a node from now on (kill -9 of its process)."""
        stop_daemon(self.cluster, self._daemon(name).name)

    def heal(self, name: str) -> None:
        """A node is heard, for the first time or again, and does what it was asked meanwhile."""
        start(self._daemon(name), self.cluster.layout.ledger)

    def _node(self, number: int, name: str) -> dict[str, Any]:
        room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(self.accelerators)}
        # Of this machine: whoever asks a pod is refused at once.
        addresses = f"127.77.{number}.0/24"
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "spec": {"podCIDR": addresses, "podCIDRs": [addresses]},
            "status": {"capacity": room, "allocatable": room},
        }

    @property
    def _stages(self) -> Path:
        return self.cluster.layout.folder / "kwok-stages.yaml"

    def _daemon(self, name: str) -> Daemon:
        layout = self.cluster.layout
        command = [
            str(binaries.cached_path("kwok")),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--config={self._stages}",
            f"--manage-single-node={name}",
            f"--node-lease-duration-seconds={_LEASE_S}",
            "--node-ip=127.0.0.1",
        ]
        return Daemon(f"kwok-{name}", command, layout.logs / f"kwok-{name}.log")
