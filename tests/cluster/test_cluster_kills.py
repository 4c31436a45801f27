"""Kills at any moment: the full cluster comes back whole, and goes without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import DEFAULT_NODE_NAME, Cluster, down, status
from e2e.cluster.host_pods import python_pod
from e2e.cluster.layout import ledger_of
from e2e.cluster.processes import named

if TYPE_CHECKING:
    from e2e.cluster.fixtures import SharedNode

pytestmark = pytest.mark.cluster

Machine = Callable[[str], dict[str, object]]


@pytest.fixture
def own_node(shared_node: SharedNode) -> Iterator[SharedNode]:
    """The machine's node, taken down, for this test alone; skips if the cluster is somebody's."""
    with shared_node.alone() as free:
        if not free:
            pytest.skip("somebody else uses this machine's full cluster")
        down(DEFAULT_NODE_NAME, quiet=True)
        yield shared_node


def test_after_kills_up_recovers_and_down_leaves_nothing(own_node: SharedNode, machine: Machine) -> None:
    """Of a cluster whose containerd, kubelet and API server were killed, `up` makes a whole one, and `down` nothing."""
    before = machine(DEFAULT_NODE_NAME)
    _run_pod(own_node.running())
    for daemon in ("containerd", "kubelet", "apiserver"):
        for pid in named(ledger_of(DEFAULT_NODE_NAME), daemon):
            os.kill(pid, signal.SIGKILL)
    assert status(DEFAULT_NODE_NAME)["state"] == "broken"
    cluster = own_node.running()
    assert cluster.objects("pods", "--all-namespaces")["items"] == []
    _run_pod(cluster)
    down(DEFAULT_NODE_NAME, quiet=True)
    assert machine(DEFAULT_NODE_NAME) == before


@pytest.mark.parametrize("moment", ["network …", "containerd, scheduler, kube-proxy, CoreDNS …", "node ready …"])
def test_a_killed_up_leaves_nothing_after_down(own_node: SharedNode, machine: Machine, moment: str) -> None:
    """Kill -9 of the tool at any of its steps: `down` finds all that had been made."""
    assert own_node.is_ours
    before = machine(DEFAULT_NODE_NAME)
    command = [sys.executable, "-m", "e2e.cluster", "up"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tool:
        assert tool.stderr is not None
        assert any(moment in line for line in tool.stderr)
        tool.send_signal(signal.SIGKILL)
    assert status(DEFAULT_NODE_NAME)["state"] == "broken"
    down(DEFAULT_NODE_NAME, quiet=True)
    assert machine(DEFAULT_NODE_NAME) == before


def _run_pod(cluster: Cluster) -> None:
    cluster.apply([python_pod("sleeper", "default", ["-c", "import signal; signal.pause()"])])
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=50s", "pod", "sleeper")
