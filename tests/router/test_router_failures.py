"""The table of failures: what is tried again, what is passed on, who sees what."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pdpool_router.state import health
from tests.router.conftest import PROMPT, RawClient, config, eventually, raw_post

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdpool_api.router_config import RouterConfig
    from tests.router.conftest import MakeSite, Site

STREAM = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "stream": True}

SPREAD = {"policy": "LeastLoaded"}
"""Equal prompts go to all engines, as they would not where prefixes count."""


def failure_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error in OpenAI's shape."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    return answer.status_code, error["code"]


# --- prefill ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"reset_after_bytes": 0}, {"invalid_json": True}, {"finish_reason": "abort"}]
)
async def test_a_failed_prefill_is_tried_once_elsewhere(site: MakeSite, fault: dict[str, Any]) -> None:
    """5xx, a reset, an unreadable answer or an abort of prefill: once at another prefill.

    The client sees nothing of it.
    """
    here = await site(prefill=2, routing=SPREAD)
    here.prefill[0].add_rule(leg="prefill", **fault)
    for _ in range(6):
        assert (await here.complete()).status_code == 200
    tried = len(here.prefill[0].generations())
    assert tried >= 1
    assert await here.metric("retries_total", leg="prefill") == tried
    assert len(here.d.generations()) == 6


async def test_a_prefill_is_tried_no_third_time(site: MakeSite) -> None:
    """Where the second prefill fails too the client gets 502, though a third is there."""
    here = await site(prefill=3)
    for engine in here.prefill:
        engine.add_rule(leg="prefill", status=500)
    assert failure_of(await here.complete()) == (502, "engine_failure")
    assert sum(len(engine.generations()) for engine in here.prefill) == 2
    assert here.d.generations() == []


@pytest.mark.parametrize("fault", [{"status": 500}, {"reset_after_bytes": 0}, {"finish_reason": "error"}])
async def test_a_prefill_that_fails_alone_is_502_at_once(site: MakeSite, fault: dict[str, Any]) -> None:
    """Q46: without another prefill a failure is 502 in less than a second, and decode sees nothing."""
    here = await site()
    here.p.add_rule(leg="prefill", **fault)
    async with asyncio.timeout(1):
        assert failure_of(await here.complete())[0] == 502
    assert here.d.generations() == []


@pytest.mark.parametrize("fault", [{"finish_reason": "abort"}, {"invalid_json": True}])
async def test_a_prefill_whose_answers_are_no_success_is_left_out(site: MakeSite, fault: dict[str, Any]) -> None:
    """Answers of status 200 that hand nothing over count as failures of prefill, so that the fallback comes in."""
    here = await site()
    here.p.add_rule(leg="prefill", **fault)
    answers = [await here.complete() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [502, 502, 502, 200]
    assert answers[-1].headers["x-pdpool-prefill"] == "local"


SILENCE = pytest.mark.parametrize("silence", [{"never_answer": True}, {"delay_body_s": 60}], ids=["at all", "in body"])


@SILENCE
async def test_a_prefill_that_does_not_end_its_answer_is_504(site: MakeSite, silence: dict[str, Any]) -> None:
    """Q46: a silent prefill is given up after `prefillSeconds`; nothing is tried again and decode sees nothing."""
    here = await site(prefill=2, limits={"prefillSeconds": 0.5})
    for engine in here.prefill:
        engine.add_rule(leg="prefill", **silence)
    assert failure_of(await here.complete()) == (504, "engine_timeout")
    assert here.d.generations() == []
    assert sum(len(engine.generations()) for engine in here.prefill) == 1
    await here.idle()


async def test_a_client_error_of_prefill_passes_once(site: MakeSite) -> None:
    """A 4xx of prefill is the client's answer, body intact, unretried, and blamed on nobody."""
    here = await site(prefill=2)
    for engine in here.prefill:
        engine.add_rule(
            leg="prefill", status=429, headers={"retry-after": "7"}, body='{"error":{"message":"slow down"}}'
        )
    for _ in range(8):
        answer = await here.complete()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.text == '{"error":{"message":"slow down"}}'
    assert sum(len(engine.generations()) for engine in here.prefill) == 8
    assert here.d.generations() == []
    assert await here.metric("retries_total") == 0
    assert await here.metric("endpoints", state="failing") == 0


async def test_without_any_prefill_the_fallback_decides(site: MakeSite) -> None:
    """Q49: `Local` lets decode compute the prompt, counted and told.

    `Fail` is 503 with Retry-After and `/health` says so.
    """
    local = await site(prefill=0)
    answer = await local.complete()
    assert answer.status_code == 200
    assert answer.headers["x-pdpool-prefill"] == "local"
    assert "kv_transfer_params" not in local.d.generations()[0].json()
    assert await local.metric("local_prefill_total", reason="no_prefill") == 1
    assert (await local.client.get("/health")).status_code == 200
    strict = await site(prefill=0, routing={"onPrefillUnavailable": "Fail"})
    refused = await strict.complete()
    assert failure_of(refused) == (503, "no_prefill")
    assert int(refused.headers["retry-after"]) >= 1
    assert strict.d.generations() == []
    assert (await strict.client.get("/health")).status_code == 503


async def test_a_prefill_that_refuses_connections_is_no_hang(site: MakeSite) -> None:
    """Prefill down: under `Local` decode answers, under `Fail` 503, both in well under the connect timeout."""
    for policy, status in (("Local", 200), ("Fail", 503)):
        here = await site(routing={"onPrefillUnavailable": policy})
        await here.p.close_listener()
        async with asyncio.timeout(2):
            answer = await here.complete()
        assert answer.status_code == status
        assert len(here.d.generations()) == (1 if status == 200 else 0)


async def test_prompts_computed_for_want_of_a_prefill_are_bounded(site: MakeSite) -> None:
    """`maxLocalPrefills` bounds how many prompts one decode computes at once; more are 503 with Retry-After."""
    here = await site(prefill=0, limits={"maxLocalPrefills": 2})
    here.d.add_rule(delay_headers_s=0.5)
    answers = await asyncio.gather(*(here.complete() for _ in range(5)))
    codes = sorted(one.status_code for one in answers)
    assert codes == [200, 200, 503, 503, 503]
    assert (await here.complete()).status_code == 200


# --- decode ----------------------------------------------------------------------------------------------------------
async def test_a_decode_that_refuses_connections_is_replaced_with_the_same_parameters(site: MakeSite) -> None:
    """Connect refused at decode: the same parameters once to another decode; prefill works once."""
    here = await site(decode=2)
    await here.decode[0].close_listener()
    for _ in range(6):
        assert (await here.complete()).status_code == 200
    assert len(here.p.generations()) == 6
    assert len(here.decode[1].generations("decode")) == 6


# --- endpoints that vanish between the choice and the connection -----------------------------------------------------
@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address at which connections are neither made nor refused: its line is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(2):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


UNREACHABLE = "http://224.0.0.1:8000"
"""A group of hosts: no system connects to one."""


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["is gone", "cannot be reached", "does not answer"])
@pytest.mark.parametrize("alone", [False, True], ids=["of two", "alone"])
async def test_an_endpoint_that_vanishes_before_it_is_connected_to(
    site: MakeSite, role: str, how: str, *, alone: bool
) -> None:
    """Chosen, but no connection: prefill once elsewhere, else the fallback; decode the same parameters once elsewhere.

    The same whether it left the list while the connection was being made, its address cannot be reached, or nothing
    answers there in time. That a connection was refused is told by tests of its own.
    """
    here = await site()
    await here.complete()  # so that there are connections to those that are well: only one is still to be made
    for engine in here.engines:
        engine.requests.clear()
    engines = {"prefill": here.p, "decode": here.d}
    well = engines.pop(role)
    ((other_role, other),) = engines.items()
    with black_hole() as nowhere:

        def listed(*urls: str) -> RouterConfig:
            static = [{"role": role, "url": url} for url in urls] + [{"role": other_role, "url": other.url}]
            patience_s = 1 if how == "does not answer" else 600
            return config(static, routing=SPREAD, limits={"connectSeconds": patience_s})

        left = [] if alone else [well.url]
        here.router.configure(listed(UNREACHABLE if how == "cannot be reached" else nowhere, *left))
        # Those that are well are busy, so that the other is chosen.
        port = httpx.URL(well.url).port
        busy = [here.router.endpoints.inflight.reserve(one) for one in here.router.endpoints.all() if one.port == port]
        asked = asyncio.create_task(here.complete())
        if how == "is gone":
            hole = httpx.URL(nowhere).port
            await eventually(lambda: any(one.endpoint.port == hole for one in here.router.transport._dialling))
            here.router.configure(listed(*left))
        answer = await asked
        for lease in busy:
            lease.release()
    if not alone:
        assert (answer.status_code, answer.headers["x-pdpool-prefill"]) == (200, "remote")
        assert await here.metric("retries_total", leg=role) == 1
        assert (len(here.p.generations()), len(here.d.generations())) == (1, 1)
    elif role == "prefill":
        assert (answer.status_code, answer.headers["x-pdpool-prefill"]) == (200, "local")
        assert "kv_transfer_params" not in here.d.generations()[0].json()
    else:
        assert failure_of(answer)[0] == 502
        assert await here.metric("orphaned_prefills_total") == 1
    await here.idle()


@pytest.mark.parametrize("fault", [{"status": 500}, {"reset_after_bytes": 0}, {"finish_reason": "abort"}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_that_fails_before_its_first_byte_costs_another_pair(
    site: MakeSite, fault: dict[str, Any], *, stream: bool
) -> None:
    """A reset, 5xx or abort of decode before its first byte: both legs once more, on another pair.

    With new parameters.
    """
    here = await site(prefill=2, decode=2, routing=SPREAD)
    here.decode[0].add_rule(leg="decode", **fault)
    for _ in range(6):
        answer = await here.complete(stream=stream)
        assert answer.status_code == 200, answer.text
        assert '"finish_reason":"abort"' not in answer.text
    assert await here.metric("retries_total", leg="pair") >= 1
    used = [
        one.json()["kv_transfer_params"]["remote_request_id"]
        for engine in here.decode
        for one in engine.generations("decode")
    ]
    assert len(set(used)) == len(used)


async def test_a_poisoned_prefill_is_left_by_the_retry(site: MakeSite) -> None:
    """Q65: where decode answers 500 for whatever one prefill hands over, the second try takes another prefill."""
    here = await site(prefill=2, decode=1)
    ids: list[str] = []

    def from_poisoned(one: Any) -> bool:
        handed = one.json()["kv_transfer_params"]["remote_engine_id"]
        ids.append(handed)
        return bool(handed == ids[0])

    here.d.add_rule(leg="decode", status=500, where=from_poisoned)
    answers = [await here.complete() for _ in range(6)]
    assert {one.status_code for one in answers} == {200}
    assert len(set(ids)) == 2


async def test_a_decode_that_fails_alone_is_502(site: MakeSite) -> None:
    """Q74: 5xx of the only decode is a JSON 502, streamed or not, even where the engine spoke plain text."""
    here = await site()
    here.d.add_rule(leg="decode", status=502, headers={"content-type": "text/plain"}, body="bad gateway")
    assert failure_of(await here.complete()) == (502, "engine_failure")
    assert failure_of(await here.complete(stream=True)) == (502, "engine_failure")
    assert await here.metric("orphaned_prefills_total") == 2


async def test_a_client_error_of_decode_passes_once_also_for_a_stream(site: MakeSite) -> None:
    """Q74: a stream that decode refuses is no event stream: status, body and Retry-After of the engine, once."""
    here = await site(decode=2)
    for engine in here.decode:
        engine.add_rule(leg="decode", status=429, headers={"retry-after": "7"}, body='{"error":{"message":"busy"}}')
    answer = await here.complete(stream=True)
    assert (answer.status_code, answer.headers["retry-after"], answer.text) == (
        429,
        "7",
        '{"error":{"message":"busy"}}',
    )
    assert "text/event-stream" not in answer.headers["content-type"]
    assert sum(len(engine.generations()) for engine in here.decode) == 1


async def test_all_decode_engines_refusing_is_an_error_not_a_stream(site: MakeSite) -> None:
    """Q74: connection refused everywhere: 502 or 503 in JSON, streamed or not."""
    here = await site(decode=2)
    for engine in here.decode:
        await engine.close_listener()
    for stream in (False, True):
        status, _ = failure_of(await here.complete(stream=stream))
        assert status in (502, 503)
    await here.idle()


@SILENCE
async def test_a_silent_decode_is_504(site: MakeSite, silence: dict[str, Any]) -> None:
    """A decode that says nothing for `idleSeconds` is 504, streamed or not, and nothing is tried again."""
    here = await site(decode=2, limits={"idleSeconds": 0.5})
    for engine in here.decode:
        engine.add_rule(leg="decode", **silence)
    for stream in (False, True):
        for engine in here.decode:
            engine.requests.clear()
        assert failure_of(await here.complete(stream=stream)) == (504, "engine_timeout")
    assert sum(len(engine.generations("decode")) for engine in here.decode) == 1


# --- streams that break ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fault",
    [
        {"reset_after_bytes": 900},
        {"close_after_bytes": 900},
        {"omit_done": True},
        {"finish_reason": "abort", "fault_after_tokens": 3},
    ],
)
async def test_a_stream_that_breaks_never_looks_whole(site: MakeSite, fault: dict[str, Any]) -> None:
    """A break after the first byte ends with an error event or a broken transfer.

    `[DONE]` is only ever the engine's.
    """
    here = await site(decode=2)
    for engine in here.decode:
        engine.add_rule(leg="decode", **fault)
    text = ""
    broken = False
    try:
        async with here.client.stream("POST", "/v1/completions", json=STREAM) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_text():
                text += piece
    except (httpx.RemoteProtocolError, httpx.ReadError):
        broken = True
    assert text
    assert "[DONE]" not in text
    assert broken or '"error":{' in text.rstrip().rsplit("\n\n", 1)[-1]
    assert '"abort"' not in text
    assert sum(len(engine.generations("decode")) for engine in here.decode) == 1
    assert await here.metric("truncated_streams_total") == 1


@pytest.mark.parametrize("tokens", [0, 2])
async def test_the_engines_own_error_event_passes_unchanged(site: MakeSite, tokens: int) -> None:
    """An error that the engine tells within a stream arrives as it was sent, with the engine's end."""
    here = await site()
    here.d.add_rule(leg="decode", error_event=True, fault_after_tokens=tokens)
    answer = await here.client.post("/v1/completions", json=STREAM)
    assert answer.status_code == 200
    assert answer.text.count('"error"') == 1
    assert answer.text.endswith("data: [DONE]\n\n")
    assert await here.metric("truncated_streams_total") == 0


async def test_the_engines_own_error_event_counts_against_it(site: MakeSite) -> None:
    """A decode engine that ends its streams with errors of its own is left out while another is there."""
    here = await site(decode=2, routing=SPREAD)
    bad, good = here.decode
    bad.add_rule(leg="decode", error_event=True, fault_after_tokens=2)
    good.set_pace(step_s=0.05)
    for _ in range(20):
        await here.client.post("/v1/completions", json=STREAM)
        if await here.metric("endpoints", role="decode", state="failing") == 1:
            break
    assert await here.metric("endpoints", role="decode", state="failing") == 1
    assert good.generations()


async def test_an_error_event_before_any_token_is_tried_elsewhere(site: MakeSite) -> None:
    """A stream that begins with the engine's own failure goes to another pair while there is one."""
    here = await site(prefill=2, decode=2, routing=SPREAD)
    here.decode[0].add_rule(leg="decode", error_event=True)
    for _ in range(6):
        answer = await here.client.post("/v1/completions", json=STREAM)
        assert '"error"' not in answer.text
    assert await here.metric("retries_total", leg="pair") >= 1


async def test_an_abort_late_in_an_answer_is_502(site: MakeSite) -> None:
    """An answer that is not streamed and was given up after tokens is 502, unretried."""
    here = await site(decode=2)
    for engine in here.decode:
        engine.add_rule(leg="decode", finish_reason="abort", fault_after_tokens=3)
    assert failure_of(await here.complete()) == (502, "engine_aborted")
    assert sum(len(engine.generations("decode")) for engine in here.decode) == 1


async def test_text_that_looks_like_an_abort_is_text(site: MakeSite) -> None:
    """A model that writes `"finish_reason":"abort"` or `data: [DONE]` is not taken at its word."""
    here = await site()
    words = ['"finish_reason":"abort"', "data: [DONE]", '"error"']
    here.d.add_rule(leg="decode", text=words)
    streamed = await here.client.post("/v1/completions", json=STREAM)
    assert streamed.text.endswith("data: [DONE]\n\n")
    whole = await here.complete()
    assert whole.status_code == 200, whole.text
    assert whole.json()["choices"][0]["text"] == "".join(words)
    assert await here.metric("truncated_streams_total") == 0


# --- health ----------------------------------------------------------------------------------------------------------
async def test_health_tells_the_truth_and_comes_back(site: MakeSite) -> None:
    """Q112: with every decode refusing, `/health` fails without traffic, `/livez` does not, and both recover."""
    here = await site()
    admin = f"http://127.0.0.1:{here.router.admin_port}"

    async def health_is(status: int) -> None:
        async with asyncio.timeout(10):
            while (await here.client.get("/health")).status_code != status:
                assert (await here.client.get(f"{admin}/livez")).status_code == 200
                await asyncio.sleep(0.05)

    await health_is(200)
    await here.d.close_listener()
    await here.complete()  # a request is told at once; the probe would within 5 s
    await health_is(503)
    assert (await here.complete()).status_code == 503
    await here.d.open_listener()
    await health_is(200)
    assert (await here.complete()).status_code == 200


async def test_health_tells_that_only_prefill_is_missing(site: MakeSite) -> None:
    """Q112: under `Fail` a pool whose only prefill refuses is not healthy, and is again when that is back.

    Decode alone would be, under `Local`.
    """
    strict = await site(routing={"onPrefillUnavailable": "Fail"})
    lenient = await site()
    for here in (strict, lenient):
        await here.p.close_listener()

    async def health_is(here: Site, status: int) -> None:
        admin = f"http://127.0.0.1:{here.router.admin_port}"
        async with asyncio.timeout(15):
            while (await here.client.get("/health")).status_code != status:
                assert (await here.client.get(f"{admin}/livez")).status_code == 200
                await asyncio.sleep(0.05)

    await health_is(strict, 503)
    assert failure_of(await strict.complete()) == (503, "no_prefill")
    assert strict.d.generations() == []
    assert (await lenient.complete()).status_code == 200
    await health_is(lenient, 200)
    await strict.p.open_listener()
    await health_is(strict, 200)
    assert (await strict.complete()).headers["x-pdpool-prefill"] == "remote"


async def test_counts_end_at_zero_whatever_happens(site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q69: aborts in any phase, errors and timeouts leave no request counted, and the next requests spread evenly."""
    monkeypatch.setattr(health, "LONGEST_PAUSE_S", health.FIRST_PAUSE_S)
    monkeypatch.setattr(health, "RAMP_S", 0.5)
    here = await site(prefill=2, decode=2, limits={"prefillSeconds": 0.6, "idleSeconds": 0.6})
    for engine in here.engines:
        engine.set_pace(step_s=0.002)
    here.prefill[0].add_rule(leg="prefill", contains="timeout", never_answer=True)
    here.decode[0].add_rule(leg="decode", contains="error", status=500)

    async def one(number: int) -> None:
        kind = ("error", "timeout", "plain", "plain")[number % 4]
        body = {"prompt": f"{kind} {number} {PROMPT}", "max_tokens": 20, "stream": bool(number % 3)}
        if kind != "plain":
            await here.complete(**body)
            return
        # A client of its own: httpx leaves a connection open whose making is cancelled.
        client = await RawClient.connect(here.router.port)
        client.send(raw_post("/v1/completions", json.dumps({"model": "tiny", **body}).encode()))
        await asyncio.sleep(0.001 * (number % 50))  # so that they leave in any phase
        client.reset()

    for start in range(0, 160, 40):
        await asyncio.gather(*(one(number) for number in range(start, start + 40)))
    await here.idle()
    assert await here.metric("inflight") == 0
    await eventually(lambda: not here.router.transport.busy)
    for engine in here.engines:
        engine.script.clear()
    # Whoever was left out comes back, and from now on nobody is too slow.
    endpoints = here.router.endpoints
    pairs = (("prefill", here.prefill), ("decode", here.decode))
    here.router.configure(config([{"role": role, "url": one.url} for role, of in pairs for one in of]))
    async with asyncio.timeout(120):
        while endpoints.health.doubts or endpoints.givers.doubts:
            await asyncio.gather(*(here.complete(prompt=str(random.random())) for _ in range(4)))
    for engine in here.engines:
        engine.requests.clear()
    await asyncio.gather(*(here.complete(prompt=f"{n}") for n in range(60)))
    counts = [len(engine.generations()) for engine in here.decode]
    assert sum(counts) == 60
    assert min(counts) >= 18


async def test_an_engine_that_knows_no_health_route_is_alive(site: MakeSite) -> None:
    """A probe that is answered 404 tells that somebody is there; 503 tells that the engine is dead."""
    here = await site(decode=2)
    here.decode[0].add_rule(path="/health$", status=404)
    here.decode[1].add_rule(path="/health$", status=503)
    await here.router._prober._ask(here.router.endpoints.all()[1])
    await here.router._prober._ask(here.router.endpoints.all()[2])
    assert {one.port for one in here.router.endpoints.snapshot().decode} == {here.decode[0].port}
