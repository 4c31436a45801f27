"""The two legs of a request sent by hand, to engines themselves: the yardstick for the router's answers.

Boundary: speaks vLLM's API to one engine at a time. An engine asked without transfer parameters serves the whole
request alone, which is what an aggregated server does.
"""

from __future__ import annotations

import random
from typing import Any

import httpx

from e2e.engine.model import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, VOCABULARY
from pdpool_api.names import HEADER_PREFILL

TIMEOUT_S = 120.0
BLOCK_BYTES = BLOCK_TOKENS * KV_BYTES_PER_TOKEN
FIRST_ORDINARY_TOKEN = 10
"""Below are the special tokens of the tiny model."""
ASK_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

Answer = dict[str, Any]


def ask(url: str, path: str, body: Answer) -> Answer:
    """One request, not streamed; the whole answer.

    Raises:
        httpx.HTTPStatusError: the answer is not 2xx.
    """
    return _posted(url, path, body).json()  # type: ignore[no-any-return]


def hop(url: str, path: str, body: Answer) -> tuple[Answer, str]:
    """One request to a router: the answer and how its prefill was done (`remote`, `local`, `none`)."""
    answer = _posted(url, path, body)
    return answer.json(), answer.headers.get(HEADER_PREFILL, "")


def _posted(url: str, path: str, body: Answer) -> httpx.Response:
    answer = httpx.post(f"{url}{path}", json=body, timeout=TIMEOUT_S)
    if answer.is_error:
        raise httpx.HTTPStatusError(
            f"{answer.status_code} {answer.text[:500]}", request=answer.request, response=answer
        )
    return answer


def prefill_leg(url: str, path: str, body: Answer) -> Answer:
    """Ask a prefill engine for the KV of a request; the transfer parameters that a decode engine pulls it by."""
    params: Answer = ask(url, path, {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": ASK_PREFILL})[
        "kv_transfer_params"
    ]
    return params


def fresh_tokens(count: int, seed: int) -> list[int]:
    """A prompt of token ids that no engine has seen, unless with the same seed."""
    chance = random.Random(seed)  # noqa: S311 - a prompt, not a secret
    return [chance.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY) for _ in range(count)]


def fresh_text(words: int, seed: int) -> str:
    """A prompt of words that no engine has seen, unless with the same seed."""
    chance = random.Random(seed)  # noqa: S311 - a prompt, not a secret
    stems = (
        "array",
        "block",
        "index",
        "shape",
        "return",
        "value",
        "error",
        "import",
        "string",
        "async",
        "request",
        "header",
    )
    return " ".join(f"{chance.choice(stems)}{chance.randrange(1000)}" for _ in range(words))


def pulled_bytes(prompt_tokens: int) -> int:
    """What a decode engine that holds nothing of a prompt pulls: whole blocks, the partial last one included."""
    return -(-prompt_tokens // BLOCK_TOKENS) * BLOCK_BYTES
