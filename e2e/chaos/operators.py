"""Two replicas of the operator as processes, each life of one under a user name of its own.

Boundary: processes and credentials. The audit log names users, so a name for each life tells who wrote what, also
after a kill. A replica that was killed comes back after a while, as a kubelet would bring it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import httpx

from e2e.chart import INSTALL_FILE, NAMESPACE, documents
from e2e.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from e2e.cluster import Cluster

GROUP: Final = "chaos-operators"
REPLICAS: Final = ("a", "b")
_STOP_S: Final = 20.0
_LEADING: Final = "pdpool_operator_leading 1.0"


def manifest() -> list[dict[str, Any]]:
    """The install manifest but for its Deployment, with its rights given to a group of users as well."""
    objects = [each for each in documents(INSTALL_FILE.read_text()) if each["kind"] != "Deployment"]
    for each in objects:
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            each["subjects"].append({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": GROUP})
    return objects


@dataclass
class _Life:
    user: str
    process: subprocess.Popen[bytes]
    port: int


@dataclass
class Operators:
    """The replicas while inside."""

    cluster: Cluster
    logs: Path
    arguments: Sequence[str] = ()
    users: dict[str, str] = field(default_factory=dict)
    """By user name: which replica, and which life of it."""

    def __post_init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __enter__(self) -> Self:
        for name in REPLICAS:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for life in self._lives.values():
            life.process.send_signal(signal.SIGCONT)
            life.process.terminate()
        for life in self._lives.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                life.process.wait(_STOP_S)
            life.process.kill()
            life.process.wait()

    def leader(self) -> str | None:
        """The replica that acts, as it says itself."""
        return next((name for name, life in self._lives.items() if _leads(life.port)), None)

    def kill(self, name: str, back_after_s: float) -> None:
        """A kill -9, and a new life later."""
        self._lives[name].process.kill()
        self._lives[name].process.wait()
        del self._lives[name]
        self._due.append((time.monotonic() + back_after_s, lambda: self._start(name)))

    def freeze(self, name: str, seconds: float) -> None:
        """SIGSTOP for a while."""
        process = self._lives[name].process
        process.send_signal(signal.SIGSTOP)
        self._due.append((time.monotonic() + seconds, lambda: process.send_signal(signal.SIGCONT)))

    def tend(self) -> list[str]:
        """Brings back what is due; replicas that ended by themselves, which none should, by their last words."""
        now_s = time.monotonic()
        due = [each for each in self._due if each[0] <= now_s]
        self._due = [each for each in self._due if each[0] > now_s]
        for _, do in due:
            do()
        ended = [name for name, life in self._lives.items() if life.process.poll() is not None]
        for name in ended:
            self._start(name)
        return [f"replica {name} ended by itself, see {self._log(name)}" for name in ended]

    @property
    def busy(self) -> bool:
        """Whether a replica is still to come back."""
        return bool(self._due)

    @property
    def running(self) -> list[str]:
        """Replicas that have not been killed."""
        return list(self._lives)

    def rss_bytes(self) -> int:
        """Resident memory of the larger replica."""
        page = os.sysconf("SC_PAGE_SIZE")
        sizes = []
        for life in self._lives.values():
            with open(f"/proc/{life.process.pid}/statm", encoding="ascii") as stream:  # noqa: PTH123 - no Path is kept
                sizes.append(int(stream.read().split()[1]) * page)
        return max(sizes, default=0)

    def _start(self, name: str) -> None:
        number = sum(each.startswith(name) for each in self.users.values())
        user = f"chaos-operator-{name}-{number}"
        self.users[user] = f"{name}#{number}"
        credentials = self.cluster.kubeconfig_for_user(user, [GROUP])
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "pdpool_operator", f"--port={port}", "--log-format=json", *self.arguments]
        environment: Mapping[str, str] = {
            **os.environ,
            "KUBECONFIG": str(credentials),
            "POD_NAMESPACE": NAMESPACE,
            "HOSTNAME": f"operator-{name}",
        }
        with self._log(name).open("ab") as stream:
            # Killed by the kernel when this process ends, however it ends.
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], env=environment, stdout=stream, stderr=stream
            )
        self._lives[name] = _Life(user, process, port)

    def _log(self, name: str) -> Path:
        return self.logs / f"operator-{name}.log"


def _leads(port: int) -> bool:
    # Through no proxy, and briefly: a frozen replica does not answer.
    with contextlib.suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=2) as client:
        return _LEADING in client.get(f"http://127.0.0.1:{port}/metrics").text
    return False
