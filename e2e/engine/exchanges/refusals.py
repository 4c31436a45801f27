"""Bodies that are refused, as values: what is sent, and status, type, parameter and words of the answer.

Boundary: one request each; nothing of them reaches the engine's scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.engine.exchanges.parts import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Json,
    Target,
)


@dataclass(frozen=True)
class Refusal:
    """A body that is refused, and how: `message` must be within the answer's."""

    name: str
    path: str
    body: Json
    status: int
    kind: str
    param: str | None
    message: str


def _refusals() -> list[Refusal]:
    bad, form = "BadRequestError", "Bad Request"
    prompt = {"prompt": [200, 201, 202]}
    talk = {"messages": [{"role": "user", "content": "hi"}]}
    options = {"stream_options": {"include_usage": True}}
    at_least = "max_tokens must be at least 1, got 0."
    return [
        Refusal("max_tokens_0", COMPLETIONS, {**prompt, "max_tokens": 0}, 400, bad, "max_tokens", at_least),
        Refusal("chat_max_tokens_0", CHAT, {**talk, "max_tokens": 0}, 400, bad, "max_tokens", at_least),
        Refusal(
            "min_tokens",
            COMPLETIONS,
            {**prompt, "max_tokens": 1, "min_tokens": 5},
            400,
            bad,
            None,
            "min_tokens must be less",
        ),
        Refusal(
            "stream_options",
            COMPLETIONS,
            {**prompt, **options},
            400,
            bad,
            "stream_options",
            "Stream options can only be",
        ),
        Refusal(
            "chat_stream_options", CHAT, {**talk, **options}, 400, bad, "stream_options", "Stream options can only be"
        ),
        Refusal(
            "unknown_model",
            COMPLETIONS,
            {**prompt, "model": "x"},
            404,
            "NotFoundError",
            "model",
            "The model `x` does not exist.",
        ),
        Refusal(
            "chat_unknown_model",
            CHAT,
            {**talk, "model": "x"},
            404,
            "NotFoundError",
            "model",
            "The model `x` does not exist.",
        ),
        Refusal("no_prompt", COMPLETIONS, {}, 400, bad, "prompt", "Either prompt or prompt_embeds must be provided"),
        Refusal(
            "empty_text",
            COMPLETIONS,
            {"prompt": ""},
            400,
            bad,
            "prompt",
            "Either prompt or prompt_embeds must be provided",
        ),
        Refusal("empty_ids", COMPLETIONS, {"prompt": []}, 400, bad, None, "You must pass at least one prompt"),
        Refusal("no_messages", CHAT, {}, 400, form, "body.messages", "Field required"),
        Refusal(
            "empty_messages",
            CHAT,
            {"messages": []},
            400,
            bad,
            None,
            "Cannot apply chat template to an empty conversation",
        ),
        Refusal(
            "temperature",
            COMPLETIONS,
            {**prompt, "temperature": -3},
            400,
            bad,
            "temperature",
            "temperature must be non-negative",
        ),
        Refusal(
            "too_long",
            COMPLETIONS,
            {"prompt": [200] * 2800},
            400,
            bad,
            "input_tokens",
            "maximum context length is 2048 tokens",
        ),
        Refusal(
            "too_many",
            COMPLETIONS,
            {**prompt, "max_tokens": 5000},
            400,
            bad,
            "max_tokens",
            "max_tokens=5000 cannot be greater",
        ),
        Refusal("vocabulary", COMPLETIONS, {"prompt": [70_000]}, 400, bad, None, "Token id 70000 is out of vocabulary"),
        Refusal("n_0", COMPLETIONS, {**prompt, "n": 0}, 400, bad, None, "n must be at least 1, got 0."),
        Refusal(
            "greedy_n",
            COMPLETIONS,
            {**prompt, "n": 2, "temperature": 0},
            400,
            bad,
            None,
            "n must be 1 when using greedy sampling",
        ),
        Refusal(
            "word_for_number",
            COMPLETIONS,
            {**prompt, "max_tokens": "abc"},
            400,
            form,
            "body.max_tokens",
            "valid integer",
        ),
        Refusal(
            "params_not_an_object",
            COMPLETIONS,
            {**prompt, "kv_transfer_params": [1]},
            400,
            form,
            "body.kv_transfer_params",
            "valid dictionary",
        ),
        Refusal(
            "params_without_ids",
            CHAT,
            {**talk, "kv_transfer_params": {"prompt_token_ids": []}},
            400,
            bad,
            "kv_transfer_params.prompt_token_ids",
            "must be a non-empty list of non-negative integers",
        ),
        Refusal("no_input", RESPONSES, {}, 400, form, "body.input", "Field required"),
        Refusal("messages_without_limit", MESSAGES, talk, 400, form, "body.max_tokens", "Field required"),
        Refusal(
            "render_off",
            "/v1/chat/completions/render",
            talk,
            403,
            "PermissionDeniedError",
            None,
            "Scale-out endpoints are disabled",
        ),
        Refusal(
            "unload_unknown",
            "/v1/unload_lora_adapter",
            {"lora_name": "z"},
            404,
            "NotFoundError",
            None,
            "adapter 'z' cannot be found",
        ),
    ]


def _ill_typed() -> list[Refusal]:
    """Values of a wrong type: in each kind of field that there is, on every route that reads a body."""
    prompt, talk = {"prompt": [200, 201]}, {"messages": [{"role": "user", "content": "hi"}]}
    whole, truth, text = "valid integer", "valid boolean", "valid string"
    items, mapping = "valid list", "valid dictionary"
    rows: list[tuple[str, str, Json, str, str]] = [
        ("fraction", COMPLETIONS, {**prompt, "max_tokens": 1.5}, "max_tokens", whole),
        ("null_number", COMPLETIONS, {**prompt, "min_tokens": None}, "min_tokens", whole),
        ("number_for_truth", COMPLETIONS, {**prompt, "stream": 7}, "stream", truth),
        ("word_for_temperature", COMPLETIONS, {**prompt, "temperature": "hot"}, "temperature", "valid number"),
        ("options_no_object", COMPLETIONS, {**prompt, "stream": True, "stream_options": 5}, "stream_options", mapping),
        ("stop_no_text", COMPLETIONS, {**prompt, "stop": [5]}, "stop", text),
        ("model_no_text", COMPLETIONS, {**prompt, "model": [1]}, "model", text),
        ("arguments_no_object", COMPLETIONS, {**prompt, "vllm_xargs": "x"}, "vllm_xargs", mapping),
        ("argument_an_object", COMPLETIONS, {**prompt, "vllm_xargs": {"a": {}}}, "vllm_xargs.a", text),
        ("prompt_a_number", COMPLETIONS, {"prompt": 5}, "prompt", items),
        ("prompt_text_and_ids", COMPLETIONS, {"prompt": [1, "a"]}, "prompt.1", whole),
        ("prompt_of_prompts", COMPLETIONS, {"prompt": [[1, "x"]]}, "prompt.0", whole),
        ("prompt_negative", COMPLETIONS, {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ("chat_no_list", CHAT, {"messages": "hi"}, "messages", items),
        ("chat_options", CHAT, {**talk, "stream": True, "stream_options": "x"}, "stream_options", mapping),
        ("chat_limit", CHAT, {**talk, "max_completion_tokens": []}, "max_completion_tokens", whole),
        ("input_a_number", RESPONSES, {"input": 5}, "input", text),
        ("input_of_numbers", RESPONSES, {"input": [5]}, "input", text),
        ("instructions", RESPONSES, {"input": "hi", "instructions": 5}, "instructions", text),
        ("messages_no_list", MESSAGES, {"messages": "x", "max_tokens": 5}, "messages", items),
        ("message_no_object", MESSAGES, {"messages": [5], "max_tokens": 5}, "messages.0", mapping),
        ("system_a_number", MESSAGES, {**talk, "max_tokens": 5, "system": 5}, "system", text),
        ("tokenize_a_number", "/tokenize", {"prompt": 5}, "prompt", text),
        ("detokenize_text", "/detokenize", {"tokens": [1, "x"]}, "tokens.1", whole),
        ("adapter_no_text", "/v1/load_lora_adapter", {"lora_name": 5, "lora_path": "x"}, "lora_name", text),
    ]
    return [
        Refusal(name, path, body, 400, "Bad Request", f"body.{field}", message)
        for name, path, body, field, message in rows
    ]


def _before_types() -> list[Refusal]:
    """What vLLM looks at before it reads types, and names without `body`."""
    prompt = {"prompt": [200, 201]}
    ids = "logprob_token_ids"
    rows: list[tuple[str, Json, str, str]] = [
        ("salt_no_text", {**prompt, "cache_salt": 5}, "cache_salt", "must be a non-empty string"),
        ("salt_with_a_slash", {**prompt, "cache_salt": "a/b"}, "cache_salt", "must not contain"),
        ("prompt_logprobs", {**prompt, "prompt_logprobs": "x"}, "prompt_logprobs", "must be an integer"),
        ("ids_without_logprobs", {**prompt, ids: [5]}, ids, "`logprobs` must be set"),
    ]
    return [
        Refusal(name, COMPLETIONS, body, 400, "BadRequestError", field, message) for name, body, field, message in rows
    ]


REFUSALS = [*_refusals(), *_ill_typed(), *_before_types()]


def check_refusal(target: Target, refusal: Refusal) -> None:
    """Send a refusal's body and check status, error fields and message."""
    answer = target.post(refusal.path, refusal.body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (
        refusal.status,
        refusal.status,
        refusal.kind,
        refusal.param,
    )
    assert refusal.message in error["message"]
