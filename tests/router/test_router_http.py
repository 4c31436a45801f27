"""HTTP/1.1 towards clients, to the letter: order, framing, limits, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from pdpool_router.edge import connection
from tests.router.conftest import PROMPT, RawClient, config, eventually, raw_post, running

if TYPE_CHECKING:
    from tests.router.conftest import MakeSite, Site

BODY = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 2}).encode()


JSON = {"content-type": "application/json"}
ANSWERS = re.compile(rb"HTTP/1\.1 \d{3}")


def status_of(head: bytes) -> int:
    assert head.startswith(b"HTTP/1.1 ")
    return int(head[9:12])


async def raw(here: Site) -> RawClient:
    return await RawClient.connect(here.router.port)


# --- order -----------------------------------------------------------------------------------------------------------
async def test_pipelined_requests_are_answered_in_order(site: MakeSite) -> None:
    """Several requests sent at once get their answers one after the other, slow ones included."""
    here = await site()
    here.p.add_rule(contains="first", delay_headers_s=0.2)
    client = await raw(here)
    requests = [json.dumps({"model": "tiny", "prompt": word, "max_tokens": 2}).encode() for word in ("first", "second")]
    client.send(
        raw_post("/v1/completions", requests[0], "x-request-id: 1")
        + raw_post("/v1/completions", requests[1], "x-request-id: 2")
        + b"GET /v1/models HTTP/1.1\r\nhost: r\r\nx-request-id: 3\r\n\r\n"
    )
    for number in (b"1", b"2", b"3"):
        head, _ = await client.answer()
        assert status_of(head) == 200
        assert b"x-request-id: " + number + b"\r\n" in head
    client.close()


async def test_a_long_pipeline_is_served_whole(site: MakeSite) -> None:
    """More pipelined requests than are kept at once are all answered."""
    here = await site()
    client = await raw(here)
    count = 4 * connection.MAX_PIPELINED
    client.send(b"".join(b"GET /health HTTP/1.1\r\nhost: r\r\nx-request-id: %d\r\n\r\n" % n for n in range(count)))
    for number in range(count):
        head, _ = await client.answer()
        assert b"x-request-id: %d\r\n" % number in head
    client.close()


async def test_a_request_may_come_byte_by_byte(site: MakeSite) -> None:
    """A request split at every byte is the same request."""
    here = await site()
    client = await raw(here)
    for byte in raw_post("/v1/completions", BODY):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    head, body = await client.answer()
    assert status_of(head) == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 2
    client.close()


async def test_a_chunked_body_is_one_body(site: MakeSite) -> None:
    """A body in chunks, with extensions and a trailer, reaches the engines whole, with a length."""
    here = await site()
    client = await raw(here)
    pieces = b"".join(b"%x;note=1\r\n%b\r\n" % (len(BODY[n : n + 7]), BODY[n : n + 7]) for n in range(0, len(BODY), 7))
    client.send(
        b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\nx-trailer: 1\r\n\r\n"
    )
    head, _ = await client.answer()
    assert status_of(head) == 200
    (decode,) = here.d.generations("decode")
    assert decode.header("transfer-encoding") is None
    assert decode.header("x-trailer") is None
    client.close()


async def test_expect_100_continue_is_answered_before_the_body(site: MakeSite) -> None:
    """A client that waits for 100 Continue gets it once its request is sound, and else the refusal at once."""
    here = await site()
    client = await raw(here)
    whole = raw_post("/v1/completions", BODY, "expect: 100-continue")
    head_end = whole.index(b"\r\n\r\n") + 4
    client.send(whole[:head_end])
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(whole[head_end:])
    head, _ = await client.answer()
    assert status_of(head) == 200
    client.send(
        raw_post("/nowhere", b"", "expect: 100-continue", "x-n: 1").replace(b"content-length: 0", b"content-length: 9")
    )
    head, _ = await client.answer()
    assert status_of(head) == 404
    assert await client.rest() == b""


async def test_another_expectation_is_417(site: MakeSite) -> None:
    """Only 100-continue can be expected."""
    here = await site()
    answer = await here.client.post("/v1/completions", json={}, headers={"expect": "a-miracle"})
    assert answer.status_code == 417


async def test_head_and_options_are_sane(site: MakeSite) -> None:
    """HEAD answers as GET without a body; OPTIONS and other methods on a known path are 405 with Allow."""
    here = await site()
    answer = await here.client.head("/v1/models")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
    refused = await here.client.options("/v1/chat/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert refused.json()["error"]["code"] == "method_not_allowed"
    assert (await here.client.get("/v1/completions")).status_code == 405
    assert (await here.client.delete("/v1/models/tiny")).status_code == 405
    assert (await here.client.head("/v1/completions")).status_code == 405


async def test_http_1_0_gets_an_answer_it_understands(site: MakeSite) -> None:
    """An HTTP/1.0 client gets a stream without chunks that ends with the connection, or keep-alive where it asks."""
    here = await site()
    client = await raw(here)
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "stream": True}).encode()
    client.send(raw_post("/v1/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, payload = (await client.rest()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert payload.startswith(b"data: {")
    assert payload.endswith(b"data: [DONE]\n\n")
    kept = await raw(here)
    for _ in range(2):
        kept.send(b"GET /v1/models HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        head, _ = await kept.answer()
        assert b"connection: keep-alive" in head
    kept.close()


async def test_connection_close_ends_the_connection(site: MakeSite) -> None:
    """`Connection: close` gets its answer, told so, and then the end."""
    here = await site()
    client = await raw(here)
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n")
    head, _ = await client.answer()
    assert b"connection: close\r\n" in head
    assert await client.rest() == b""


async def test_headers_of_the_connection_go_no_further(site: MakeSite) -> None:
    """What `Connection` names concerns the client's connection alone, though it is configured to be forwarded."""
    here = await site(forwardHeaders=["x-one", "x-two"])
    for options in ("X-One", "close, x-one", "keep-alive ,\tx-ONE"):
        headers = {"connection": options, "x-one": "1", "x-two": "2"}
        answer = await here.client.post("/v1/completions", content=BODY, headers=headers | JSON)
        assert answer.status_code == 200, answer.text
    for served in [*here.p.generations(), *here.d.generations()]:
        assert (served.header("x-one"), served.header("x-two")) == (None, "2")
    assert len(here.d.generations()) == 3


async def test_an_upgrade_is_not_followed(site: MakeSite) -> None:
    """A client that offers another protocol (h2c) is served in HTTP/1.1, and the next request too."""
    here = await site()
    client = await raw(here)
    upgrade = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA")
    for _ in range(2):
        client.send(raw_post("/v1/completions", BODY, *upgrade))
        head, _ = await client.answer()
        assert status_of(head) == 200
    client.send(raw_post("/v1/completions", BODY, *upgrade) + b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
    assert status_of((await client.answer())[0]) == 200
    assert status_of((await client.answer())[0]) == 200
    client.close()


async def test_a_client_that_only_ends_its_sending_gets_its_answer(site: MakeSite) -> None:
    """Half-close: the answer still comes, a stream too, and then the end."""
    here = await site()
    here.p.add_rule(delay_headers_s=0.3)
    for stream in (False, True):
        client = await raw(here)
        body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 2, "stream": stream}).encode()
        client.send(raw_post("/v1/completions", body))
        client.end_sending()
        received = await client.rest()
        while received.startswith(b"HTTP/1.1 100"):
            received = received.partition(b"\r\n\r\n")[2]
        assert status_of(received) == 200
        assert b"data: [DONE]" in received if stream else received.rstrip().endswith(b"}")


# --- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("content-length: 5\r\ntransfer-encoding: chunked", 400),
        ("transfer-encoding: chunked\r\ncontent-length: 5", 400),
        ("content-length: 5\r\ncontent-length: 6", 400),
        ("content-length: 5\r\ncontent-length: 5", 400),
        ("content-length: +5", 400),
        ("content-length: 0x5", 400),
        ("content-length: 5, 5", 400),
        ("content-length: -1", 400),
        ("transfer-encoding: xchunked", 501),
        ("transfer-encoding: chunked, identity", 400),
        ("transfer-encoding: identity", 501),
        ("transfer-encoding: gzip, chunked", 501),
        ("transfer-encoding : chunked", 400),
        ("transfer-encoding:\x0bchunked", 400),
        ("x: a\r\n folded", 400),
        ("x: a\nbare: lf", 400),
        ("x: \x00", 400),
        ("host: again", 400),
    ],
)
async def test_ambiguous_requests_are_refused(site: MakeSite, lines: str, status: int) -> None:
    """What two readers could frame differently is refused and ends the connection; nothing reaches an engine."""
    here = await site()
    client = await raw(here)
    client.send(
        f"POST /v1/completions HTTP/1.1\r\nhost: r\r\n{lines}\r\n\r\n".encode("latin-1")
        + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
    )
    received = await client.rest()
    assert status_of(received) in (status, 400)
    assert len(ANSWERS.findall(received)) == 1
    assert b"connection: close\r\n" in received
    assert all(engine.generations() == [] for engine in here.engines)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /v1/models HTTP/1.1\r\n\r\n",  # no Host
        b"GET /v1/models HTTP/9.9\r\nhost: r\r\n\r\n",
        b"GET /v1/models\r\nhost: r\r\n\r\n",
        b"G\xffT / HTTP/1.1\r\nhost: r\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a plain port
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused(site: MakeSite, request_line: bytes) -> None:
    """Broken request lines get one error answer and the end of the connection."""
    here = await site()
    client = await raw(here)
    client.send(request_line)
    received = await client.rest()
    assert status_of(received) in (400, 505)
    assert len(ANSWERS.findall(received)) == 1


async def test_a_broken_request_behind_a_good_one_waits_its_turn(site: MakeSite) -> None:
    """The good request is answered first, then the broken one is refused."""
    here = await site()
    here.p.add_rule(delay_headers_s=0.1)
    client = await raw(here)
    client.send(raw_post("/v1/completions", BODY) + b"GARBAGE\r\n\r\n")
    head, _ = await client.answer()
    assert status_of(head) == 200
    head, _ = await client.answer()
    assert status_of(head) == 400
    assert await client.rest() == b""


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/metrics",
        "/metrics?x=1",
        "/v1/../sleep",
        "//sleep",
        "/v1/%2e%2e/sleep",
        "/invocations",
        "/v1/embeddings",
        "//v1/completions",
        "/v1//completions",
        "/v1/%63ompletions",
        "/v1/completions/",
        "/V1/completions",
        "/v1/completions%00",
        "/v1/completions;x",
        "/v1/chat/completions/render",
        "/inference/v1/generate",
        "/",
        "*",
        "/v1/./completions",
        "http://engine:8000/sleep",
        "HTTPS://engine/sleep",
        "http://r",
        "http:///v1/completions",
        "http://user@r/v1/completions",
        "http://r//v1/completions",
        "http://r/http://r/v1/completions",
        "ftp://r/v1/completions",
        "/v1/completions#x",
        "/v1/chat/completions/batch",
        "/pause",
        "/server_info",
        "/kv_event_sources",
    ],
)
async def test_unknown_paths_and_tricks_reach_no_engine(site: MakeSite, path: str) -> None:
    """Q103: engine routes and other spellings of known paths are 404 in OpenAI's shape, and no engine sees them."""
    here = await site()
    client = await raw(here)
    client.send(raw_post("/x", BODY).replace(b"/x", path.encode(), 1))
    head, body = await client.answer()
    assert status_of(head) == 404
    assert json.loads(body)["error"]["code"] == "not_found"
    client.close()
    own = {"/health", "/metrics", "/kv_event_sources"}
    assert all(one.path in own for engine in here.engines for one in engine.requests if one.method == "GET")
    assert all(one.method == "GET" for engine in here.engines for one in engine.requests)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/tiny?x=1",
        "http://r/v1/models/tiny",
        "HTTP://r:80/v1/models/tiny?x=http://r/sleep",
        "hTTps://[::1]:443/v1/models/tiny",
    ],
)
async def test_a_target_may_be_an_absolute_url(site: MakeSite, target: str) -> None:
    """RFC 9112: a server takes targets in absolute form, whose scheme has no case; a query changes no route."""
    here = await site()
    client = await raw(here)
    client.send(f"GET {target} HTTP/1.1\r\nhost: r\r\n\r\n".encode())
    head, body = await client.answer()
    assert status_of(head) == 200
    assert json.loads(body)["id"] == "tiny"
    client.close()


async def test_unknown_models_call_no_leg(site: MakeSite) -> None:
    """Q92: an unknown model is 404 `model_not_found` in OpenAI's shape without a call; a missing one is the primary."""
    here = await site()
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"):
        answer = await here.client.post(path, json={"model": "no/such", "prompt": "x"})
        assert answer.status_code == 404
        error = answer.json()["error"]
        kind = "not_found_error" if path == "/v1/messages" else "invalid_request_error"
        assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", kind)
        assert answer.headers["x-pdpool-prefill"] == "none"
    assert all(engine.generations() == [] for engine in here.engines)
    assert (await here.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).status_code == 200
    assert await here.metric("requests_total", model="other", code="404") == 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"model":5}',
        b'{"model":"tiny"',
        b"\xff\xfe\x00",
        b'{"a":1}{"b":2}',
        b'{"a":' * 100_000,
    ],
)
async def test_bodies_that_are_no_json_object_are_400(site: MakeSite, body: bytes) -> None:
    """A body that no engine would read is 400 without a call, and the message holds nothing of it."""
    here = await site()
    answer = await here.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert all(engine.generations() == [] for engine in here.engines)


# --- limits ----------------------------------------------------------------------------------------------------------
async def test_a_body_over_the_limit_is_413_before_it_is_read(site: MakeSite) -> None:
    """Q88: by its length at once, by its chunks as soon as they pass the limit.

    What is within it goes through whole.
    """
    here = await site(limits={"maxBodyBytes": 100_000})
    big = json.dumps({"model": "tiny", "prompt": "x " * 45_000, "max_tokens": 1}).encode()
    assert len(big) < 100_000
    fits = await here.client.post("/v1/completions", content=big, headers={"content-type": "application/json"})
    assert fits.status_code in (200, 400)  # whether the model's context holds it is the engine's business
    assert here.p.generations()[0].body.count(b"x ") == 45_000
    by_length = await raw(here)
    by_length.send(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 200000\r\n\r\n" + b"x" * 1000)
    head, body = await by_length.answer()
    assert status_of(head) == 413
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert await by_length.rest() == b""
    by_chunks = await raw(here)
    by_chunks.send(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(11):
        by_chunks.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
    head, _ = await by_chunks.answer()
    assert status_of(head) == 413
    assert len(here.p.generations()) == 1


async def test_a_client_that_sends_on_after_413_still_reads_it(site: MakeSite) -> None:
    """An ordinary client that sends all of a too long body gets the 413, not a reset."""
    here = await site(limits={"maxBodyBytes": 1000})
    answer = await here.client.post("/v1/completions", content=b"x" * 3_000_000)
    assert answer.status_code == 413


async def test_headers_over_the_limit_are_431(site: MakeSite) -> None:
    """One endless header, and very many headers, are refused."""
    here = await site()
    client = await raw(here)
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\nx: ")
    for _ in range(40):
        client.send(b"a" * 16_384)
        await asyncio.sleep(0)
    assert status_of(await client.rest()) == 431
    client = await raw(here)
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n" + b"".join(b"x-%d: 1\r\n" % n for n in range(400)) + b"\r\n")
    assert status_of(await client.rest()) in (400, 431)


@pytest.mark.parametrize("tail", [b"1;" + b"x" * 400_000, b"0\r\nx: " + b"y" * 400_000])
async def test_endless_chunk_extensions_and_trailers_are_refused(site: MakeSite, tail: bytes) -> None:
    """What is no body cannot be sent without end."""
    here = await site()
    client = await raw(here)
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(tail), 8192):
        client.send(tail[start : start + 8192])
        await asyncio.sleep(0)
    assert status_of(await client.rest()) in (400, 431)


async def test_slow_headers_and_bodies_end_with_408(site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that drips its request is ended; one that is idle between requests is not."""
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    monkeypatch.setattr(connection, "BODY_SILENCE_S", 0.5)
    here = await site()
    idle = await raw(here)
    idle.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
    await idle.answer()
    head = await raw(here)
    head.send(b"GET /v1/mod")
    body = await raw(here)
    body.send(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\n{")
    assert status_of(await head.rest()) == 408
    assert status_of(await body.rest()) == 408
    idle.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
    assert status_of((await idle.answer())[0]) == 200
    assert connection.IDLE_S >= 75


async def test_requests_above_max_concurrent_wait_for_their_turn(site: MakeSite) -> None:
    """`maxConcurrent` bounds what is served at once; more wait in line, and none fails."""
    here = await site(limits={"maxConcurrent": 2})
    here.d.add_rule(delay_headers_s=0.1)
    answers = await asyncio.gather(*(here.complete() for _ in range(6)))
    assert [one.status_code for one in answers] == [200] * 6
    assert await here.metric("queued", model="tiny") == 0


async def test_requests_above_max_concurrent_and_max_queued_are_503(site: MakeSite) -> None:
    """Without a place in line there is 503 with Retry-After, at once."""
    here = await site(limits={"maxConcurrent": 3, "maxQueued": 0})
    here.d.add_rule(delay_headers_s=0.4)
    answers = await asyncio.gather(*(here.complete() for _ in range(6)))
    assert sorted(one.status_code for one in answers) == [200, 200, 200, 503, 503, 503]
    refused = next(one for one in answers if one.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "saturated"


# --- the rest of the API ---------------------------------------------------------------------------------------------
async def test_models_are_the_pools_names(site: MakeSite) -> None:
    """`/v1/models` lists the served names, `/v1/models/{id}` finds each, also a name with a slash, plain or encoded."""
    here = await site(model={"servedNames": ["tiny", "org/tiny"]})
    listed = (await here.client.get("/v1/models")).json()
    assert [one["id"] for one in listed["data"]] == ["tiny", "org/tiny"]
    for path in ("/v1/models/tiny", "/v1/models/org/tiny", "/v1/models/org%2Ftiny"):
        assert (await here.client.get(path)).status_code == 200
    missing = await here.client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_tokenize_and_its_kin_are_passed_to_one_engine(site: MakeSite) -> None:
    """`/tokenize`, `/detokenize` and `/v1/messages/count_tokens` are answered by one engine.

    And tried at another once.
    """
    here = await site(prefill=1, decode=2)
    answer = await here.client.post("/tokenize", json={"model": "tiny", "prompt": "hello"})
    assert answer.status_code == 200
    tokens = answer.json()["tokens"]
    back = await here.client.post("/detokenize", json={"model": "tiny", "tokens": tokens})
    assert back.json()["prompt"] == "hello"
    assert answer.headers["x-pdpool-prefill"] == "none"
    await here.decode[0].close_listener()
    for _ in range(4):
        assert (await here.client.post("/tokenize", json={"model": "tiny", "prompt": "hello"})).status_code == 200
    assert here.p.generations() == []


async def test_ipv6_is_spoken_on_both_sides(site: MakeSite) -> None:
    """Q67: an engine at an IPv6 address is reached, with brackets in its Host header, and its metrics are read.

    A router that listens on one answers there.
    """
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 loopback here")
    here = await site(engine={"host": "::1"})
    assert (await here.complete()).status_code == 200
    assert here.d.generations()[0].header("host") == f"[::1]:{here.d.port}"
    loads = here.router.endpoints.loads.loads
    await eventually(lambda: [load.reported for load in loads.values()] == [True, True])
    assert await here.metric("stale_endpoints") == 0
    static = [{"role": "aggregated", "url": here.d.url}]
    async with running(config(static), host="::1") as router, httpx.AsyncClient(timeout=20) as client:
        for port, path in ((router.port, "v1/models"), (router.admin_port, "readyz")):
            assert (await client.get(f"http://[::1]:{port}/{path}")).status_code == 200


async def test_nothing_of_a_request_is_logged_or_counted(site: MakeSite, capfd: pytest.CaptureFixture[str]) -> None:
    """Prompts, credentials and model names of clients appear in no log, metric or error."""
    here = await site()
    here.d.add_rule(leg="decode", status=500)
    canary = {"authorization": "Bearer CANARY-KEY"}
    await here.client.post("/v1/completions", json={"model": "tiny", "prompt": "CANARY-PROMPT"}, headers=canary)
    await here.client.post("/v1/completions", json={"model": "CANARY-MODEL", "prompt": "x"}, headers=canary)
    text = (await here.client.get(f"http://127.0.0.1:{here.router.admin_port}/metrics")).text
    snapshot = (await here.client.get(f"http://127.0.0.1:{here.router.admin_port}/debug/snapshot")).text
    logged = "".join(capfd.readouterr())
    assert "CANARY" not in text + snapshot + logged
    assert all(one.header("authorization") is None for engine in here.engines for one in engine.generations())


async def test_connections_are_forgotten_when_they_end(site: MakeSite) -> None:
    """No connection of a client is kept in memory after it ended."""
    here = await site()
    clients = [await raw(here) for _ in range(10)]
    for client in clients:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
        await client.answer()
    for client in clients:
        client.reset()
    await eventually(lambda: not here.router.server.connections)
