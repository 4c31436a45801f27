"""Rows about the two legs and what an answer holds: equality, streams, ids, cached tokens, further APIs.

Boundary: requests that succeed.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import re

from e2e.engine.exchanges.parts import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    CHAT,
    COMPLETIONS,
    FIRST_LEG,
    MESSAGES,
    RESPONSES,
    SOURCES,
    Json,
    Pair,
    blocks,
    chat,
    exchange,
    ids,
    plain,
)

TRANSFER_FIELDS = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "dcp_size",
    "pp_size",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "transfer_mode",
    "remote_prefill_cached_tokens",
}


@exchange
def two_legs_equal_one(pair: Pair) -> None:
    """Decode pulls exactly the prompt's blocks and answers as one engine alone does; prefill computed the prompt."""
    prompt = pair.prompt(70)
    before_p, before_d = pair.prefill.metrics(), pair.decode.metrics()
    params = pair.first_leg(prompt)
    assert set(params) == TRANSFER_FIELDS
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["remote_num_tokens"] == len(prompt)
    assert params["transfer_mode"] == "pull"
    assert [len(group) for group in params["remote_block_ids"]] == [blocks(len(prompt))]
    answer = pair.decode.ok(COMPLETIONS, plain(prompt, kv_transfer_params=params))
    assert answer["kv_transfer_params"] is None
    assert len(ids(answer)) == 8
    sums = ("nixl_bytes_transferred_sum", *SOURCES)
    assert pair.decode.growth(before_d, *sums) == [blocks(len(prompt)) * BLOCK_BYTES, len(prompt), 0, 0]
    assert pair.prefill.growth(before_p, SOURCES[1], SOURCES[0]) == [len(prompt), 0]
    alone = pair.prefill.ok(COMPLETIONS, plain(prompt))
    assert ids(alone) == ids(answer)


@exchange
def two_legs_streamed(pair: Pair) -> None:
    """A streamed decode leg of a chat has the role first, one event a token, the reason last, usage if asked for."""
    messages = pair.messages()
    first = pair.prefill.ok(CHAT, chat(messages, max_tokens=1, kv_transfer_params=FIRST_LEG, return_token_ids=True))
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["prompt_token_ids"]
    told = first["kv_transfer_params"]
    options = {"include_usage": True}
    events = pair.decode.events_of(CHAT, chat(messages, kv_transfer_params=told, stream_options=options))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[0]["prompt_token_ids"] is None
    *_, last, usage = events
    assert last["choices"][0]["finish_reason"] == "length"
    assert "system_fingerprint" not in last
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == len(first["prompt_token_ids"])
    assert usage["usage"]["completion_tokens"] == 8
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    text = "".join(one["choices"][0]["delta"]["content"] for one in events[:-1])
    alone = pair.prefill.ok(CHAT, chat(messages))
    assert alone["choices"][0]["message"]["content"] == text
    without = pair.decode.events_of(CHAT, chat(messages))
    assert without[-1]["choices"][0]["finish_reason"] == "length"
    assert "system_fingerprint" in without[-1]


@exchange
def completion_stream(pair: Pair) -> None:
    """A completion's stream shows the prompt's ids once, in the first event, and no transfer parameters at all."""
    prompt = pair.prompt(20)
    events = pair.prefill.events_of(COMPLETIONS, plain(prompt, max_tokens=3, kv_transfer_params=FIRST_LEG))
    shown = [one["choices"][0]["prompt_token_ids"] for one in events]
    assert shown == [prompt, *[None] * (len(events) - 1)]
    assert sum(len(ids(one)) for one in events) == 3
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("kv_transfer_params" in one for one in events)


@exchange
def token_id_places(pair: Pair) -> None:
    """Prompt ids are in the choice for completions, at the top for chat; without the flag both are null."""
    prompt = pair.prompt(20)
    completion = pair.prefill.ok(COMPLETIONS, plain(prompt))
    assert completion["choices"][0]["prompt_token_ids"] == prompt
    assert len(completion["choices"][0]["token_ids"]) == 8
    both = pair.prefill.ok(CHAT, chat(pair.messages(), return_token_ids=True))
    assert len(both["prompt_token_ids"]) == both["usage"]["prompt_tokens"]
    assert len(both["choices"][0]["token_ids"]) == 8
    neither = pair.prefill.ok(CHAT, chat(pair.messages()))
    assert neither["prompt_token_ids"] is None
    assert neither["choices"][0]["token_ids"] is None


@exchange
def cached_tokens(pair: Pair) -> None:
    """Only whole blocks before the last token count as cached; decode repeats prefill's number, not its own."""
    prompt = pair.prompt(96)

    def cached(answer: Json) -> int:
        number: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return number

    assert cached(pair.prefill.ok(COMPLETIONS, plain(prompt))) == 0
    assert cached(pair.prefill.ok(COMPLETIONS, plain(prompt))) == 64
    assert cached(pair.prefill.ok(COMPLETIONS, plain([*prompt, 101]))) == 96
    params = pair.first_leg(prompt)
    assert params["remote_prefill_cached_tokens"] == 64
    before = pair.decode.metrics()
    assert cached(pair.decode.ok(COMPLETIONS, plain(prompt, kv_transfer_params=params))) == 64
    assert pair.decode.growth(before, *SOURCES) == [96, 0, 0]
    again = pair.first_leg(prompt)
    before = pair.decode.metrics()
    pair.decode.ok(COMPLETIONS, plain(prompt, kv_transfer_params=again))
    assert pair.decode.growth(before, *SOURCES, "nixl_bytes_transferred_sum") == [32, 0, 64, BLOCK_BYTES]
    del again["remote_prefill_cached_tokens"]
    other = pair.prompt(40)
    params = pair.first_leg(other)
    del params["remote_prefill_cached_tokens"]
    assert cached(pair.decode.ok(COMPLETIONS, plain(other, kv_transfer_params=params))) == len(other)


@exchange
def one_block_chain(pair: Pair) -> None:
    """The same rendered text meets the same blocks through chat, completions, responses and messages."""
    messages = pair.messages()
    first = pair.prefill.ok(CHAT, chat(messages, return_token_ids=True))
    whole = (first["usage"]["prompt_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert whole > 0
    completion = pair.prefill.ok(COMPLETIONS, plain(first["prompt_token_ids"]))
    assert completion["usage"]["prompt_tokens_details"]["cached_tokens"] == whole
    response = pair.prefill.ok(RESPONSES, {"input": messages, "temperature": 0, "max_output_tokens": 2})
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == whole
    message = pair.prefill.ok(MESSAGES, {"messages": messages, "temperature": 0, "max_tokens": 2})
    assert message["usage"]["cache_read_input_tokens"] == whole


@exchange
def max_completion_tokens_wins(pair: Pair) -> None:
    """`max_completion_tokens` beside `max_tokens` decides how much a chat generates."""
    answer = pair.prefill.ok(CHAT, chat(pair.messages(), max_tokens=1, max_completion_tokens=5))
    assert answer["usage"]["completion_tokens"] == 5


@exchange
def several_choices_and_prompts(pair: Pair) -> None:
    """With n one prompt has several choices, a list has one a prompt; prefill hands over the first prompt's KV."""
    prompt = pair.prompt(40)
    two = pair.prefill.ok(COMPLETIONS, plain(prompt, n=2, temperature=1, seed=1))
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert [choice["prompt_token_ids"] for choice in two["choices"]] == [prompt, prompt]
    assert two["usage"]["prompt_tokens"] == 40
    assert two["usage"]["completion_tokens"] == 16
    several = [pair.prompt(40), pair.prompt(70)]
    listed = pair.prefill.ok(COMPLETIONS, plain(several, max_tokens=1, kv_transfer_params=FIRST_LEG))
    assert [choice["prompt_token_ids"] for choice in listed["choices"]] == several
    assert listed["kv_transfer_params"]["remote_num_tokens"] == 40
    assert listed["usage"]["prompt_tokens"] == 110


@exchange
def echo_shows_the_prompt(pair: Pair) -> None:
    """Echo puts the prompt before the answer; with `return_token_ids` the echoed text is left empty."""
    shown = pair.prefill.ok(COMPLETIONS, plain("hello world", echo=True, return_token_ids=False))
    assert shown["choices"][0]["text"].startswith("hello world")
    hidden = pair.prefill.ok(COMPLETIONS, plain("hello world", echo=True))
    assert "hello world" not in hidden["choices"][0]["text"]


@exchange
def prompt_logprobs_bypass_the_cache(pair: Pair) -> None:
    """A prompt whose logprobs are asked for is computed anew, on decode too: nothing is pulled."""
    prompt = pair.prompt(70)
    pair.prefill.ok(COMPLETIONS, plain(prompt))
    answer = pair.prefill.ok(COMPLETIONS, plain(prompt, prompt_logprobs=1, max_tokens=1, kv_transfer_params=FIRST_LEG))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(answer["choices"][0]["prompt_logprobs"]) == len(prompt)
    before = pair.decode.metrics()
    params = answer["kv_transfer_params"]
    pair.decode.ok(COMPLETIONS, plain(prompt, prompt_logprobs=1, kv_transfer_params=params))
    assert pair.decode.growth(before, SOURCES[1], SOURCES[0]) == [len(prompt), 0]


@exchange
def plain_requests_on_either_role(pair: Pair) -> None:
    """Both roles are whole engines: without parameters each answers alone, and the legs may run the other way round."""
    prompt = pair.prompt(50)
    on_decode = pair.decode.ok(COMPLETIONS, plain(prompt))
    on_prefill = pair.prefill.ok(COMPLETIONS, plain(prompt))
    assert ids(on_decode) == ids(on_prefill)
    other = pair.prompt(50)
    params = pair.decode.ok(COMPLETIONS, plain(other, max_tokens=1, kv_transfer_params=FIRST_LEG))["kv_transfer_params"]
    turned = pair.prefill.ok(COMPLETIONS, plain(other, kv_transfer_params=params))
    assert ids(turned) == ids(pair.decode.ok(COMPLETIONS, plain(other)))


@exchange
def answers_are_continuous(pair: Pair) -> None:
    """A prompt with half of its answer appended is continued by the other half."""
    prompt = pair.prompt(45)
    whole = ids(pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=12)))
    rest = ids(pair.prefill.ok(COMPLETIONS, plain([*prompt, *whole[:6]], max_tokens=6)))
    assert rest == whole[6:]


@exchange
def stop_string(pair: Pair) -> None:
    """A stop string ends the answer before itself and is told as the reason."""
    prompt = pair.prompt(20)
    text = pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=30))["choices"][0]["text"]
    stop = text[20]
    answer = pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=30, stop=[stop]))["choices"][0]
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)


@exchange
def request_ids(pair: Pair) -> None:
    """`X-Request-Id` names the answer and the request that decode asks prefill for; the header beats the body."""
    body = plain(pair.prompt(20), max_tokens=1, kv_transfer_params=FIRST_LEG, request_id="other")
    answer = pair.prefill.ok(COMPLETIONS, body, x_request_id="abc")
    assert answer["id"] == "cmpl-abc"
    assert re.fullmatch(r"cmpl-abc-0-[0-9a-f]{8}", answer["kv_transfer_params"]["remote_request_id"])
    talk = chat(pair.messages(), max_tokens=1, kv_transfer_params=FIRST_LEG)
    answer = pair.prefill.ok(CHAT, talk, x_request_id="abc")
    assert answer["id"] == "chatcmpl-abc"
    assert re.fullmatch(r"chatcmpl-abc-[0-9a-f]{8}", answer["kv_transfer_params"]["remote_request_id"])


@exchange
def ids_in_the_parameters(pair: Pair) -> None:
    """Chat takes the prompt's ids from the parameters instead of rendering; completions do not."""
    prompt = pair.prompt(40)
    expected = ids(pair.prefill.ok(COMPLETIONS, plain(prompt)))
    given = {"kv_transfer_params": {"prompt_token_ids": prompt}}
    answer = pair.prefill.ok(CHAT, chat(pair.messages(), return_token_ids=True, **given))
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == expected


@exchange
def responses_and_messages_hop(pair: Pair) -> None:
    """Both further APIs return transfer parameters and use them; neither shows ids."""
    messages = pair.messages()
    talk = {"messages": messages, "temperature": 0}
    message = pair.prefill.ok(MESSAGES, {**talk, "max_tokens": 1, "kv_transfer_params": FIRST_LEG})
    assert message["stop_reason"] == "max_tokens"
    before = pair.decode.metrics()
    used = pair.decode.ok(MESSAGES, {**talk, "max_tokens": 4, "kv_transfer_params": message["kv_transfer_params"]})
    assert pair.decode.growth(before, SOURCES[0])[0] > 0
    assert used["content"] == pair.prefill.ok(MESSAGES, {**talk, "max_tokens": 4})["content"]
    asked = {"input": f"tell me {pair.random.random()}", "temperature": 0}
    leg = pair.prefill.ok(RESPONSES, {**asked, "max_output_tokens": 1, "kv_transfer_params": FIRST_LEG})
    assert leg["incomplete_details"] == {"reason": "max_output_tokens"}
    before = pair.decode.metrics()
    done = pair.decode.ok(RESPONSES, {**asked, "max_output_tokens": 4, "kv_transfer_params": leg["kv_transfer_params"]})
    assert pair.decode.growth(before, SOURCES[0])[0] > 0
    alone = pair.prefill.ok(RESPONSES, {**asked, "max_output_tokens": 4})
    assert done["output"][0]["content"][0]["text"] == alone["output"][0]["content"][0]["text"]


@exchange
def typed_streams(pair: Pair) -> None:
    """Responses and messages stream named events, with no [DONE]."""
    expected = {
        MESSAGES: ("message_start", "content_block_start", "content_block_delta", "message_stop"),
        RESPONSES: ("response.created", "response.in_progress", "response.output_item.added", "response.completed"),
    }
    bodies = {
        MESSAGES: {"messages": pair.messages(), "max_tokens": 3, "temperature": 0},
        RESPONSES: {"input": "hello", "max_output_tokens": 3, "temperature": 0},
    }
    for path, (first, second, third, last) in expected.items():
        text = pair.prefill.post(path, {**bodies[path], "stream": True}).text
        names = re.findall(r"^event: (.*)$", text, re.MULTILINE)
        assert names[:3] == [first, second, third]
        assert names[-1] == last
        assert "[DONE]" not in text
