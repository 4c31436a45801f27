"""Many clients that leave at once cost the others nothing."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.router.conftest import PROMPT, RawClient, eventually, raw_post

if TYPE_CHECKING:
    from tests.router.conftest import MakeSite


async def test_many_departures_at_once_leave_the_router_answering(site: MakeSite) -> None:
    """Q87: thirty long streams cut at the same time are cleaned up; readiness and a fresh request answer meanwhile."""
    here = await site()
    here.d.add_rule(leg="decode", contains="long", text=["x" * 20_000] * 500, delay_chunk_s=0.02)
    body = json.dumps({"model": "tiny", "prompt": f"long {PROMPT}", "max_tokens": 500, "stream": True}).encode()
    clients = [await RawClient.connect(here.router.port) for _ in range(30)]
    for client in clients:
        client.send(raw_post("/v1/completions", body))
    for client in clients:
        await client.until(lambda data: len(data) > 100_000)
    for client in clients:
        client.reset()
    admin = f"http://127.0.0.1:{here.router.admin_port}"
    ready, fresh = await asyncio.gather(here.client.get(f"{admin}/readyz"), here.complete())
    assert (ready.status_code, fresh.status_code) == (200, 200)
    await here.idle()
    await eventually(lambda: len(here.router.server.connections) <= 1)
    assert await here.metric("inflight") == 0
    assert await here.metric("requests_total", code="499") == 30


async def test_gauges_fall_to_zero_when_nothing_runs(site: MakeSite) -> None:
    """Q108: after load the gauges of work in flight are 0 and the counters stand still."""
    here = await site(decode=2)
    await asyncio.gather(*(here.complete(prompt=f"{number}") for number in range(20)))
    await here.idle()
    assert await here.metric("inflight") == 0
    before = await here.metric("requests_total"), await here.metric("tokens_total")
    await asyncio.sleep(0.3)
    assert (await here.metric("requests_total"), await here.metric("tokens_total")) == before
    assert before[0] == 20
