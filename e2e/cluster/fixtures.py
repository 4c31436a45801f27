"""pytest fixtures of clusters, for every test folder's conftest to import.

Boundary: who brings a shared cluster up and who takes it down; what tests do in it is theirs.
A control plane belongs to its session. The full cluster is one per machine: sessions share it, whoever had it up
before keeps it,
and the last session takes down what a session began.
In one session the fixtures of several folders are one and the same: whichever ends first leaves the rest undisturbed.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

import pytest

from e2e.cluster.layout import load, lock_of
from e2e.cluster.lifecycle import DEFAULT_NODE_NAME, down, status, up
from e2e.cluster.lock import held
from e2e.cluster.paths import run_root
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster

WAIT_S = 120.0
TESTS = "tests"
_in_use: Final[Counter[str]] = Counter()
"""By control plane of this session: how many folders' fixtures have it."""


class SharedNode:
    """The machine's one full cluster, as test sessions share it, and in one session the fixtures of several folders."""

    _joined: ClassVar[SharedNode | None] = None

    def __init__(self) -> None:
        run_root().mkdir(parents=True, exist_ok=True)
        self._users = (run_root() / f"{DEFAULT_NODE_NAME}.users").open("w")
        self._fixtures = 0
        fcntl.flock(self._users, fcntl.LOCK_SH)

    @classmethod
    def joined(cls) -> SharedNode:
        """The one object of this session; to be left as often as it was joined."""
        node = cls._joined = cls._joined or cls()
        node.join()
        return node

    def join(self) -> None:
        """Count one more fixture that uses it."""
        self._fixtures += 1

    @property
    def is_ours(self) -> bool:
        """Whether tests may take it down: they began it, or what is there is nobody's any more."""
        layout = load(DEFAULT_NODE_NAME)
        if layout is not None and layout.begun_by == TESTS:
            return True
        try:
            with held(lock_of(DEFAULT_NODE_NAME)):
                return status(DEFAULT_NODE_NAME)["state"] != "up"
        except ClusterError:
            return False  # a run is at it

    def running(self) -> Cluster:
        """The cluster, brought up now if it is not there or not whole."""
        return up(DEFAULT_NODE_NAME, begun_by=TESTS, wait_s=WAIT_S)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this block may do what it likes: nobody else has the cluster, and no other test is at it."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield False
            return
        try:
            yield self._fixtures <= 1 and self.is_ours
        finally:
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Use it no more, and take it down if tests began it and nobody else is at it."""
        with self.alone() as free:
            if free:
                down(DEFAULT_NODE_NAME, wait_s=WAIT_S)
        self._fixtures -= 1
        if self._fixtures == 0:
            self._users.close()
            SharedNode._joined = None


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """An API server with controllers, of this session alone: no pod ever runs in it. About 4 s, once."""
    with of_session("") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_control_plane() -> Iterator[Cluster]:
    """One more, for tests whose pools no operator may take for its own; mark them with the group `bare`."""
    with of_session("-bare") as cluster:
        yield cluster


@contextmanager
def of_session(suffix: str) -> Iterator[Cluster]:
    """A control plane that all fixtures of this session with that suffix share; the last one takes it down."""
    name = f"test-{os.getpid()}{suffix}"
    cluster = up(name, control_plane_only=True, owned=True)
    _in_use[name] += 1
    yield cluster
    _in_use[name] -= 1
    if not _in_use[name]:
        down(name, keep_logs=False)


@pytest.fixture(scope="session")
def shared_node() -> Iterator[SharedNode]:
    """The machine's full cluster as something that tests may need; not yet brought up. Skips without root."""
    if os.geteuid() != 0:
        pytest.skip("a full cluster needs root")
    node = SharedNode.joined()
    yield node
    node.leave()


@pytest.fixture
def full_cluster(shared_node: SharedNode) -> Cluster:
    """The machine's full cluster, up and whole, shared with other tests: use your own namespace. About 6 s, once."""
    return shared_node.running()
