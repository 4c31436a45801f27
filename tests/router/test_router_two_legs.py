"""Two legs, one request: what each leg gets, what the client gets."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from e2e.engine.standin import Standin
from tests.router.conftest import PROMPT, eventually

if TYPE_CHECKING:
    from tests.router.conftest import MakeSite


async def test_the_answer_is_that_of_one_engine_that_does_both(site: MakeSite) -> None:
    """Prefill and decode together answer as one aggregated engine does."""
    here = await site()
    async with Standin("aggregated") as whole:
        body = {"model": "tiny", "prompt": PROMPT * 20, "max_tokens": 12}
        alone = (await here.client.post(f"{whole.url}/v1/completions", json=body)).json()
    answer = await here.client.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == alone["choices"][0]["text"]
    assert answer.headers["x-pdpool-prefill"] == "remote"
    assert answer.json()["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


async def test_output_limits_and_streaming_belong_to_decode(site: MakeSite) -> None:
    """Q41: prefill makes one token without streaming.

    Decode gets the client's limits and nothing that was not there.
    """
    here = await site()
    await here.client.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT})
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 6,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    await here.client.post("/v1/chat/completions", json=chat)
    first, second = (one.json() for one in here.p.generations("prefill"))
    assert first["max_tokens"] == 1
    assert (second["max_tokens"], second["max_completion_tokens"], second["stream"]) == (1, 1, False)
    assert "stream_options" not in second
    plain, streamed = (one.json() for one in here.d.generations("decode"))
    assert "max_tokens" not in plain
    assert streamed.pop("kv_transfer_params")["do_remote_prefill"] is True
    assert streamed == chat


async def test_fields_of_others_reach_decode_untouched(site: MakeSite) -> None:
    """Q44: unknown fields, a big integer, unicode keys and key order arrive as sent.

    Prefill differs in named fields only.
    """
    here = await site()
    text = (
        '{"model":"tiny","messages":[{"role":"user","content":"h\\u00e9 \U0001f600"}],"seed":9007199254740993,'
        '"temperature":0.1,'
        '"chat_template_kwargs":{"enable_thinking":false},"return_token_ids":true,"x_vendor":{"a":[1,2]},"schl\u00fcssel":1e2,"max_tokens":3}'
    )
    answer = await here.client.post(
        "/v1/chat/completions", content=text.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    sent = here.d.generations("decode")[0].body.decode()
    assert sent.startswith(text[:-1] + ',"kv_transfer_params":{')
    prefill = here.p.generations("prefill")[0].json()
    original = json.loads(text)
    assert {key for key in prefill if prefill[key] != original.get(key)} == {
        "max_tokens",
        "stream",
        "kv_transfer_params",
    }


async def test_decode_gets_exactly_what_its_prefill_answered(site: MakeSite) -> None:
    """The handoff parameters of one answer travel verbatim, and to one decode request only."""
    here = await site(prefill=2, decode=2)
    await asyncio.gather(*(here.complete(prompt=f"{number} {PROMPT}") for number in range(12)))
    sent = [one.json()["kv_transfer_params"] for engine in here.decode for one in engine.generations("decode")]
    assert len(sent) == 12
    assert len({one["remote_request_id"] for one in sent}) == 12
    assert len({one["remote_engine_id"] for one in sent}) == 2


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/completions", {"prompt": PROMPT, "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": PROMPT, "echo": True, "logprobs": 1}, "echo"),
        ("/v1/completions", {"prompt": PROMPT, "n": 3}, "n"),
        ("/v1/completions", {"prompt": ["one prompt", "another prompt"]}, "prompt"),
        ("/v1/completions", {"prompt": [[1, 2, 3], [4, 5]]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3}, "n"),
        ("/v1/completions", {"prompt": PROMPT, "truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ("/v1/responses", {"input": PROMPT, "truncation": "auto"}, "truncation"),
    ],
)
async def test_what_two_legs_cannot_serve_one_decode_engine_does(
    site: MakeSite, path: str, body: dict[str, Any], reason: str
) -> None:
    """Q43: prompt_logprobs, echo, n > 1, several prompts and one cut to fit are served by one engine alone.

    Without handoff parameters.
    """
    here = await site()
    answer = await here.client.post(path, json={"model": "tiny", "max_tokens": 3, **body})
    assert answer.status_code == 200, (reason, answer.text)
    assert answer.headers["x-pdpool-prefill"] == "none"
    assert here.p.generations() == []
    (served,) = here.d.generations()
    assert served.json() == {"model": "tiny", "max_tokens": 3, **body}
    if reason == "n":
        assert len(answer.json()["choices"]) == 3


SAID: Any = [{"role": "user", "content": "hi"}]
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": ["only one"]}),
        ("completions", {"prompt": [1, 2, 3, 4]}),
        ("completions", {"prompt": [[7, 8, 9]]}),
        ("completions", {"prompt": "a", "suffix": None, "response_format": {"type": "json_object"}}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}]}),
        ("chat/completions", {"messages": SAID, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        (
            "chat/completions",
            {
                "messages": [
                    *SAID,
                    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
                    {"role": "tool", "tool_call_id": "c1", "content": "done"},
                ]
            },
        ),
        ("chat/completions", {"messages": SAID, "structured_outputs": {"choice": ["a", "b"]}, "logprobs": True}),
        ("responses", {"input": SAID, "store": False, "instructions": "be brief"}),
        ("messages", {"messages": SAID, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"]}),
    ],
)
async def test_one_prompt_in_any_form_takes_the_hop(site: MakeSite, path: str, body: dict[str, Any]) -> None:
    """One prompt is one, also in a list or as ids; what it is made of, and what shapes its answer, is all the same."""
    here = await site()
    sent = {"model": "tiny", "max_tokens": 2, **body}
    answer = await here.client.post(f"/v1/{path}", json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pdpool-prefill"] == "remote"
    (decode,) = here.d.generations("decode")
    assert {key: value for key, value in decode.json().items() if key != "kv_transfer_params"} == sent


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 2, "logprob_token_ids": [5, 6]},
        {"min_tokens": 3},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": "3"},
    ],
)
async def test_what_concerns_the_answer_alone_does_not_hinder_prefill(site: MakeSite, more: dict[str, Any]) -> None:
    """Fields that an engine refuses beside an answer of one token, or without one another, reach decode only."""
    here = await site()
    answer = await here.complete(**more)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pdpool-prefill"] == "remote"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_other_generating_routes_take_two_legs(site: MakeSite, path: str) -> None:
    """`/v1/responses` and `/v1/messages` are two legs too, each with its own output limit."""
    here = await site()
    body: dict[str, Any] = (
        {"model": "tiny", "input": "hello there", "max_output_tokens": 5}
        if path == "/v1/responses"
        else {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    )
    answer = await here.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (prefill,) = here.p.generations("prefill")
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    assert prefill.json()[limit] == 1
    assert set(prefill.json()) == {*body, "stream", "kv_transfer_params"}
    (decode,) = here.d.generations("decode")
    assert {key: value for key, value in decode.json().items() if key != "kv_transfer_params"} == body


async def test_what_only_the_router_may_say_is_dropped(site: MakeSite) -> None:
    """Q100: transfer parameters, their variants and internal headers of a client reach no engine."""
    here = await site()
    contacted: list[int] = []

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        contacted.append(1)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as trap:
        port = trap.sockets[0].getsockname()[1]
        evil = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": port, "remote_block_ids": [[1]]}
        for path, body in (
            ("/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 2}),
            ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2}),
            ("/tokenize", {"model": "tiny", "prompt": PROMPT}),
        ):
            answer = await here.client.post(
                path,
                json={
                    **body,
                    "kv_transfer_params": evil,
                    "ec_transfer_params": evil,
                    "vllm_xargs": {
                        "kv_transfer_params": "x",
                        "ec_transfer_params": 1,
                        "kv_cache_report_mode": "full",
                        "keep": 1,
                    },
                },
                headers={
                    "x-prefiller-host-port": f"127.0.0.1:{port}",
                    "x-prefiller-url": f"http://127.0.0.1:{port}",
                    "x-data-parallel-rank": "3",
                    "x-forwarded-host": f"127.0.0.1:{port}",
                },
            )
            assert answer.status_code == 200, answer.text
    assert contacted == []
    for engine in here.engines:
        for one in engine.requests:
            if one.method != "POST":
                continue
            body = one.json()
            assert "ec_transfer_params" not in body
            assert body.get("kv_transfer_params", {}).get("remote_port") != port
            assert body["vllm_xargs"] == {"keep": 1}
            for name in ("x-prefiller-host-port", "x-prefiller-url", "x-data-parallel-rank", "x-forwarded-host"):
                assert one.header(name) is None


async def test_request_ids_are_fresh_upstream_and_the_clients_own_downstream(site: MakeSite) -> None:
    """Q66: equal ids of clients never meet in an engine; both legs of a request share one.

    Odd ids come back harmless.
    """
    here = await site()
    answers = await asyncio.gather(
        *(
            here.client.post(
                "/v1/completions",
                json={"model": "tiny", "prompt": f"{n}", "max_tokens": 2},
                headers={"x-request-id": "dup-1"},
            )
            for n in range(20)
        )
    )
    assert [one.status_code for one in answers] == [200] * 20
    assert {one.headers["x-request-id"] for one in answers} == {"dup-1"}
    at_prefill = [one.header("x-request-id") for one in here.p.generations("prefill")]
    at_decode = [one.header("x-request-id") for one in here.d.generations("decode")]
    assert len(set(at_prefill)) == 20
    assert set(at_prefill) == set(at_decode)
    for odd in ("a%0d%0aset-cookie: x", "x" * 10_240):
        answer = await here.client.get("/v1/models", headers={"x-request-id": odd})
        assert "set-cookie" not in answer.headers
        assert len(answer.headers["x-request-id"]) <= 128


async def test_an_engine_without_metrics_does_not_look_idle(site: MakeSite) -> None:
    """Q54: two decodes report a queue, the page of the third is 404: it gets its share; once it reports 0, most.

    The one that is not known is told by a gauge.
    """
    here = await site(decode=3)
    for engine in here.decode[:2]:
        engine.force_metrics(num_requests_waiting=5, kv_cache_usage_perc=0.6)
    odd = here.decode[2]
    odd.add_rule(path="/metrics", status=404)
    loads = here.router.endpoints.loads.loads
    known = [here.p, *here.decode[:2]]

    async def share_of_the_third() -> float:
        before = len(odd.generations("decode"))
        for number in range(100):
            assert (await here.complete(prompt=f"{number} {before} {PROMPT}")).status_code == 200
        return (len(odd.generations("decode")) - before) / 100

    await eventually(lambda: sum(load.reported for load in loads.values()) == len(known), within_s=20)
    await eventually(lambda: max(load.others for load in loads.values() if not load.reported) > 5, within_s=20)
    assert await here.metric("stale_endpoints") == 1
    assert await share_of_the_third() <= 0.4
    odd.script.clear()
    await eventually(lambda: all(load.reported for load in loads.values()), within_s=20)
    assert await here.metric("stale_endpoints") == 0
    assert await share_of_the_third() >= 0.6


async def test_load_spreads_over_the_engines_of_each_role(site: MakeSite) -> None:
    """Q69, Q83: a burst spreads by the router's own count, and every count ends at 0."""
    here = await site(prefill=2, decode=2)
    for engine in here.engines:
        engine.set_pace(step_s=0.05)
    answers = await asyncio.gather(*(here.complete(prompt=f"{n} {PROMPT}") for n in range(40)))
    assert {one.status_code for one in answers} == {200}
    for group in (here.prefill, here.decode):
        counts = [len(engine.generations()) for engine in group]
        assert sum(counts) == 40
        assert min(counts) >= 12
    await here.idle()
    assert await here.metric("inflight") == 0


async def test_an_aggregated_pool_has_one_leg(site: MakeSite) -> None:
    """Engines that do both get the client's body as it is."""
    here = await site(prefill=0, decode=0, aggregated=2)
    answer = await here.complete()
    assert answer.status_code == 200
    assert answer.headers["x-pdpool-prefill"] == "none"
    (served,) = [one for engine in here.aggregated for one in engine.generations()]
    assert "kv_transfer_params" not in served.json()


async def test_a_prefill_answer_without_kv_lets_decode_compute(site: MakeSite) -> None:
    """A prefill answer that finished normally without parameters is legal: decode computes, and it is counted."""
    here = await site()
    here.p.add_rule(drop_kv_params=True)
    answer = await here.complete()
    assert answer.status_code == 200
    assert answer.headers["x-pdpool-prefill"] == "local"
    assert len(here.d.generations("plain")) == 1
    assert await here.metric("local_prefill_total", reason="no_kv") == 1


async def test_connections_to_engines_are_used_again(site: MakeSite) -> None:
    """Sequential requests share one connection to each engine, on which nothing waits for more to send."""
    here = await site()
    for _ in range(10):
        assert (await here.complete()).status_code == 200
    # Probes and looks at metrics have connections of their own, for a moment.
    await eventually(lambda: here.p.connections == 1)
    await eventually(lambda: here.d.connections == 1)
    for shelf in here.router.transport._shelves.values():
        for kept in shelf.idle:
            assert kept._socket is not None
            assert kept._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_kept_connection_that_the_engine_closed_costs_nobody_an_error(site: MakeSite) -> None:
    """An idle connection that goes away is replaced, also where it goes away unseen."""
    here = await site()
    for _ in range(5):
        assert (await here.complete()).status_code == 200
        here.p.reset_connections()
        here.d.reset_connections()
    await eventually(lambda: here.p.connections == 0)
    assert (await here.complete()).status_code == 200
    assert await here.metric("retries_total") == 0
