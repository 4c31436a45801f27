"""What one cluster has changed on this machine, written down before each change, so that any later run can undo it.

Boundary: records and nothing else; `undo.py` acts on them.
Why a file of its own: a kill -9 at any moment must leave enough to find everything, so an entry is on disk before its
thing exists,
and undoing something that was never made is not an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal[
    "marker",
    "process",
    "link",
    "nft-table",
    "iptables-rule",
    "sysctl",
    "cgroup",
    "folder",
    "shared-folder",
    "file-prefix",
]


@dataclass(frozen=True)
class Entry:
    """One change. `name` identifies the thing; `value` is what undoing needs beyond that (a sysctl's former value)."""

    kind: Kind
    name: str
    value: str = ""


class Ledger:
    """An append-only file of entries, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether a cluster was ever begun here and not yet fully taken down."""
        return self.path.exists()

    @property
    def identity(self) -> str:
        """What this cluster's processes bear; empty before the first could be started."""
        return next((entry.name for entry in self.entries("marker")), "")

    def record(self, kind: Kind, name: str, value: str = "") -> None:
        """Write an entry to disk; call it before the thing is made."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(json.dumps(asdict(Entry(kind, name, value))) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def entries(self, kind: Kind | None = None) -> Iterator[Entry]:
        """The entries in the order of their writing; a line cut off by a crash is skipped: its thing was never made."""
        if not self.exists():
            return
        for line in self.path.read_text().splitlines():
            try:
                entry = Entry(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if kind is None or entry.kind == kind:
                yield entry
