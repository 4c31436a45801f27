"""pytest fixtures of clusters, for every test folder's conftest to import.

Boundary: who brings a shared cluster up and who takes it down; what tests do in it is theirs.
A control plane belongs to its session. The full cluster is one per machine: sessions share it, whoever had it up
before keeps it,
and the last session takes down what a session began.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from e2e.cluster.lifecycle import DEFAULT_NODE_NAME, down, status, up
from e2e.cluster.paths import run_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster.cluster import Cluster

WAIT_S = 120.0


class SharedNode:
    """The machine's one full cluster, as test sessions share it."""

    def __init__(self) -> None:
        run_root().mkdir(parents=True, exist_ok=True)
        self._users = (run_root() / "default.users").open("w")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    @property
    def is_ours(self) -> bool:
        """Whether tests may take it down: a test session brought it up, or it is not up at all."""
        return self._mark.exists() or not self._is_up()

    def running(self) -> Cluster:
        """The cluster, brought up now if it is not there or not whole."""
        begun_by_tests = self.is_ours
        cluster = up(DEFAULT_NODE_NAME, wait_s=WAIT_S)
        if begun_by_tests:
            self._mark.touch()
        return cluster

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this session may do what it likes during the block: nobody else has the cluster or is at it."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield False
            return
        try:
            yield self.is_ours
        finally:
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Use it no more, and take it down if tests began it and nobody else is at it."""
        with self.alone() as free:
            if free:
                down(DEFAULT_NODE_NAME, wait_s=WAIT_S)
        self._users.close()

    @property
    def _mark(self) -> Path:
        """In the cluster's own folder, so that it goes when the cluster does."""
        return run_root() / DEFAULT_NODE_NAME / "begun-by-tests"

    @staticmethod
    def _is_up() -> bool:
        return status(DEFAULT_NODE_NAME)["state"] == "up"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """An API server with controllers, of this session alone: no pod ever runs in it. About 4 s, once."""
    name = f"test-{os.getpid()}"
    cluster = up(name, control_plane_only=True, owned=True)
    yield cluster
    down(name, keep_logs=False)


@pytest.fixture(scope="session")
def shared_node() -> Iterator[SharedNode]:
    """The machine's full cluster as something that tests may need; not yet brought up. Skips without root."""
    if os.geteuid() != 0:
        pytest.skip("a full cluster needs root")
    node = SharedNode()
    yield node
    node.leave()


@pytest.fixture
def full_cluster(shared_node: SharedNode) -> Cluster:
    """The machine's full cluster, up and whole, shared with other tests: use your own namespace. About 6 s, once."""
    return shared_node.running()
