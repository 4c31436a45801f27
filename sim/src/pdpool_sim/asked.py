"""What somebody asks of a benchmark by variables of the environment.

Boundary: the names, each described at the benchmark's `make` target, and what counts as unset.
"""

from __future__ import annotations

import os
from pathlib import Path


def quick() -> bool:
    """Whether a short run is wanted (`QUICK=1`)."""
    return os.environ.get("QUICK", "") not in {"", "0"}


def file(variable: str) -> Path | None:
    """Where something is to be written (`JSON=file`, `PLOT=file`); None: nowhere."""
    name = os.environ.get(variable, "")
    return Path(name) if name else None
