"""Definitions of other projects' kinds, as they publish them in their Go modules.

Boundary: answers objects for an API server; which test wants them is not known here. Kept in the cache beside the
programs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from e2e.cluster.binaries import module_source
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress
from e2e.documents import documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Definition:
    """Where one CustomResourceDefinition is published."""

    module: str
    version: str
    file: str


_PROMETHEUS: Final = ("github.com/prometheus-operator/prometheus-operator", "0.85.0")
_GATEWAY: Final = ("sigs.k8s.io/gateway-api", "1.6.3")
DEFINITIONS: Final[Mapping[str, Definition]] = {
    "podmonitors": Definition(*_PROMETHEUS, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"),
    "prometheusrules": Definition(
        *_PROMETHEUS, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"
    ),
    "httproutes": Definition(*_GATEWAY, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
}


def definitions(names: Iterable[str]) -> list[dict[str, Any]]:
    """The named definitions, fetched now unless the cache has them; raises `ClusterError` when one cannot be had."""
    return [each for name in names for each in documents(_cached(DEFINITIONS[name]).read_text())]


def _cached(wanted: Definition) -> Path:
    folder = cache_root() / "kinds" / f"{wanted.module.replace('/', '_')}-{wanted.version}"
    path = folder / wanted.file.rsplit("/", 1)[1]
    if not path.exists():
        source = module_source(wanted.module, wanted.version, Progress("kinds")) / wanted.file
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".fresh")
        shutil.copyfile(source, fresh)
        fresh.replace(path)
    return path
