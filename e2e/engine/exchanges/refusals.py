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


REFUSALS = _refusals()


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
