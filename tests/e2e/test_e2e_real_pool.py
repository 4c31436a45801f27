"""The committed sample on the real cluster: real vLLM engines whose KV moves by NIXL, asked through the router."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.demo import talk
from e2e.scenarios import engine_metrics, legs
from e2e.scenarios.engine_metrics import EXTERNAL, LOCAL_CACHE, LOCAL_COMPUTE, PROMPT_TOKENS, PULLED_BYTES
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import RealPool, Say

    from e2e.scenarios.engine_metrics import Reading

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]

PROMPT_TOKENS_WANTED = 600
ANSWER_TOKENS = 16
_seeds = itertools.count(time.time_ns())


def _body(path: str, model: str) -> dict[str, Any]:
    """A request whose prompt no engine has seen."""
    seed = next(_seeds)
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    if path.endswith("/chat/completions"):
        return {**body, "messages": [{"role": "user", "content": legs.fresh_text(PROMPT_TOKENS_WANTED // 3, seed)}]}
    return {**body, "prompt": legs.fresh_tokens(PROMPT_TOKENS_WANTED, seed)}


def _text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


class Engines:
    """The pair of a pool, and what it did since this was made."""

    def __init__(self, real: RealPool) -> None:
        (self.prefill,) = real.pool.ready_pods(Role.PREFILL)
        (self.decode,) = real.pool.ready_pods(Role.DECODE)
        self._before = self._read()

    def _read(self) -> tuple[Reading, Reading]:
        return engine_metrics.read(self.prefill.url), engine_metrics.read(self.decode.url)

    def growth(self) -> dict[str, float]:
        """What grew, by name."""
        (prefill, decode), (prefill_before, decode_before) = self._read(), self._before
        return {
            "prefill computed": prefill.grown(prefill_before, PROMPT_TOKENS, source=LOCAL_COMPUTE),
            "prefill cached": prefill.grown(prefill_before, PROMPT_TOKENS, source=LOCAL_CACHE),
            "decode pulled": decode.grown(decode_before, PROMPT_TOKENS, source=EXTERNAL),
            "decode computed": decode.grown(decode_before, PROMPT_TOKENS, source=LOCAL_COMPUTE),
            "decode bytes": decode.grown(decode_before, PULLED_BYTES),
        }


def _through_router(real: RealPool, path: str, body: dict[str, Any], *, stream: bool) -> tuple[str, int]:
    """Text and prompt tokens of an answer given to the unmodified OpenAI client."""
    with talk.client(real.pool.service_url()) as openai:
        create: Callable[..., Any] = (
            openai.chat.completions.create if path.endswith("/chat/completions") else openai.completions.create
        )
        known = {key: value for key, value in body.items() if key != "ignore_eos"}
        extra = {"extra_body": {"ignore_eos": True}}
        if not stream:
            answer = create(**known, **extra)
            return _text(answer.model_dump()), answer.usage.prompt_tokens
        chunks = list(create(**known, **extra, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    words = [choice.text if hasattr(choice, "text") else choice.delta.content for choice in choices]
    return "".join(word or "" for word in words), chunks[-1].usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answer_through_two_pods_is_that_of_one(real_pool: RealPool, path: str, *, stream: bool) -> None:
    """Prefill computes the prompt, decode pulls exactly its blocks, and the answer equals an aggregated server's."""
    body = _body(path, real_pool.model)
    engines = Engines(real_pool)
    text, prompt_tokens = _through_router(real_pool, path, body, stream=stream)
    assert engines.growth() == {
        "prefill computed": prompt_tokens,
        "prefill cached": 0,
        "decode pulled": prompt_tokens,
        "decode computed": 0,
        "decode bytes": legs.pulled_bytes(prompt_tokens),
    }
    aggregated = legs.ask(engines.prefill.url, path, body)
    assert text == _text(aggregated)
    assert len(text) > 0


def test_an_answer_says_that_its_prefill_was_remote(real_pool: RealPool) -> None:
    """The router's answer carries `x-pdpool-prefill: remote` and the whole request's usage once."""
    path = "/v1/completions"
    answer, prefill = legs.hop(real_pool.pool.service_url(), path, _body(path, real_pool.model))
    assert prefill == "remote"
    assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS_WANTED
    assert answer["usage"]["completion_tokens"] == ANSWER_TOKENS
    assert "kv_transfer_params" not in answer or answer["kv_transfer_params"] is None


def test_decode_continues_the_kv_of_the_other_pod(real_pool: RealPool) -> None:
    """Given the transfer parameters of another prompt, decode continues that one: it uses the other pod's KV."""
    engines = Engines(real_pool)
    asked = legs.fresh_tokens(PROMPT_TOKENS_WANTED, next(_seeds))
    other = [*legs.fresh_tokens(PROMPT_TOKENS_WANTED - 1, next(_seeds)), asked[-1]]
    base = {**_body("/v1/completions", real_pool.model), "return_token_ids": True}

    def alone(prompt: list[int]) -> list[int]:
        answer = legs.ask(engines.prefill.url, "/v1/completions", {**base, "prompt": prompt})
        return list(answer["choices"][0]["token_ids"])

    params = legs.prefill_leg(engines.prefill.url, "/v1/completions", {**base, "prompt": other})
    mixed = {**base, "prompt": asked, "kv_transfer_params": params}
    got = legs.ask(engines.decode.url, "/v1/completions", mixed)["choices"][0]["token_ids"]
    assert got == alone(other)
    assert got != alone(asked)


def test_ready_comes_soon_after_the_engines_answer(real_pool: RealPool, say: Say) -> None:
    """The pool that is ready answers at once; what pdpool adds to the engines' own start is told, not judged."""
    # Another test may have added an engine since, whose start nobody watched.
    watched = [start for start in real_pool.starts.engines() if start.own_s is not None]
    assert {start.pod.role for start in watched} == {Role.PREFILL, Role.DECODE}
    for start in watched:
        say(f"{start.pod.name}: own start {start.own_s:.1f} s")
    ready = real_pool.pool.condition("Ready")
    assert ready["reason"] == "Available"
    overhead_s = real_pool.starts.overhead_s(real_pool.applied_s, real_pool.ready_s)
    assert overhead_s is not None
    say(f"apply to Ready {real_pool.ready_s - real_pool.applied_s:.1f} s, of which pdpool's {overhead_s:.1f} s")
