"""The newcomer's path: the commands of `docs/quickstart.md`, run as they stand.

Boundary: reads commands out of the page and runs them in one environment; which one comes when is the caller's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.binaries import ensure
from e2e.cluster.commands import run
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE: Final = REPOSITORY / "docs" / "quickstart.md"
TIMEOUT_S: Final = 900.0


def commands(page: str) -> list[str]:
    """Every command of the page, in order: one for each block of kind `sh`."""
    return [each.strip() for each in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


class Newcomer:
    """Somebody who types the page's commands, one after the other, in the repository's root."""

    def __init__(self, kubeconfig: Path, folder: Path, say: Callable[[str], None] | None = None) -> None:
        """Find kubectl and helm under their own names; `folder` holds links and what they cache."""
        programs = folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name, path in ensure(["kubectl", "helm"], Progress("quickstart")).items():
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(path)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ.get('PATH', '')}",
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
        }
        self._left = commands(PAGE.read_text(encoding="utf-8"))
        self._say = say or (lambda _: None)
        self._background: list[subprocess.Popen[bytes]] = []

    def types(self, count: int) -> Sequence[str]:
        """Run the page's next `count` commands; what each of them printed (nothing of those in the background).

        Raises `ClusterError` with a command's own words when it fails.
        """
        return [self._type(self._left.pop(0)) for _ in range(count)]

    def skips(self, count: int) -> None:
        """Leave out the next commands: what they do was done by somebody else."""
        del self._left[:count]

    def works_in(self, namespace: str) -> None:
        """Go to a namespace, as with `kubectl config set-context`."""
        self._type(f"kubectl config set-context --current --namespace={namespace}")

    @property
    def left(self) -> int:
        """How many commands of the page have not been typed yet."""
        return len(self._left)

    def leave(self) -> None:
        """End what runs in the background."""
        for each in self._background:
            os.killpg(each.pid, signal.SIGTERM)
            each.wait(timeout=10)
        self._background.clear()

    def _type(self, command: str) -> str:
        self._say(f"$ {command}")
        shell = ["bash", "-euo", "pipefail", "-c"]
        if not command.endswith("&"):
            return run([*shell, command], environment=self._environment, folder=REPOSITORY, timeout_s=TIMEOUT_S)
        started = subprocess.Popen(
            [*shell, command.removesuffix("&")],
            env=self._environment,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._background.append(started)
        return ""
