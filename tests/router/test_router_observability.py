"""What is told of a request: access log, traces, and metrics that mean what they say."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from aiohttp import web
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from e2e.engine.standin import Standin
from pdpool_router.assembly import Router
from pdpool_router.edge.access_log import AccessLog
from pdpool_router.edge.tracing import Tracer
from tests.router.conftest import PROMPT, RawClient, Site, config, eventually, raw_post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.router.conftest import MakeSite

CANARY = "canary-5f2c"
BODY = {"model": "tiny", "prompt": f"{CANARY} {PROMPT}", "max_tokens": 4}


@contextlib.asynccontextmanager
async def observed(*, prefill: int = 1, over: dict[str, Any] | None = None, **seen_by: Any) -> AsyncIterator[Site]:
    """A site whose router tells somebody of each request."""
    async with contextlib.AsyncExitStack() as stack:
        prefills = [await stack.enter_async_context(Standin("prefill")) for _ in range(prefill)]
        decode = await stack.enter_async_context(Standin("decode"))
        static = [{"role": "prefill", "url": one.url} for one in prefills] + [{"role": "decode", "url": decode.url}]
        router = Router(config(static, **(over or {})), rng=random.Random(3), **seen_by)
        await router.start("127.0.0.1", 0, 0)
        stack.push_async_callback(router.close)
        base = f"http://127.0.0.1:{router.port}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=base, timeout=20))
        yield Site(router, client, prefills, [decode])
        await RawClient.end_all()


def lines(out: io.BytesIO, log: AccessLog) -> list[dict[str, Any]]:
    log.flush()
    return [json.loads(line) for line in out.getvalue().splitlines()]


# --- access log ------------------------------------------------------------------------------------------------------
async def test_each_request_is_one_line_without_content(tmp_path: Path) -> None:
    """Who, what, where, how long and how it ended, for answers, streams, refusals and departures; no content.

    No prompt, key, header or address of a client is in it.
    """
    (tmp_path / "keys").write_text("team-a=sk-canary-key")
    out = io.BytesIO()
    log = AccessLog(1.0, chance=random.random, out=out)
    key = {"authorization": "Bearer sk-canary-key"}
    over = {"auth": {"apiKeysFile": str(tmp_path / "keys")}}
    async with observed(access_log=log, over=over) as here:
        own = {b"authorization": b"Bearer sk-canary-key", b"x-request-id": 'mine"é{evil}'.encode()}
        await here.client.post("/v1/completions", json=BODY, headers=own)
        await here.client.post("/v1/completions", json={**BODY, "stream": True}, headers=key)
        await here.client.post("/v1/completions", json={**BODY, "model": CANARY}, headers=key)
        await here.client.post("/v1/completions", json=BODY)
        await here.client.get(f"/{CANARY}?{CANARY}", headers=key)
        here.p.add_rule(leg="prefill", never_answer=True)
        leaving = await RawClient.connect(here.router.port)
        leaving.send(raw_post("/v1/completions", json.dumps(BODY).encode(), "authorization: Bearer sk-canary-key"))
        await eventually(lambda: bool(here.router.endpoints.inflight.requests))
        leaving.reset()
        await here.idle()
        said = lines(out, log)
        names = (here.router.endpoints.all()[0].name, here.router.endpoints.all()[1].name)
    assert "canary" not in out.getvalue().decode()
    whole, stream, unknown, nobody, lost, left = said
    assert [one["status"] for one in said] == [200, 200, 404, 401, 404, 499]
    assert {one["event"] for one in said} == {"request"}
    assert (whole["key"], whole["model"], whole["route"], whole["prefill"]) == (
        "team-a",
        "tiny",
        "/v1/completions",
        "remote",
    )
    assert (whole["prefill_endpoint"], whole["decode_endpoint"], whole["legs"]) == (*names, 2)
    assert whole["id"] == 'mine"{evil}'
    assert whole["engine_id"] == here.d.generations()[0].header("x-request-id")
    assert whole["completion_tokens"] == 4
    assert "first_byte_ms" not in whole
    assert 0 <= stream["wait_ms"] <= stream["first_byte_ms"] <= stream["duration_ms"]
    assert (nobody["key"], nobody["model"], lost["route"], unknown["model"]) == (None, "other", "other", "other")
    assert (left["fault"], left["decode_endpoint"]) == ("ClientLeft", None)


async def test_odd_ids_are_one_line_each() -> None:
    """Q66: what a client calls its request cannot begin another line of the log, nor make one without end."""
    out = io.BytesIO()
    log = AccessLog(1.0, chance=random.random, out=out)
    odd = [b"a%0d%0aevent: forged", b"x" * 10_240, b"\x85\xc2\x85", "\u2028".encode(), b'"}{"event":"forged"', b"\\n"]
    async with observed(access_log=log) as here:
        for own in odd:
            assert (await here.client.post("/v1/completions", json=BODY, headers={b"x-request-id": own})).is_success
        await here.idle()
        said = lines(out, log)
    assert [one["event"] for one in said] == ["request"] * len(odd)
    assert all(one["id"].isascii() and one["id"].isprintable() and 0 < len(one["id"]) <= 128 for one in said)
    assert out.getvalue().count(b"\n") == len(odd)


async def test_a_share_of_the_requests_is_logged_and_every_failure() -> None:
    """Sampling leaves out answers below 500 only."""
    out = io.BytesIO()
    log = AccessLog(0.25, chance=random.Random(1).random, out=out)
    async with observed(access_log=log) as here:
        for _ in range(40):
            await here.complete()
        here.d.add_rule(leg="decode", status=500)
        for _ in range(3):
            await here.complete()
        said = lines(out, log)
    assert [one["status"] for one in said].count(502) >= 1
    assert all(one.get("fault") == "EngineStatus" for one in said if one["status"] >= 500)
    assert 4 <= sum(one["status"] == 200 for one in said) <= 18


async def test_without_an_access_log_nothing_is_noted(site: MakeSite, capfd: pytest.CaptureFixture[str]) -> None:
    """Off by default: no line, and no record of a request's steps."""
    here = await site()
    assert (await here.complete()).status_code == 200
    assert '"request"' not in "".join(capfd.readouterr())


# --- traces ----------------------------------------------------------------------------------------------------------
class Collector:
    """A collector of OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.bodies = b""

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies += body
        sent = ExportTraceServiceRequest.FromString(body)
        self.spans += [span for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans]
        return web.Response()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    await runner.cleanup()


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_traced_request_is_a_span_with_its_steps(collector: tuple[Collector, str]) -> None:
    """The client's trace goes on: choice, prefill, transfer, decode within the request, in their order.

    Engines get the request's own span as their parent. Nothing of the prompt is sent.
    """
    made, url = collector
    async with observed(tracer=Tracer(OTLPSpanExporter(endpoint=url))) as here:
        here.d.set_pace(step_s=0.01)
        parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}
        body = {**BODY, "stream": True}
        assert (await here.client.post("/v1/completions", json=body, headers=parent)).status_code == 200
        told = {engine.generations()[0].header("traceparent") for engine in here.engines}
        assert {engine.generations()[0].header("tracestate") for engine in here.engines} == {"vendor=1"}
        unsampled = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-00"}
        assert (await here.client.post("/v1/completions", json=body, headers=unsampled)).status_code == 200
    (root,) = made.named("POST /v1/completions")
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert told == {f"00-{TRACE}-{root.span_id.hex()}-01"}
    steps = [made.named(name)[0] for name in ("choice", "prefill", "transfer", "decode")]
    assert len(made.spans) == 5
    assert {step.parent_span_id for step in steps} == {root.span_id}
    times = [at for step in steps for at in (step.start_time_unix_nano, step.end_time_unix_nano)]
    slack_ns = 1_000_000  # two clocks
    assert all(b >= a - slack_ns for a, b in itertools.pairwise(times))
    assert times[-1] - times[0] <= root.end_time_unix_nano - root.start_time_unix_nano + 2 * slack_ns
    attributes = {one.key: one.value for one in root.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["pdpool.prefill"].string_value == "remote"
    assert attributes["pdpool.completion_tokens"].int_value == 4
    assert CANARY.encode() not in made.bodies


async def test_failed_legs_are_spans_with_their_fault(collector: tuple[Collector, str]) -> None:
    """Each try is a span of its own; the failed one says what kind of fault it was."""
    made, url = collector
    async with observed(prefill=2, tracer=Tracer(OTLPSpanExporter(endpoint=url))) as here:
        for engine in here.prefill:
            engine.add_rule(leg="prefill", status=500)
        parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        assert (await here.client.post("/v1/completions", json=BODY, headers=parent)).status_code == 502
    assert [span.status.message for span in made.named("prefill")] == ["EngineStatus", "EngineStatus"]
    assert made.named("POST /v1/completions")[0].status.code == 2
    assert not made.named("decode")


# --- metrics ---------------------------------------------------------------------------------------------------------
async def test_own_time_counts_neither_engines_nor_the_line(site: MakeSite) -> None:
    """`overhead_seconds` is the router's own part: not what engines take, also for a failed try, nor the line."""
    here = await site(prefill=2, decode=1, limits={"maxConcurrent": 1})
    here.prefill[0].add_rule(leg="prefill", status=500, delay_headers_s=0.15)
    here.prefill[1].add_rule(leg="prefill", delay_headers_s=0.1)
    here.d.add_rule(leg="decode", delay_headers_s=0.1)
    await asyncio.gather(*(here.complete() for _ in range(4)))
    assert await here.metric("overhead_seconds_count") == 4
    assert await here.metric("overhead_seconds_sum") < 0.2
    assert await here.metric("e2e_seconds_sum") > 0.8


async def test_an_answer_in_pieces_counts_once(site: MakeSite) -> None:
    """An answer that comes byte by byte is one answer to every counter, and the same to the client."""
    here = await site()
    whole = (await here.complete()).json()
    for leg, engine in (("prefill", here.p), ("decode", here.d)):
        engine.add_rule(leg=leg, bytes_per_write=7, write_gap_s=0.001)
    pieces = (await here.complete()).json()
    assert pieces["choices"] == whole["choices"]
    for name in ("overhead", "handoff", "e2e"):
        assert await here.metric(f"{name}_seconds_count") == 2
    assert await here.metric("requests_total", code="200") == 2
    assert await here.metric("inflight") == 0


async def test_time_to_first_token_is_of_streams(site: MakeSite) -> None:
    """Of an answer that comes whole nobody knows when its first token was made."""
    here = await site()
    await here.complete()
    assert await here.metric("ttft_seconds_count") == 0
    await here.complete(stream=True)
    assert await here.metric("ttft_seconds_count") == 1


async def test_a_request_that_decode_refuses_orphans_nothing(site: MakeSite) -> None:
    """Q92: of a request that decode answers 400 it tells prefill, which frees its KV; any other end leaves it there."""
    here = await site()
    here.d.add_rule(leg="decode", status=400, contains="bad", body='{"error":{"message":"no"}}')
    assert (await here.complete(prompt="bad")).status_code == 400
    assert await here.metric("orphaned_prefills_total") == 0
    here.d.add_rule(leg="decode", status=429, contains="busy", body="{}")
    assert (await here.complete(prompt="busy")).status_code == 429
    assert await here.metric("orphaned_prefills_total") == 1
