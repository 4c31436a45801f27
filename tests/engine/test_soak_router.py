"""The short form of `make soak-router`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.bench.soak import Soak

if TYPE_CHECKING:
    from pathlib import Path


async def test_requests_cut_off_and_engines_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """Q69, Q84: memory and sockets stay bounded, counters end at 0, and every whole answer is the right one."""
    assert "requests" in await Soak(1200, 32, tmp_path).run()
