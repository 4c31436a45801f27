"""Where the tools keep what outlives a run (cache), what one cluster owns (data), what the machine must know (run).

Boundary: names of folders only; creating and removing them is the caller's business.
Ledgers, locks and sockets lie in one folder of the machine rather than in the cache: two users with two caches still
share one kernel.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder of built programs, images and the data of clusters: `$PDPOOL_CACHE` or `~/.cache/pdpool`."""
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


def data_root() -> Path:
    """One folder per cluster name: keys, logs, etcd, images in containerd, volumes."""
    return cache_root() / "cluster"


def run_root() -> Path:
    """One folder per cluster name: ledger, locks, sockets."""
    return Path("/run/pdpool") if os.geteuid() == 0 else cache_root() / "run"
