"""Every panel of the dashboard shows something: a real Prometheus is asked, which scrapes a real router."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from e2e.observability import dashboard
from e2e.observability.answers import Record
from e2e.observability.watched import NAMESPACE, POOL, watched
from pdpool_api.names import Role
from pdpool_operator import telemetry
from pdpool_operator.records import PoolRef
from pdpool_operator.sizes import Sizing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("chart")

ANSWERED_S = 60.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def sized() -> Iterator[None]:
    """What an operator's tick said of the pool."""
    ref = PoolRef(NAMESPACE, POOL)
    telemetry.tell_desired(ref, {Role.PREFILL: 2, Role.DECODE: 2})
    telemetry.tell_sizes(ref, {Role.DECODE: Sizing(2, 2, demands={"QueueDepth": 1.5})})
    yield
    telemetry.forget(ref)


@pytest.mark.usefixtures("sized")
async def test_every_query_of_every_panel_gives_a_series(tmp_path: Path) -> None:
    """After a few plain requests, and nothing that went wrong, no panel is without a series; a record keeps them all.

    A panel that is empty until the first fault cannot be told from one whose query is misspelt.
    """
    async with watched(tmp_path) as pool:
        async with asyncio.timeout(ANSWERED_S):
            while missing := await asyncio.to_thread(pool.board.unanswered):
                answer = await pool.ask("the quick brown fox " * 40, 4)
                assert answer.text.endswith("data: [DONE]\n\n"), missing
                await asyncio.sleep(0.5)
        titles, now_s = [row.title for row in dashboard.ROWS], time.time()
        record = await asyncio.to_thread(pool.board.recorded, titles, now_s, now_s)
    record.write(tmp_path / "record.json")
    kept = Record.read(tmp_path / "record.json")
    assert [panel.title for row in dashboard.ROWS for panel in row.panels if not kept.of(row, panel)] == []
    assert len(dashboard.queries()) > 40
