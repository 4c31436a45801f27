"""What kstatus makes of objects: the library by which Flux, kpt and others tell whether an object has arrived.

Boundary: runs the real library, in a program of a few lines (`main.go`), over objects that need no cluster.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from e2e.cluster.binaries import ensure
from e2e.cluster.commands import run
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable


def computed(objects: Iterable[dict[str, Any]]) -> list[str]:
    """`Current`, `InProgress`, `Failed` or `Terminating`, of each object.

    Raises `ClusterError` with the library's words when it cannot read one.
    """
    program = ensure(["kstatus"], Progress("kstatus"))["kstatus"]
    return run([program], text_input="\n".join(map(json.dumps, objects)), timeout_s=120).split()
