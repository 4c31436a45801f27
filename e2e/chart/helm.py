"""Real helm, of both living major versions, run to its end.

Boundary: command lines and answers; each home of helm (caches, plugins) is a folder of ours, never the user's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.cluster import binaries
from e2e.cluster.commands import run
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "pdpool"
INSTALL_FILE: Final = CHART.parents[1] / "manifests" / "install.yaml"
RELEASE: Final = "pdpool"
NAMESPACE: Final = "pdpool-system"
OPERATOR: Final = "pdpool-operator"
"""Of every object of the release."""
HELM4: Final = "helm"
HELM3: Final = "helm3"
TIMEOUT_S: Final = 240.0


def _helm(program: str, arguments: Sequence[str | Path]) -> str:
    path = binaries.ensure([program], Progress("chart"))[program]
    home = cache_root() / "build" / f"{program}-home"
    environment = {**os.environ}
    environment |= {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    return run([path, *arguments], environment=environment, timeout_s=TIMEOUT_S)


def render(
    *arguments: str | Path,
    values: Mapping[str, Any] | None = None,
    chart: Path = CHART,
    namespace: str = NAMESPACE,
    release: str = RELEASE,
    program: str = HELM4,
) -> str:
    """The text that `helm template` makes, without the pods of `helm test`.

    Raises `ClusterError` with helm's words when the values break a rule.
    """
    flags = ["--namespace", namespace, "--skip-tests", *_sets(values)]
    return _helm(program, ["template", release, chart, *flags, *arguments])


def lint(chart: Path = CHART) -> None:
    """Raises `ClusterError` with helm's words when the chart breaks a rule; a warning counts."""
    _helm(HELM4, ["lint", "--strict", chart])


def package(folder: Path, chart: Path = CHART) -> None:
    """Write the chart's archive into a folder."""
    _helm(HELM4, ["package", chart, "--destination", folder])


@dataclass(frozen=True)
class Helm:
    """One release in one namespace of a cluster, driven by one version of helm."""

    kubeconfig: Path
    namespace: str
    release: str = RELEASE
    program: str = HELM4

    def install(self, *arguments: str, values: Mapping[str, Any] | None = None, chart: Path = CHART) -> str:
        """`helm upgrade --install`."""
        return self._run("upgrade", "--install", self.release, chart, *_sets(values), *arguments)

    def rollback(self) -> str:
        """`helm rollback` to the revision before."""
        return self._run("rollback", self.release)

    def uninstall(self, *arguments: str) -> str:
        """`helm uninstall`; with what it says about objects that it kept."""
        return self._run("uninstall", self.release, *arguments)

    def test(self) -> str:
        """`helm test`, with the pod's log."""
        return self._run("test", self.release, "--logs", "--timeout", "120s")

    def _run(self, *arguments: str | Path) -> str:
        return _helm(self.program, [*arguments, "--namespace", self.namespace, "--kubeconfig", self.kubeconfig])


def _sets(values: Mapping[str, Any] | None) -> list[str]:
    return [word for key, value in (values or {}).items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
