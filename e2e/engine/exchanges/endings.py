"""Rows that end their engine, in the order in which they must run: after them the pair is gone.

Boundary: the rest of the table runs before.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import json

import httpx

from e2e.engine.exchanges.parts import (
    CHAT,
    COMPLETIONS,
    FIRST_LEG,
    MODEL,
    SOURCES,
    Json,
    Pair,
    chat,
    ending,
    ids,
    plain,
    wait_for,
)


@ending
def drain(pair: Pair) -> None:
    """SIGTERM lets streams end with [DONE] and unpulled KV be pulled; new completions are `abort`, new chats 500.

    KV that is pulled last keeps the engine there for as long as the row looks at it, however slow the machine: a drain
    is over when nothing runs and nothing is left to be pulled.
    """
    target = pair.decode
    prompt, last = pair.prompt(70), pair.prompt(64)

    def first_leg(tokens: list[int]) -> Json:
        told = target.ok(COMPLETIONS, plain(tokens, max_tokens=1, kv_transfer_params=FIRST_LEG))
        params: Json = told["kv_transfer_params"]
        return params

    def late(path: str, asked: Json) -> httpx.Response:
        return httpx.post(target.url + path, json={"model": MODEL, **asked}, timeout=30)

    def drains() -> bool:
        answer = late(COMPLETIONS, plain(pair.prompt(20), max_tokens=1))
        if answer.status_code != httpx.codes.OK:
            return False
        choice = answer.json()["choices"][0]
        return (choice["finish_reason"], choice["text"]) == ("abort", "")

    body = {"model": MODEL, **plain(pair.prompt(20), max_tokens=300, stream=True)}
    with target.client.stream("POST", target.url + COMPLETIONS, json=body) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        held, pair.left_over = first_leg(prompt), first_leg(last)
        target.terminate()
        assert wait_for(drains, 30)
        assert httpx.get(f"{target.url}/health", timeout=30).status_code == httpx.codes.OK
        assert late(CHAT, chat(pair.messages())).status_code == httpx.codes.INTERNAL_SERVER_ERROR
        assert late(COMPLETIONS, plain(pair.prompt(20), stream=True)).text == "data: [DONE]\n\n"
        # Last, because on a busy machine a pull takes many seconds.
        before = pair.prefill.metrics()
        pulled = pair.prefill.ok(COMPLETIONS, plain(prompt, kv_transfer_params=held))
        assert pair.prefill.growth(before, SOURCES[0]) == [70]
        rest = [line for line in lines if line]
    assert rest.pop() == "data: [DONE]"
    # A slow client gets several tokens in one event.
    shown = [ids(json.loads(line.removeprefix("data: "))) for line in [first, *rest]]
    assert sum(map(len, shown)) == 300
    assert ids(pulled) == ids(pair.prefill.ok(COMPLETIONS, plain(prompt)))
    pair.prefill.ok(COMPLETIONS, plain(last, kv_transfer_params=pair.left_over))
    assert wait_for(target.has_ended, 90)


@ending
def too_many_blocks_kill_the_engine(pair: Pair) -> None:
    """The parameters of a shorter prompt end an engine: 500, then the process goes."""
    params = (
        pair.left_over
        or pair.decode.ok(COMPLETIONS, plain(pair.prompt(64), max_tokens=1, kv_transfer_params=FIRST_LEG))[
            "kv_transfer_params"
        ]
    )
    answer = pair.prefill.post(COMPLETIONS, plain(pair.prompt(640), kv_transfer_params=params))
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    assert wait_for(pair.prefill.has_ended, 60)
