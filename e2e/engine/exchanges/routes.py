"""Rows about the small routes: models, adapters, tokenizer, metrics, health.

Boundary: no generation is tested here.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import re

import httpx

from e2e.engine.exchanges.events import subscribed
from e2e.engine.exchanges.parts import (
    CHAT,
    COMPLETIONS,
    MODEL,
    SOURCES,
    Json,
    Pair,
    chat,
    exchange,
    ids,
    plain,
)
from e2e.engine.standin.metrics import FAMILIES


@exchange
def models_and_adapters(pair: Pair) -> None:
    """The model is listed; an adapter can be loaded, used with a chain of its own, and unloaded."""
    target = pair.prefill

    def listed() -> list[Json]:
        data: list[Json] = target.client.get(f"{target.url}/v1/models").json()["data"]
        return data

    (card,) = listed()
    assert (card["id"], card["owned_by"], card["object"], card["parent"]) == (MODEL, "vllm", "model", None)
    load = {"lora_name": "ad", "lora_path": target.adapter}
    assert target.post("/v1/load_lora_adapter", load).text == "Success: LoRA adapter 'ad' added successfully."
    again = target.post("/v1/load_lora_adapter", load)
    assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
    assert [(one["id"], one["parent"]) for one in listed()] == [(MODEL, None), ("ad", MODEL)]
    prompt = pair.prompt(40)
    base = target.ok(COMPLETIONS, plain(prompt))
    with subscribed(target) as subscriber:
        adapted = target.ok(COMPLETIONS, plain(prompt, model="ad"))
        (stored,) = subscriber.events(1)
    assert (stored["lora_name"], stored["extra_keys"]) == ("ad", [["ad"]])
    assert isinstance(stored["lora_id"], int)
    assert adapted["model"] == "ad"
    assert adapted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ids(adapted) != ids(base)
    unload = target.post("/v1/unload_lora_adapter", {"lora_name": "ad"})
    assert unload.text == "Success: LoRA adapter 'ad' removed successfully."
    assert target.post(COMPLETIONS, plain(prompt, model="ad")).status_code == httpx.codes.NOT_FOUND
    missing = target.post("/v1/load_lora_adapter", {"lora_name": "no", "lora_path": "/nonexistent"})
    assert missing.status_code == httpx.codes.NOT_FOUND


@exchange
def small_routes(pair: Pair) -> None:
    """Health, ping, version and event sources answer; unknown paths are 404, wrong methods 405 with Allow."""
    target = pair.decode
    for path in ("/health", "/ping"):
        answer = target.client.get(target.url + path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert target.client.get(f"{target.url}/version").json() == {"version": "0.32.0"}
    sources = target.client.get(f"{target.url}/kv_event_sources").json()
    assert sources["0"]["endpoint"].startswith("tcp://*:")
    assert sources["0"]["topic"] == "kv"
    assert sources["0"]["buffer_steps"] == 10_000
    missing = target.client.get(f"{target.url}/nope")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    wrong = target.client.get(target.url + CHAT)
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()) == (405, "POST", {"detail": "Method Not Allowed"})


@exchange
def tokenizer_routes(pair: Pair) -> None:
    """Tokenize and detokenize are inverse; a chat's ids are those that its answer shows; count_tokens agrees."""
    target = pair.prefill
    text = "numbers in an array, and more of them"
    told = target.ok("/tokenize", {"prompt": text})
    assert told["count"] == len(told["tokens"])
    assert told["token_strs"] is None
    assert target.ok("/detokenize", {"tokens": told["tokens"]}) == {"prompt": text}
    messages = pair.messages()
    rendered = target.ok("/tokenize", {"messages": messages, "return_token_strs": True})
    assert len(rendered["token_strs"]) == rendered["count"]
    shown = target.ok(CHAT, chat(messages, return_token_ids=True))
    assert shown["prompt_token_ids"] == rendered["tokens"]
    counted = target.ok("/v1/messages/count_tokens", {"messages": messages})
    assert counted["input_tokens"] == rendered["count"]


@exchange
def a_text_prefix_is_a_token_prefix(pair: Pair) -> None:
    """The ids of a text begin with those of its first part, but for at most two tokens at the cut."""
    text = pair.messages()[0]["content"]
    whole = pair.prefill.ok("/tokenize", {"prompt": text})["tokens"]
    part = pair.prefill.ok("/tokenize", {"prompt": text[: len(text) // 2]})["tokens"]
    assert whole[: len(part) - 2] == part[:-2]


@exchange
def metric_names(pair: Pair) -> None:
    """The families that the router and the operator read are there, on both roles where both have them."""
    wanted = {
        "num_requests_running",
        "num_requests_waiting",
        'num_requests_waiting_by_reason{reason="capacity"}',
        'num_requests_waiting_by_reason{reason="deferred"}',
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "external_prefix_cache_queries_total",
        "external_prefix_cache_hits_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_sum",
        "nixl_bytes_transferred_sum",
        "nixl_num_failed_transfers_total",
        "nixl_num_kv_expired_reqs_total",
        *SOURCES,
    }
    on_prefill, on_decode = pair.prefill.metrics(), pair.decode.metrics()
    assert wanted <= set(on_prefill)
    assert wanted <= set(on_decode)
    stages = {name for name in on_decode if name.startswith("num_requests_kv_fetch_by_stage")}
    assert len(stages) == 3
    assert not stages & set(on_prefill)


@exchange
def metric_families(pair: Pair) -> None:
    """The families of `standin/metrics.json` are those of the engine, with their types and buckets."""
    text = pair.decode.client.get(f"{pair.decode.url}/metrics").text
    shown = dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)$", text, re.MULTILINE))
    shown = {name: kind for name, kind in shown.items() if not name.endswith("_created")}
    # There once an engine has parsed a call of a tool, as another row may have had it do.
    shown.pop("vllm:tool_call_parser_invocations_total", None)
    assert shown == {family.name: family.type for family in FAMILIES}
    for family in FAMILIES:
        bounds = re.findall(rf'^{re.escape(family.name)}_bucket{{.*?le="(?!\+Inf)([^"]+)"', text, re.MULTILINE)
        assert [float(bound) for bound in bounds] == family.buckets


@exchange
def rank_header(pair: Pair) -> None:
    """`X-data-parallel-rank` chooses a rank; one that does not exist is refused."""
    prompt = pair.prompt(20)
    pair.prefill.ok(COMPLETIONS, plain(prompt), x_data_parallel_rank="0")
    refused = pair.prefill.post(COMPLETIONS, plain(prompt), x_data_parallel_rank="3")
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert refused.json()["error"]["message"] == "data_parallel_rank 3 is out of range [0, 1)."
