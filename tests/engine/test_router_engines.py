"""The router between whole engines: two prefills and one decode. Asked alone, one of them shows the right answer.

On stand-ins by default, on real vLLM with `--engine=real`: there the answers are a model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from openai import AsyncOpenAI

from e2e.engine.exchanges.parts import wait_for
from pdpool_api.router_config import from_mapping
from pdpool_router.assembly import Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from e2e.engine.exchanges import Pair
    from tests.engine.conftest import Engines

pytestmark = pytest.mark.xdist_group("engines")  # one set of engines, on one worker

ASK: list[Any] = [{"role": "user", "content": "Tell me of the sea, the wind and the ships that sail on them, please."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["calm", "stormy"]}, "ship": {"type": "boolean"}},
    "required": ["mood", "ship"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def adapter(engines: Engines) -> Iterator[None]:
    """An adapter `ad` on all engines, while the tests here run."""
    made = [engines.prefill, engines.decode, engines.other_prefill]
    for engine in made:
        load = {"lora_name": "ad", "lora_path": str(engines.adapter)}
        assert httpx.post(f"{engine.url}/v1/load_lora_adapter", json=load, timeout=60).status_code == 200
    yield
    for engine in made:
        if engine.is_running:
            httpx.post(f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": "ad"}, timeout=60)


@contextlib.asynccontextmanager
async def routed(engines: Engines, *, prefills: int = 2, **over: Any) -> AsyncIterator[str]:
    """The base URL of a router before decode and so many of the prefills."""
    static = [{"role": "prefill", "url": one.url} for one in (engines.prefill, engines.other_prefill)[:prefills]]
    static.append({"role": "decode", "url": engines.decode.url})
    settings = {
        "model": {"servedNames": ["tiny"], "adapters": ["ad"]},
        "endpoints": {"static": static},
        "routing": {"localPrefill": {"maxUncachedTokens": 0}},  # prompts are short, and hop all the same
        **over,
    }
    router = Router(from_mapping(settings), rng=random.Random(5))
    await router.start("127.0.0.1", 0, 0)
    try:
        yield f"http://127.0.0.1:{router.port}"
    finally:
        await router.close()


async def both(engines: Engines, path: str, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer of the two legs, and that of an engine that never gets another's KV."""
    asked = {"model": "tiny", "max_tokens": 48, "temperature": 0, "seed": 7, **body}
    async with routed(engines) as base, httpx.AsyncClient(timeout=120) as client:
        legs = await client.post(f"{base}{path}", json=asked)
        whole = await client.post(f"{engines.other_prefill.url}{path}", json=asked)
    assert (legs.status_code, whole.status_code) == (200, 200), (legs.text, whole.text)
    assert legs.headers["x-pdpool-prefill"] == "remote"
    return legs.json(), whole.json()


def said(answer: dict[str, Any]) -> Any:
    """What was answered, without the ids that engines invent."""
    (choice,) = answer["choices"]
    message = choice.get("message") or {"text": choice.get("text")}
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return message.get("content"), message.get("text"), calls, choice["finish_reason"]


@pytest.mark.usefixtures("adapter")
async def test_an_adapter_is_on_both_legs(engines: Engines) -> None:
    """The answer of two legs with a LoRA adapter is that of one engine with it; an unknown adapter is 404."""
    legs, whole = await both(engines, "/v1/chat/completions", model="ad", messages=ASK)
    assert said(legs) == said(whole)
    async with routed(engines) as base, httpx.AsyncClient(timeout=60) as client:
        listed = (await client.get(f"{base}/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["tiny", "ad"]
        unknown = await client.post(f"{base}/v1/chat/completions", json={"model": "da", "messages": ASK})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "sea", "schema": SCHEMA}}},
        {"logprobs": True, "top_logprobs": 2, "logit_bias": {"7": -100}},
    ],
    ids=["named tool", "tools", "schema", "logprobs"],
)
async def test_what_shapes_an_answer_shapes_that_of_two_legs(engines: Engines, more: dict[str, Any]) -> None:
    """Tools, structured output and log probabilities: the same answer at temperature 0 as one engine's."""
    legs, whole = await both(engines, "/v1/chat/completions", messages=ASK, **more)
    assert said(legs) == said(whole)


TALK: list[Any] = [{"role": "user", "content": "Of winds and tides and the ships between them, " * 12}]


@pytest.mark.parametrize(
    ("path", "body", "cached"),
    [
        ("chat/completions", {"messages": TALK, "max_tokens": 2}, ("prompt_tokens_details", "cached_tokens")),
        ("completions", {"prompt": TALK[0]["content"], "max_tokens": 2}, ("prompt_tokens_details", "cached_tokens")),
        ("responses", {"input": TALK, "max_output_tokens": 2}, ("input_tokens_details", "cached_tokens")),
        ("messages", {"messages": TALK, "max_tokens": 2}, ("cache_read_input_tokens",)),
    ],
)
async def test_tenants_share_no_kv_on_any_route(
    engines: Engines, tmp_path: Path, path: str, body: dict[str, Any], cached: tuple[str, ...]
) -> None:
    """Who asks again what was asked before finds it cached, and another tenant with the same words does not.

    No header that concerns one connection comes through.
    """
    (tmp_path / "keys").write_text("a=sk-a\nb=sk-b\n")
    (tmp_path / "salt").write_text(f"{random.random()}")
    auth = {"apiKeysFile": str(tmp_path / "keys"), "saltFile": str(tmp_path / "salt")}
    found = []
    async with routed(engines, prefills=1, auth=auth) as base, httpx.AsyncClient(timeout=120) as client:
        for key in ("sk-a", "sk-a", "sk-b"):
            headers = {"authorization": f"Bearer {key}", "connection": "x-hop", "x-hop": "1"}
            asked = {"model": "tiny", "temperature": 0, **body}
            answer = await client.post(f"{base}/v1/{path}", json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-pdpool-prefill"] == "remote"
            assert not {"connection", "keep-alive", "transfer-encoding", "x-hop"} & set(answer.headers)
            value = answer.json()["usage"]
            for name in cached:
                value = value[name]
            found.append(value)
    assert found[0] == found[2] == 0
    assert found[1] > 0


async def test_openais_client_cannot_tell(engines: Engines, pair: Pair) -> None:
    """Its streams, usage, cancellation and errors work as with one engine."""
    async with routed(engines) as base:
        client = AsyncOpenAI(base_url=f"{base}/v1", api_key="none", timeout=120, max_retries=0)
        text = ""
        usage = None
        stream = await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for event in stream:
            usage = event.usage or usage
            text += "".join(choice.delta.content or "" for choice in event.choices)
        assert usage is not None
        assert usage.completion_tokens == 24
        whole = AsyncOpenAI(base_url=f"{engines.other_prefill.url}/v1", api_key="none", timeout=120)
        alone = await whole.chat.completions.create(model="tiny", messages=ASK, max_tokens=24, temperature=0)
        assert text == alone.choices[0].message.content
        cancelled = await client.chat.completions.create(model="tiny", messages=ASK, max_tokens=900, stream=True)
        await anext(aiter(cancelled))
        await cancelled.close()
        short = await client.completions.create(model="tiny", prompt="and then", max_tokens=3)
        assert short.usage is not None
        await client.close()
        await whole.close()
    assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 0, 30)


@pytest.mark.ends_engine(0)
async def test_a_prefill_that_is_killed_costs_no_request(engines: Engines) -> None:
    """One of two prefills is killed while requests run: every answer is whole, streamed or not."""
    async with routed(engines) as base, httpx.AsyncClient(base_url=base, timeout=120) as client:
        done = 0

        async def ask(number: int) -> None:
            nonlocal done
            stream = bool(number % 2)
            body = {"model": "tiny", "prompt": f"story {number} of the sea", "max_tokens": 12, "stream": stream}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert not stream or answer.text.endswith("data: [DONE]\n\n")
            done += 1

        async def kill() -> None:
            while done < 6:  # noqa: ASYNC110 - seen by the requests themselves
                await asyncio.sleep(0.01)
            process = engines.other_prefill.process
            assert process is not None
            process.kill()

        gate = asyncio.Semaphore(4)

        async def in_turn(number: int) -> None:
            async with gate:
                await ask(number)

        await asyncio.gather(kill(), *(in_turn(number) for number in range(24)))
        assert done == 24
