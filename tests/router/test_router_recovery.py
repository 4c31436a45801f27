"""Endpoints that fail and come back, as clients see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_router.feeds import probes
from pdpool_router.state import health
from tests.router.conftest import PROMPT, config, eventually

if TYPE_CHECKING:
    from pdpool_api.router_config import RouterConfig
    from tests.router.conftest import MakeSite


@pytest.mark.parametrize("decode", [1, 2])
async def test_a_prefill_whose_kv_cannot_be_pulled_is_left_out(
    site: MakeSite, decode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q65: it answers every request and every probe, and decode fails on whatever it hands over.

    No client sees a failure; it leaves as a source, decode stays, and it is back once its KV can be pulled.
    """
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 4.0)
    here = await site(prefill=2, decode=decode, routing={"policy": "LeastLoaded"})
    poisoned = here.prefill[0]
    answer = (await here.client.post(f"{poisoned.url}/v1/completions", json=leg_one())).json()
    bad = answer["kv_transfer_params"]["remote_engine_id"]
    for engine in here.decode:
        engine.add_rule(
            leg="decode", status=500, where=lambda one: one.json()["kv_transfer_params"]["remote_engine_id"] == bad
        )
    for number in range(40):
        assert (await here.complete(prompt=f"{number} {PROMPT}")).status_code == 200
    assert await here.metric("endpoints", role="prefill", state="failing") == 1
    assert await here.metric("endpoints", role="decode", state="failing") == 0
    spent = len(poisoned.generations())
    assert spent <= 10
    for number in range(20):
        assert (await here.complete(prompt=f"again {number} {PROMPT}")).status_code == 200
    assert len(poisoned.generations()) <= spent + 1  # a trial, perhaps
    for engine in here.decode:
        engine.script.clear()
    async with asyncio.timeout(20):
        while await here.metric("endpoints", role="prefill", state="ready") < 2:
            await here.complete()
            await asyncio.sleep(0.05)


def leg_one() -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": "x",
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }


async def test_health_answers_excuse_no_failed_requests(site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that answers `/health` and fails requests stays out but for single trials."""
    monkeypatch.setattr(probes, "FAILING_EVERY_S", 0.02)
    monkeypatch.setattr(probes, "ALL_EVERY_S", 0.02)
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 60.0)
    here = await site(prefill=2)
    bad = here.prefill[0]
    bad.add_rule(leg="prefill", status=500)
    for number in range(30):
        assert (await here.complete(prompt=f"{number}")).status_code == 200
    before = len(bad.generations())
    await asyncio.sleep(0.3)
    for number in range(20):
        assert (await here.complete(prompt=f"later {number}")).status_code == 200
    assert before == len(bad.generations()) == health.FAILURES_TO_LEAVE


async def test_an_engine_that_returns_is_not_overrun(site: MakeSite) -> None:
    """Beside a busy engine one that comes back gets one request first, and then twice as many, and so on."""
    here = await site(prefill=1, decode=2)
    gone, there = here.decode
    await gone.close_listener()
    while await here.metric("endpoints", role="decode", state="failing") < 1:
        await here.complete()
    there.set_pace(step_s=0.2)
    gone.set_pace(step_s=0.2)
    running = [asyncio.create_task(here.complete(max_tokens=8)) for _ in range(32)]
    await eventually(lambda: len(there.generations("decode")) >= 32)
    await gone.open_listener()
    uid = next(one.uid for one in here.router.endpoints.all() if one.port == gone.port)
    await eventually(lambda: here.router.endpoints.health.on_trial(uid))
    running += [asyncio.create_task(here.complete(max_tokens=8)) for _ in range(32)]
    await eventually(lambda: len(here.p.generations()) >= 64)
    assert here.router.endpoints.inflight.requests.get(uid, 0) <= 8
    assert {answer.status_code for answer in await asyncio.gather(*running)} == {200}


async def test_what_an_old_revision_handed_over_goes_to_no_new_one(site: MakeSite) -> None:
    """The pool moves to another revision while prefill computes: both legs are done anew, on a pair of the new one.

    On a real engine the parameters of another revision poison the cache, or end the engine.
    """
    here = await site(prefill=2, decode=2)

    def pool(*revisions: int) -> RouterConfig:
        pairs = ((here.prefill, "prefill"), (here.decode, "decode"))
        return config(
            [{"role": role, "url": of[one].url, "revision": f"r{one}"} for of, role in pairs for one in revisions]
        )

    here.router.configure(pool(0))
    here.prefill[0].add_rule(leg="prefill", delay_headers_s=0.2)
    running = asyncio.create_task(here.complete())
    await eventually(lambda: bool(here.prefill[0].generations()))
    here.router.configure(pool(1))
    assert (await running).status_code == 200
    assert here.decode[0].generations() == []
    (taken,) = here.decode[1].generations()
    (given,) = here.prefill[1].generations()
    assert taken.json()["kv_transfer_params"]["remote_request_id"].find(given.header("x-request-id")) >= 0
    assert await here.metric("orphaned_prefills_total") == 1


@pytest.mark.usefixtures("unprobed")
async def test_a_revision_whose_last_decode_is_gone_costs_no_request(site: MakeSite) -> None:
    """No connection, and no other decode of the revision: both legs on a pair of another one."""
    here = await site(prefill=2, decode=2)
    pairs = (("prefill", here.prefill), ("decode", here.decode))
    static = [
        {"role": role, "url": one.url, "revision": f"r{number}"} for role, of in pairs for number, one in enumerate(of)
    ]
    here.router.configure(config(static, routing={"policy": "LeastLoaded"}))
    busy = [here.router.endpoints.inflight.reserve(one) for one in here.router.endpoints.all() if one.revision == "r1"]
    await here.decode[0].close_listener()
    answer = await here.complete()
    for lease in busy:
        lease.release()
    assert (answer.status_code, answer.headers["x-pdpool-prefill"]) == (200, "remote")
    (given,) = here.prefill[1].generations()
    (taken,) = here.decode[1].generations()
    assert taken.json()["kv_transfer_params"]["remote_request_id"].find(given.header("x-request-id")) >= 0
    assert await here.metric("retries_total", leg="pair") == 1
    assert await here.metric("orphaned_prefills_total") == 1


async def test_a_router_whose_pod_terminates_serves_on_and_sends_its_clients_away(site: MakeSite) -> None:
    """Each answer ends its connection, streams included, and a client that connects anew is served as before."""
    here = await site()
    here.d.set_pace(step_s=0.02)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "stream": True}
    async with here.client.stream("POST", "/v1/completions", json=body) as running:
        here.router._retire()
        assert (await running.aread()).endswith(b"data: [DONE]\n\n")
    answers = [await here.complete() for _ in range(5)]
    assert {(answer.status_code, answer.headers["connection"]) for answer in answers} == {(200, "close")}
    admin = f"http://127.0.0.1:{here.router.admin_port}"
    assert (await here.client.get(f"{admin}/readyz")).status_code == 200
    assert (await here.client.get("/health")).status_code == 200


# --- as Anthropic's clients read it ----------------------------------------------------------------------------------
async def test_errors_of_messages_have_anthropics_shape(site: MakeSite) -> None:
    """`type` stands twice, as its clients go by it; what OpenAI's shape tells is there besides."""
    here = await site(prefill=0, routing={"onPrefillUnavailable": "Fail"})
    ask = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    for body, status, kind in (
        ({**ask, "model": "none"}, 404, "not_found_error"),
        ([], 400, "invalid_request_error"),
        (ask, 503, "overloaded_error"),
    ):
        answer = await here.client.post("/v1/messages", json=body)
        told = answer.json()
        assert (answer.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert {"message", "code", "param"} <= set(told["error"])


async def test_a_broken_stream_of_messages_ends_with_an_error_event(site: MakeSite) -> None:
    """The event has its name, so that Anthropic's clients raise it; `message_stop` is only ever the engine's."""
    here = await site()
    ask = {"model": "tiny", "max_tokens": 6, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    here.d.add_rule(leg="decode", finish_reason="abort", fault_after_tokens=3)
    text = (await here.client.post("/v1/messages", json=ask)).text
    assert "message_stop" not in text
    last = text.rstrip("\n").rsplit("\n\n", 1)[-1]
    assert last.startswith('event: error\ndata: {"type":"error","error":{')


async def test_events_with_other_line_ends_are_closed_as_cleanly(site: MakeSite) -> None:
    """An abort in a stream with CR LF: what came whole before it is kept, and the error event ends it."""
    here = await site()
    token = 'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\r\n\r\n'
    end = 'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    here.d.add_rule(leg="decode", headers={"content-type": "text/event-stream"}, status=200, body=token * 2 + end)
    text = (await here.complete(stream=True)).text
    assert text.count(token) == 2
    assert "[DONE]" not in text
    assert "abort" not in text.replace("engine_aborted", "").replace("aborted the request", "")
    assert text.rsplit("data: ", 1)[-1].startswith('{"error":{')
