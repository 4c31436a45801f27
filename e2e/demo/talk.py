"""What a user does with a pool: the unmodified OpenAI client asks, streamed and not.

Boundary: speaks to one base URL; knows nothing of pods.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from openai import OpenAI

TIMEOUT_S = 120.0
MAX_TOKENS = 24
QUESTION = (
    "A prefill engine has just computed the keys and values of this prompt, and a decode engine on another pod is "
    "about to continue it without computing them again. Explain what must travel between the two, how much of it there "
    "is, and what would go wrong if the decode engine took the blocks of somebody else's prompt instead."
)


@dataclass(frozen=True)
class Answered:
    """One answer and its times; `first_token_s` is a moment of the Unix epoch."""

    text: str
    prompt_tokens: int
    took_s: float
    ttft_s: float | None = None
    first_token_s: float | None = None


def client(url: str) -> OpenAI:
    """The client as anybody would make it; no retries, so that a failure shows."""
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT_S)


def streamed(openai: OpenAI, model: str, salt: str) -> Answered:
    """Ask for a stream and read it to its end."""
    start_s = time.monotonic()
    first_s: float | None = None
    first_token_s: float | None = None
    words: list[str] = []
    prompt_tokens = 0
    stream = openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"{salt}: {QUESTION}"}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        if chunk.usage is not None:
            prompt_tokens = chunk.usage.prompt_tokens
        word = chunk.choices[0].delta.content if chunk.choices else None
        if word:
            if first_s is None:
                first_s, first_token_s = time.monotonic(), time.time()
            words.append(word)
    ttft_s = None if first_s is None else first_s - start_s
    return Answered("".join(words), prompt_tokens, time.monotonic() - start_s, ttft_s, first_token_s)


def whole(openai: OpenAI, model: str, salt: str) -> Answered:
    """Ask for the whole answer at once."""
    start_s = time.monotonic()
    answer = openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"{salt}: {QUESTION}"}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    return Answered(answer.choices[0].message.content or "", answer.usage.prompt_tokens, time.monotonic() - start_s)
