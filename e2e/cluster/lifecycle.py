"""Bringing a cluster up and taking it down: the table of contents of this package.

Boundary: the order of steps and the decision what a run has to do; each step is in the module named after its thing.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from e2e.cluster import binaries, control_plane, debian, network, node
from e2e.cluster.asking import answer
from e2e.cluster.cluster import Cluster
from e2e.cluster.layout import Layout, checked, chosen, known_names, ledger_of, load, lock_of
from e2e.cluster.lock import held
from e2e.cluster.paths import data_root, run_root
from e2e.cluster.processes import Daemon, alive, end, identify, is_alive, start, start_time_of, wait_until
from e2e.cluster.progress import ClusterError, Progress
from e2e.cluster.undo import undo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEFAULT_NODE_NAME = "default"
DEFAULT_CONTROL_PLANE_NAME = "control-plane"
READY_TIMEOUT_S = 90.0
# An API server on a busy machine may be slow for a while; taking its cluster for broken would end it.
PATIENCE_S = 20.0
POLL_S = 0.2


def up(
    name: str | None = None,
    *,
    control_plane_only: bool = False,
    owned: bool = False,
    begun_by: str = "",
    wait_s: float = 0.0,
    quiet: bool = False,
) -> Cluster:
    """A running cluster of that name, begun now unless it is there and whole.

    A half-dead one is taken down first. `owned` binds the cluster to this process: once that has ended, the next `up`
    of any
    cluster takes it down. `begun_by` is noted in the layout of a cluster begun now. `wait_s` is how long to wait for
    another run on the same cluster.

    Raises `ClusterError` when a step fails (what was begun is taken down again, its logs stay) or another run is at it.
    """
    name = checked(name or (DEFAULT_CONTROL_PLANE_NAME if control_plane_only else DEFAULT_NODE_NAME))
    progress = Progress(f"up {name}", quiet=quiet)
    _sweep(name, progress)
    with held(lock_of(name), wait_s=wait_s, waiting=progress.say):
        layout = load(name)
        if layout is not None and _whole(layout):
            if layout.node == control_plane_only:
                mode = "a full cluster" if layout.node else "a control plane"
                raise ClusterError(f"{name} is up as {mode}: take it down first, or choose another --name")
            progress.say(f"already up at {layout.server}")
            return Cluster(layout)
        if ledger_of(name).exists():
            with progress.step("take down what an earlier run left"):
                _undo(name, keep_logs=False)
        owner = f"{os.getpid()} {start_time_of(os.getpid())}" if owned else ""
        return _begun(chosen(name, node=not control_plane_only, owner=owner, begun_by=begun_by), progress)


def down(name: str = DEFAULT_NODE_NAME, *, keep_logs: bool = True, wait_s: float = 0.0, quiet: bool = False) -> None:
    """Nothing of the cluster left on the machine but, with `keep_logs`, its logs; no error if there was none."""
    progress = Progress(f"down {name}", quiet=quiet)
    with held(lock_of(name), wait_s=wait_s, waiting=progress.say):
        if not ledger_of(name).exists():
            progress.say("there is nothing to take down")
            return
        with progress.step("take down"):
            _undo(name, keep_logs=keep_logs)


def stop_daemon(cluster: Cluster, daemon: str) -> None:
    """End one daemon of a cluster that is up, as a crash would (kill -9); containers of a node go on."""
    ledger = cluster.layout.ledger
    last = [entry.value for entry in ledger.entries("process") if entry.name == daemon][-1]
    pid, _, start_time = last.partition(" ")
    end(lambda: [int(pid)] if is_alive(int(pid), start_time) else [], daemon)


def start_daemon(cluster: Cluster, daemon: str) -> None:
    """Start a daemon that was stopped again, as it was; an API server answers when this returns.

    A control plane alone has no scheduler: with keys of its own it can have one.
    """
    layout = cluster.layout
    programs = {name: binaries.cached_path(name) for name in (*binaries.CONTROL_PLANE, *binaries.NODE)}
    make = {
        "apiserver": control_plane.apiserver,
        "scheduler": control_plane.scheduler,
        "kubelet": node.kubelet,
    }[daemon]
    _start(layout, make(layout, programs))
    if daemon == "apiserver":
        _await_api(layout)


def status(name: str) -> dict[str, object]:
    """What runs of the cluster: mode, URL, each daemon's life, and whether the API server says that it is ready."""
    layout = load(name)
    ledger = ledger_of(name)
    if layout is None:
        return {"name": name, "state": "broken" if ledger.exists() else "absent"}
    return {
        "name": name,
        "state": "up" if _whole(layout) else "broken",
        "mode": "full" if layout.node else "control-plane-only",
        "server": layout.server,
        "kubeconfig": str(layout.kubeconfig),
        "logs": str(layout.logs),
        "daemons": alive(ledger),
    }


def _begun(layout: Layout, progress: Progress) -> Cluster:
    if layout.node and os.geteuid() != 0:
        raise ClusterError("a full cluster needs root (network, mounts, control groups); --control-plane-only does not")
    wanted = binaries.CONTROL_PLANE + (binaries.NODE if layout.node else ())
    debian.ensure(debian.NODE_PACKAGES if layout.node else debian.CONTROL_PLANE_PACKAGES, progress)
    programs = binaries.ensure(wanted, progress)
    if not layout.node:
        return _started(layout, programs, progress)
    from e2e.images import pause  # noqa: PLC0415  (the image tool itself asks for paths of this package)

    image = pause.archive(progress)
    # One machine has room for one node: its ranges, its bridge, its control groups.
    with held(run_root() / "node.lock"):
        _refuse_second_node(layout.name)
        network.check_free()
        node.check_free()
        return _started(layout, programs, progress, image)


def _started(layout: Layout, programs: dict[str, Path], progress: Progress, image: Path | None = None) -> Cluster:
    """Start everything; with a node, `image` is its sandbox image."""
    ledger = layout.ledger
    identify(layout.name, ledger)
    ledger.record("folder", str(layout.run))
    ledger.record("folder", str(layout.folder))
    with _undone_on_failure(layout.name):
        layout.save()
        layout.logs.mkdir(parents=True, exist_ok=True)
        for log in layout.logs.iterdir():
            log.unlink()
        if layout.node:
            with progress.step("network"):
                network.raise_network(ledger)
        with progress.step("keys and certificates"):
            control_plane.make_keys(layout)
        with progress.step("etcd and API server"):
            _start(layout, control_plane.etcd(layout, programs))
            _start(layout, control_plane.apiserver(layout, programs))
            _await_api(layout)
        _start(layout, control_plane.controller_manager(layout, programs))
        cluster = Cluster(layout)
        if image is not None:
            _start_node(layout, programs, cluster, progress)
        with progress.step("default service account"):
            _await(layout, "the default service account", "controller-manager", cluster.has_default_service_account)
        if image is not None:
            _finish_node(cluster, image, progress)
        layout.complete.touch()
    progress.say(f"API server at {layout.server}, kubeconfig {layout.kubeconfig}")
    return cluster


def _start_node(layout: Layout, programs: dict[str, Path], cluster: Cluster, progress: Progress) -> None:
    with progress.step("containerd, scheduler, kube-proxy, CoreDNS"):
        node.note_changes(layout.ledger)
        _start(layout, node.containerd(layout))
        _start(layout, control_plane.scheduler(layout, programs))
        _start(layout, node.kube_proxy(layout, programs))
        cluster.apply(node.dns_rights())
        _start(layout, node.coredns(layout, programs))
        _await(layout, "containerd", "containerd", cluster.runtime_answers)
    with progress.step("kubelet"):
        _start(layout, node.kubelet(layout, programs))


def _finish_node(cluster: Cluster, image: Path, progress: Progress) -> None:
    layout = cluster.layout
    with progress.step("sandbox image"):
        cluster.import_image(image)
    with progress.step("node ready"):
        _await(layout, "the node", "kubelet", cluster.node_is_ready)
        _await(
            layout, "cluster DNS", "coredns", lambda: _answers(f"http://127.0.0.1:{layout.ports['dns_ready']}/ready")
        )
        _await(
            layout,
            "Services",
            "kube-proxy",
            lambda: _answers(f"http://127.0.0.1:{layout.ports['proxy_health']}/healthz"),
        )


def _start(layout: Layout, daemon: Daemon) -> None:
    start(daemon, layout.ledger)


def _await(layout: Layout, what: str, daemon: str, ready: object) -> None:
    assert callable(ready)
    wait_until(ready, what, layout.ledger, layout.logs / f"{daemon}.log", READY_TIMEOUT_S)


def _await_api(layout: Layout) -> None:
    _await(layout, "the API server", "apiserver", lambda: _api_ready(layout))


def _api_ready(layout: Layout) -> bool:
    return _answers(f"{layout.server}/readyz", layout.pki / "ca.crt")


def _answers(url: str, authority: Path | None = None) -> bool:
    return answer(url, authority) is not None


def _whole(layout: Layout) -> bool:
    """It was begun to the end, every daemon lives, and the API server says that it is ready."""
    deadline_s = time.monotonic() + PATIENCE_S
    while layout.complete.exists() and all(alive(layout.ledger).values()):
        if _api_ready(layout):
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_S)
    return False


def _undo(name: str, *, keep_logs: bool) -> None:
    layout = load(name)
    logs = layout.logs if layout is not None else data_root() / name / "log"
    undo(name, ledger_of(name), frozenset({logs}) if keep_logs else frozenset())


@contextmanager
def _undone_on_failure(name: str) -> Iterator[None]:
    """What a failed step leaves is taken down, but its logs stay; the error of the step is the one that is told."""
    try:
        yield
    except BaseException as failure:
        told = str(failure)  # with the end of the log as it is now
        try:
            _undo(name, keep_logs=True)
        except ClusterError as left:
            told = f"{told}\nand then: {left}"
        if isinstance(failure, ClusterError):
            raise ClusterError(told) from failure
        raise


def _refuse_second_node(name: str) -> None:
    for other in known_names():
        if other != name and any(entry.kind == "link" for entry in ledger_of(other).entries()):
            raise ClusterError(
                f"the full cluster {other!r} has this machine's node: take it down first (`down --name {other}`)"
            )


def _sweep(name: str, progress: Progress) -> None:
    """Take down the clusters whose owning process has ended without doing it."""
    for other in known_names():
        layout = load(other)
        if other == name or layout is None or not layout.owner:
            continue
        pid, _, start_time = layout.owner.partition(" ")
        if not is_alive(int(pid), start_time):
            progress.say(f"take down {other}, left by a process that has ended")
            try:
                down(other, keep_logs=False, quiet=True)
            except ClusterError as failure:
                # Another run sweeps it at this moment, or its remains resist: neither concerns the cluster asked for.
                progress.say(f"{other} stays for now: {failure}")
