"""Where the cluster tool keeps what outlives a run (cache) and what belongs to one cluster (state).

Boundary: names of folders only; creating and removing them is the caller's business.
One place, so that a cleaner knows every path that can exist.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder that holds built programs, packages, images and the state of clusters: `$PDPOOL_CACHE` or `~/.cache/pdpool`."""
    chosen = os.environ.get("PDPOOL_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path.home() / ".cache" / "pdpool"


def binaries_root() -> Path:
    """Programs, one folder `<name>-<version>` each."""
    return cache_root() / "bin"


def builds_root() -> Path:
    """Go module folders and logs of builds: small, and only needed to build again."""
    return cache_root() / "build"


def images_root() -> Path:
    """OCI archives and their cached layers."""
    return cache_root() / "images"


def clusters_root() -> Path:
    """One folder per cluster name: ledger, keys, logs, data."""
    return cache_root() / "cluster"
