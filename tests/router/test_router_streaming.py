"""Streams: bytes unchanged and at once, back-pressure, cancellation in every phase."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.router.conftest import PROMPT, RawClient, config, eventually, raw_post, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.router.conftest import MakeSite

STREAM = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "stream": True}
WORDS = ["한국어 ", "漢字かな ", "👩‍👩‍👧‍👦", "é\u0301 ", 'quo"te', "new\nline", "data: x", "\u2028"]


def completion(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]}, ensure_ascii=False)


ODD_STREAM = "".join(
    [
        ": ping\n\n",
        *(f"data: {completion(word)}\n\n" for word in WORDS),
        f"data: {completion('windows')}\r\n\r\n",
        ": ping\r\n\r\n",
        "event: note\nid: 7\nretry: 5\ndata: of several\ndata: lines\n\n",
        f"data:{completion('no blank')}\n\n",
        "data: [DONE]\n\n",
    ]
).encode()
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


@pytest.mark.parametrize("cut", [0, 1, 7])
async def test_a_stream_arrives_byte_for_byte_however_it_is_cut(
    site: MakeSite, capfd: pytest.CaptureFixture[str], cut: int
) -> None:
    """Q72: scripts, line ends, comments and events of several lines, in pieces of any size: the very bytes arrive."""
    here = await site()
    body = ODD_STREAM.decode()
    here.d.add_rule(leg="decode", status=200, headers=EVENTS, body=body, bytes_per_write=cut, write_gap_s=0)
    answer = await here.client.post("/v1/completions", json=STREAM)
    assert answer.status_code == 200
    assert answer.content == ODD_STREAM
    assert "\ufffd" not in answer.text
    assert await here.metric("truncated_streams_total") == 0
    assert not capfd.readouterr().err


async def test_the_stand_ins_own_stream_survives_any_cut(site: MakeSite) -> None:
    """Q72: what an engine streams byte by byte ends as what it streams event by event."""
    here = await site()
    body = {**STREAM, "max_tokens": 8}

    def texts(stream: bytes) -> list[str]:
        events = [line[6:] for line in stream.decode().split("\n\n") if line.startswith("data: {")]
        return [choice["text"] for event in events for choice in json.loads(event)["choices"]]

    for bytes_per_write in (0, 1):
        here.d.script.clear()
        here.d.add_rule(leg="decode", text=WORDS, bytes_per_write=bytes_per_write, write_gap_s=0)
        stream = (await here.client.post("/v1/completions", json=body)).content
        assert "".join(texts(stream)).startswith("".join(WORDS))
        assert stream.endswith(b"data: [DONE]\n\n")


@contextlib.asynccontextmanager
async def speaking(pieces: list[bytes], gate: asyncio.Queue[None] | None = None) -> AsyncIterator[dict[str, str]]:
    """An engine that answers each POST with these chunks; with a gate each follows only when the one before was met."""
    speakers: set[asyncio.Task[None]] = set()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        speakers.add(task)
        try:
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST "):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
                writer.write(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
                for piece in pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    if gate is not None:
                        await gate.get()
                writer.write(b"0\r\n\r\n")
                await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    try:
        yield {"role": "aggregated", "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    finally:
        server.close()
        for speaker in speakers:
            speaker.cancel()
        await asyncio.gather(*speakers, return_exceptions=True)


async def test_events_arrive_while_the_engine_still_speaks() -> None:
    """Q73: every event is with the client before the engine makes the next one, with the headers of a stream."""
    met = asyncio.Queue[None]()
    sent = [f"data: {completion(str(number))}\n\n".encode() for number in range(20)] + [b"data: [DONE]\n\n"]
    async with (
        speaking(sent, met) as engine,
        running(config([engine])) as router,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20) as client,
        client.stream("POST", "/v1/completions", json=STREAM) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-length" not in answer.headers
        pieces = answer.aiter_raw()
        for event in sent:
            assert await anext(pieces) == event
            met.put_nowait(None)


@pytest.mark.parametrize("end", [[b"data: [DONE]\n\n"], [b"data: [DONE]\r\n\r\n"], [b"data: [DO", b"NE]\n\n"]])
async def test_comments_are_no_answer(end: list[bytes]) -> None:
    """An engine that keeps the connection alive, and then ends without an event, gave the request up: a break."""
    met = asyncio.Queue[None]()
    sent = [b": keep-alive\n\n", *end]
    async with speaking(sent, met) as engine, running(config([engine])) as router:
        client = await RawClient.connect(router.port)
        client.send(raw_post("/v1/completions", json.dumps(STREAM).encode(), "connection: close"))
        for piece in sent[:-1]:
            await client.until(lambda data, piece=piece: piece in data)  # type: ignore[misc]
            met.put_nowait(None)
        told = await client.rest()
        await RawClient.end_all()
        assert (router.telemetry.truncated_streams, router.telemetry.requests["tiny", 200]) == (1, 1)
    if len(end) == 1:
        assert b'data: {"error":' in told
        assert told.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in told
    else:  # in the middle of the line that claims the end only a broken transfer is left
        assert not told.endswith(b"0\r\n\r\n")


async def test_comments_and_the_end_at_once_are_tried_elsewhere() -> None:
    """The same before a byte was forwarded: another engine answers, and the client sees nothing of the first."""
    whole = [f"data: {completion('x')}\n\n".encode(), b"data: [DONE]\n\n"]
    async with (
        speaking([b": keep-alive\r\n\r\ndata: [DONE]\n\n"]) as ends,
        speaking(whole) as answers,
        running(config([ends, answers], routing={"policy": "RoundRobin"})) as router,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
    ):
        for _ in range(2):
            assert (await client.post("/v1/completions", json=STREAM)).content == b"".join(whole)
        assert sum(router.telemetry.retries.values()) == 1


async def test_usage_is_told_where_it_was_asked_for(site: MakeSite) -> None:
    """Q77: one usage chunk where the client asked, none else; the token counters equal the engine's in both."""
    here = await site()
    asked = await here.client.post("/v1/completions", json={**STREAM, "stream_options": {"include_usage": True}})
    usage = [event for event in asked.text.split("\n\n") if '"usage":{' in event]
    assert len(usage) == 1
    told = json.loads(usage[0][6:])
    assert told["choices"] == []
    assert await here.metric("tokens_total", kind="prompt") == told["usage"]["prompt_tokens"]
    assert await here.metric("tokens_total", kind="completion") == told["usage"]["completion_tokens"] == 6
    silent = await here.client.post("/v1/completions", json=STREAM, headers={"accept-encoding": "gzip"})
    assert '"usage":{' not in silent.text
    assert "content-encoding" not in silent.headers
    assert await here.metric("tokens_total", kind="prompt") == 2 * told["usage"]["prompt_tokens"]
    assert await here.metric("tokens_total", kind="completion") == 12
    assert {one.header("accept-encoding") for one in here.d.generations()} == {"identity"}


async def test_the_unmodified_openai_client_works(site: MakeSite) -> None:
    """The official client completes, streams, lists models and gets its own error classes."""
    here = await site()
    async with openai.AsyncOpenAI(base_url=f"{here.client.base_url}/v1", api_key="none", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=5, temperature=0)
        stream = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=5, temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert text == whole.choices[0].message.content
        assert [model.id async for model in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gone", messages=messages)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="tiny", messages=messages, temperature=-3)


# --- cancellation ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "stream before a token", "stream"])
async def test_a_client_that_leaves_ends_both_legs(site: MakeSite, phase: str, how: str) -> None:
    """Q71, Q92: a client that leaves in any phase ends the engines' work within 2 s.

    No decode after a cancelled prefill.
    """
    here = await site()
    if phase == "prefill":
        here.p.add_rule(leg="prefill", delay_headers_s=20)
    elif phase == "stream":
        here.d.set_pace(step_s=0.3)
    elif phase == "decode":
        here.d.add_rule(leg="decode", delay_headers_s=20)
    else:
        here.d.add_rule(leg="decode", delay_body_s=20)
    client = await RawClient.connect(here.router.port)
    body = {**STREAM, "max_tokens": 100, "stream": phase.startswith("stream")}
    client.send(raw_post("/v1/completions", json.dumps(body).encode()))
    engine, leg = (here.p, "prefill") if phase == "prefill" else (here.d, "decode")
    await eventually(lambda: len(engine.generations(leg)) == 1)  # type: ignore[arg-type]
    if phase == "stream":
        await client.until(lambda data: b"data: {" in data)
    await asyncio.sleep(0.05)
    if how == "reset":
        client.reset()
    else:
        client.close()
    (request,) = engine.generations(leg)  # type: ignore[arg-type]
    await eventually(lambda: request.disconnected_s is not None, within_s=2)
    if phase == "prefill":
        assert here.d.generations() == []
    await here.idle()
    assert await here.metric("orphaned_prefills_total") == (1 if phase == "decode" else 0)
    assert await here.metric("requests_total", code="499") == 1
    assert not here.router.transport.busy


async def test_cancelled_requests_leave_no_connection_behind(site: MakeSite) -> None:
    """Q84: after many cancels in different phases the engines hold few connections, and requests go on."""
    here = await site()
    here.d.set_pace(step_s=0.004)
    for number in range(60):
        client = await RawClient.connect(here.router.port)
        client.send(
            raw_post("/v1/completions", json.dumps({**STREAM, "prompt": f"{number}", "max_tokens": 50}).encode())
        )
        await asyncio.sleep(0.0007 * number)
        client.reset()
    await here.idle()
    await eventually(lambda: not here.router.transport.busy)
    await eventually(lambda: here.p.connections + here.d.connections <= 4)
    for _ in range(5):
        assert (await here.complete()).status_code == 200


async def test_a_prefill_that_nobody_pulls_is_counted(site: MakeSite) -> None:
    """Q92: a client that leaves just after prefill answered leaves an orphan, which is counted."""
    here = await site()
    here.d.add_rule(leg="decode", never_answer=True)
    client = await RawClient.connect(here.router.port)
    client.send(raw_post("/v1/completions", json.dumps(STREAM).encode()))
    await eventually(lambda: len(here.d.generations()) == 1)
    client.reset()
    await here.idle()
    assert await here.metric("orphaned_prefills_total") == 1


# --- back-pressure and time ------------------------------------------------------------------------------------------
async def test_a_slow_reader_pauses_the_engine_and_is_not_taken_for_silence(site: MakeSite) -> None:
    """A client that does not read bounds what is held for it, does not end by the idle limit.

    And gets all in the end.
    """
    here = await site(limits={"idleSeconds": 0.6})
    here.d.add_rule(leg="decode", text=["x" * 60_000] * 200)
    client = await RawClient.connect(here.router.port)
    client.transport.pause_reading()
    client.send(raw_post("/v1/completions", json.dumps({**STREAM, "max_tokens": 200}).encode()))
    await eventually(lambda: any(one.paused for one in here.router.transport.busy))
    (connection,) = here.router.server.connections
    held = connection._transport.get_write_buffer_size()  # type: ignore[union-attr]
    assert held < 2_000_000
    await asyncio.sleep(1.2)  # twice the idle limit
    client.transport.resume_reading()
    await client.until(lambda data: b"data: [DONE]" in data[-64:])
    assert len(client.received) > 12_000_000


async def test_a_stream_that_falls_silent_ends_with_an_error_event(site: MakeSite) -> None:
    """Q78: a pause shorter than `idleSeconds` is no fault.

    A longer one ends the stream with an error and without [DONE].
    """
    here = await site(limits={"idleSeconds": 0.8})
    here.d.set_pace(step_s=0.4)
    slow = await here.client.post("/v1/completions", json={**STREAM, "max_tokens": 4})
    assert slow.text.endswith("data: [DONE]\n\n")
    here.d.set_pace(step_s=0)
    here.d.set_pace(step_s=3)
    text = (await here.client.post("/v1/completions", json=STREAM)).text
    assert "[DONE]" not in text
    assert '"error"' in text


async def test_shutdown_finishes_what_was_accepted(site: MakeSite) -> None:
    """Draining: not ready at once, running streams end whole, also their decode leg, and new requests get 503."""
    here = await site()
    here.p.add_rule(leg="prefill", delay_headers_s=0.3)
    here.d.set_pace(step_s=0.05)
    idle = await RawClient.connect(here.router.port)
    running = asyncio.create_task(here.client.post("/v1/completions", json=STREAM))
    await eventually(lambda: len(here.p.generations()) == 1)
    draining = asyncio.create_task(here.router.drain())
    await asyncio.sleep(0)
    admin = f"http://127.0.0.1:{here.router.admin_port}"
    assert (await here.client.get(f"{admin}/readyz")).status_code == 503
    assert (await here.client.get(f"{admin}/livez")).status_code == 200
    assert (await here.client.get("/health")).status_code == 503
    refused = await here.complete()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["connection"] == "close"
    assert not draining.done()
    answer = await running
    assert answer.text.endswith("data: [DONE]\n\n")
    await asyncio.wait_for(draining, 30)
    assert await idle.rest() == b""


async def test_shutdown_waits_for_a_body_that_arrives(site: MakeSite) -> None:
    """A request whose head was accepted is served, though its body comes after the shutdown began."""
    here = await site()
    body = json.dumps({**STREAM, "stream": False}).encode()
    client = await RawClient.connect(here.router.port)
    whole = raw_post("/v1/completions", body)
    client.send(whole[:-10])
    await eventually(lambda: any(connection.busy for connection in here.router.server.connections))
    draining = asyncio.create_task(here.router.drain())
    await asyncio.sleep(0.2)
    assert not draining.done()
    client.send(whole[-10:])
    head, _ = await client.answer()
    assert head.startswith(b"HTTP/1.1 200 ")
    await asyncio.wait_for(draining, 30)


async def test_shutdown_waits_until_a_slow_client_has_its_answer(site: MakeSite) -> None:
    """An answer that is written but that no kernel has room for yet is not cut off."""
    here = await site()
    answer = json.dumps({"choices": [{"index": 0, "text": "x" * 3_000_000, "finish_reason": "stop"}]}).encode()
    here.d.add_rule(leg="decode", status=200, body=answer.decode(), headers={"content-type": "application/json"})
    client = await RawClient.connect(here.router.port)
    client.transport.pause_reading()
    await eventually(lambda: len(here.router.server.connections) == 1)
    (connection,) = here.router.server.connections
    transport = connection._transport
    assert transport is not None
    ours = transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    client.send(raw_post("/v1/completions", json.dumps({**STREAM, "stream": False}).encode()))
    await eventually(lambda: len(here.d.generations()) == 1)
    await here.idle()
    draining = asyncio.create_task(here.router.drain())
    await asyncio.sleep(0.2)
    assert not draining.done()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
    client.transport.resume_reading()
    _, body = await client.answer()
    assert body == answer
    await asyncio.wait_for(draining, 30)


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_an_answer_too_big_to_hold_arrives_whole(framing: str) -> None:
    """An answer of megabytes that is no stream is forwarded as it comes, to its end, however the engine frames it."""
    big = json.dumps({"choices": [{"index": 0, "text": "x" * 6_000_000, "finish_reason": "stop"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    if framing == "length":
        wire = head + b"content-length: %d\r\n\r\n" % len(big) + big
    else:
        pieces = (big[start : start + 100_000] for start in range(0, len(big), 100_000))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        wire = head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /health "):
                writer.write(wire)
                await reader.read()
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    static = [{"role": "aggregated", "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}]
    try:
        async with (
            running(config(static)) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20) as client,
        ):
            answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": "p"})
            assert answer.status_code == 200
            assert answer.content == big
            assert (await client.get("/v1/models")).status_code == 200
    finally:
        server.close()


async def test_the_engines_own_caching_header_is_not_repeated(site: MakeSite) -> None:
    """Q73: a stream says once that it is not to be cached or buffered, whatever the engine says."""
    here = await site()
    here.d.add_rule(leg="decode", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    answer = await here.client.post("/v1/completions", json=STREAM)
    assert answer.headers.get_list("cache-control") == ["no-cache"]
    assert answer.headers.get_list("x-accel-buffering") == ["no"]


TEXT = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a \\"role\\""},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("path", "events", "tokens"),
    [
        ("/v1/completions", [], False),
        ("/v1/completions", [TEXT], True),
        ("/v1/chat/completions", [ROLE], False),
        ("/v1/chat/completions", [ROLE, WORD], True),
        ("/v1/chat/completions", [WORD], True),
    ],
)
async def test_an_abort_is_judged_by_tokens_not_by_reads(path: str, events: list[bytes], *, tokens: bool) -> None:
    """A stream that is aborted after tokens ends with an error event, though all of it came in one read.

    What tells only the role is no token.
    """
    last = [b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n', b"data: [DONE]\n\n"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events + last) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /health "):
                writer.write(head + body)
                await reader.read()
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    static = [{"role": "aggregated", "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}]
    try:
        async with (
            running(config(static)) as router,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}") as client,
        ):
            answer = await client.post(path, json={**STREAM, "messages": [{"role": "user", "content": "a"}]})
    finally:
        server.close()
    assert b"[DONE]" not in answer.content
    if tokens:
        assert answer.status_code == 200
        assert answer.content.startswith(b"".join(events) + b'data: {"error":')
    else:
        assert answer.status_code == 502
