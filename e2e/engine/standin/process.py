"""Stand-ins as processes, started exactly as the real engine is: the same arguments, another program.

Boundary: lets one test drive either; in-process stand-ins are `standin.Standin`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from e2e.engine.real import RealEngine

ROOT = Path(__file__).parents[3]


@dataclass
class StandinProcess(RealEngine):
    """One stand-in server."""

    needs_install: ClassVar[bool] = False

    def program(self) -> list[str]:
        """This interpreter, running the stand-in."""
        return [sys.executable, "-m", "e2e.engine.standin"]

    def variables(self) -> dict[str, str]:
        """The stand-in is imported from the repository."""
        return super().variables() | {"PYTHONPATH": str(ROOT)}
