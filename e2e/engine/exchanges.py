"""The table of exchanges: what is said to an engine and what must come back, from real vLLM and the stand-in.

Boundary: requests and checks against URLs; which engines are behind them is the caller's business
(`tests/engine/test_exchanges.py`). Each row is a function in `EXCHANGES`; it gets a pair of engines that decode by
NIXL (or the stand-in's channel) and raises AssertionError where an answer is not vLLM 0.32's. Refusals are a table of
values, `REFUSALS`. Rows in `LAST` end their engine, so they run last, in order.
"""

# ruff: noqa: PLR2004, S311 - expected values are literals; prompts need no secret randomness

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import zmq

from e2e.engine.standin.metrics import FAMILIES

BLOCK_TOKENS = 32
BLOCK_BYTES = 65_536
VOCABULARY = 4000
MODEL = "tiny"
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
FIRST_LEG = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
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

Json = dict[str, Any]
Row = Callable[["Pair"], None]
EXCHANGES: dict[str, Row] = {}
LAST: dict[str, Row] = {}


def exchange(row: Row) -> Row:
    """Put a function in the table."""
    EXCHANGES[row.__name__] = row
    return row


def ending(row: Row) -> Row:
    """Put a function in the table of those that end an engine."""
    LAST[row.__name__] = row
    return row


@dataclass
class Target:
    """One engine: its API, and where its KV events are."""

    url: str
    events: str
    replay: str
    terminate: Callable[[], None]
    has_ended: Callable[[], bool]
    adapter: str
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    def post(self, path: str, body: Json, **headers: str) -> httpx.Response:
        """Send a JSON body; underscores in header names are dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(self.url + path, json={"model": MODEL, **body}, headers=named)

    def ok(self, path: str, body: Json, **headers: str) -> Json:
        """Send a body and expect 200 and JSON."""
        answer = self.post(path, body, **headers)
        assert answer.status_code == httpx.codes.OK, answer.text
        told: Json = answer.json()
        return told

    def events_of(self, path: str, body: Json) -> list[Json]:
        """The events of a stream, which must end with [DONE]."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels; the labels model and engine are left out."""
        found = {}
        for line in self.client.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith("vllm:") and "_created" not in line and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'(engine|model_name)="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
                found[name.removeprefix("vllm:")] = float(value)
        return found

    def growth(self, since: dict[str, float], *names: str, within_s: float = 5.0) -> list[float]:
        """How much metrics have grown; waits until the first has, because a server's own numbers lag its answers."""
        end_s = time.monotonic() + within_s
        while True:
            now = self.metrics()
            grown = [now.get(name, 0.0) - since.get(name, 0.0) for name in names]
            if grown[0] or time.monotonic() > end_s:
                return grown
            time.sleep(0.1)


@dataclass
class Pair:
    """A prefill and a decode engine; `random` makes prompts that no cache has seen."""

    prefill: Target
    decode: Target
    random: random.Random
    lease_s: float
    left_over: Json | None = None  # parameters of a 64-token prompt on decode, kept from one ending row for the next

    def greet(self) -> None:
        """Let the engines meet, both ways: on a busy machine real ones may miss NIXL's 5 s for the first handshake."""
        for prefill, decode in ((self.prefill, self.decode), (self.decode, self.prefill)):
            for _ in range(4):
                prompt = self.prompt(40)
                leg = prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=FIRST_LEG))
                body = plain(prompt, kv_transfer_params=leg["kv_transfer_params"])
                before = decode.metrics()
                decode.post(COMPLETIONS, body)
                if decode.growth(before, "nixl_bytes_transferred_sum", within_s=1.0)[0]:
                    break

    def quiet(self) -> None:
        """Wait until prefill holds nothing: leases that other rows left are over."""
        assert wait_for(lambda: self.prefill.metrics()["kv_cache_usage_perc"] == 0, 3 * self.lease_s + 5)

    def close(self) -> None:
        """Close the clients."""
        self.prefill.client.close()
        self.decode.client.close()

    def prompt(self, count: int) -> list[int]:
        """Token ids of a fresh prompt."""
        return [self.random.randrange(100, VOCABULARY) for _ in range(count)]

    def messages(self) -> list[Json]:
        """A fresh conversation of one turn."""
        return [{"role": "user", "content": f"tell me about array {self.random.random()} and numbers " * 3}]

    def first_leg(self, prompt: list[int], **more: Any) -> Json:
        """The parameters that prefill returns for a prompt."""
        body = plain(prompt, **{"max_tokens": 1, "kv_transfer_params": FIRST_LEG, **more})
        told = self.prefill.ok(COMPLETIONS, body)["kv_transfer_params"]
        assert told is not None
        params: Json = told
        return params


def plain(prompt: Any, **more: Any) -> Json:
    """A greedy completion of 8 tokens whose ids are shown."""
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 8, "return_token_ids": True}
    return {**body, **more}


def chat(messages: list[Json], **more: Any) -> Json:
    """A greedy chat of 8 tokens."""
    return {"messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 8, **more}


def blocks(tokens: int) -> int:
    """Blocks for so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


def ids(answer: Json) -> list[int]:
    """Generated ids of a completion's first choice."""
    found: list[int] = answer["choices"][0]["token_ids"]
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition comes true in time."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.1)
    return False


# Two legs
SOURCES = (
    'prompt_tokens_by_source_total{source="external_kv_transfer"}',
    'prompt_tokens_by_source_total{source="local_compute"}',
    'prompt_tokens_by_source_total{source="local_cache_hit"}',
)


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


# What goes wrong
@exchange
def poison(pair: Pair) -> None:
    """Decode does not check whose parameters it gets: the answer continues the other prompt, and stays in its cache."""
    mine, other = pair.prompt(64), pair.prompt(64)
    mine.append(other[-1])
    other.append(other[-1])
    theirs = ids(pair.prefill.ok(COMPLETIONS, plain(other)))
    own = ids(pair.prefill.ok(COMPLETIONS, plain(mine)))
    assert own != theirs
    wrong = pair.decode.ok(COMPLETIONS, plain(mine, kv_transfer_params=pair.first_leg(other)))
    assert ids(wrong) == theirs
    later = pair.decode.ok(COMPLETIONS, plain(mine))
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert ids(later) == theirs


@exchange
def lease_runs_out(pair: Pair) -> None:
    """KV that nobody pulls is held until the lease ends, and then counted; a later pull is still answered."""
    prompt = pair.prompt(70)
    pair.quiet()
    before = pair.prefill.metrics()
    params = pair.first_leg(prompt)
    assert wait_for(lambda: pair.prefill.metrics()["kv_cache_usage_perc"] > 0, 2)
    pair.quiet()
    assert pair.prefill.growth(before, "nixl_num_kv_expired_reqs_total") == [1]
    answer = pair.decode.ok(COMPLETIONS, plain(prompt, kv_transfer_params=params))
    assert ids(answer) == ids(pair.prefill.ok(COMPLETIONS, plain(prompt)))
    late = "nixl_num_notifications_after_expiry_total"
    assert pair.prefill.growth(before, late, within_s=10)[0] == 1


@exchange
def refusal_frees_at_once(pair: Pair) -> None:
    """A second leg that is refused tells prefill, which frees the blocks without waiting for the lease."""
    prompt = pair.prompt(70)
    pair.quiet()
    before = pair.prefill.metrics()
    params = pair.first_leg(prompt)
    refused = pair.decode.post(COMPLETIONS, plain(prompt, temperature=-3, kv_transfer_params=params))
    assert refused.status_code == httpx.codes.BAD_REQUEST
    pair.quiet()
    assert pair.prefill.growth(before, "nixl_num_kv_expired_reqs_total", within_s=0) == [0]


def unreachable(pair: Pair, prompt: list[int], target: Target) -> httpx.Response:
    """A second leg whose parameters name a port where nothing listens."""
    params = pair.first_leg(prompt) if target is pair.decode else None
    if params is None:
        params = pair.decode.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=FIRST_LEG))[
            "kv_transfer_params"
        ]
    # An engine that has been met before is not asked again: another id makes it a stranger.
    stranger = {"remote_port": 9, "remote_engine_id": f"gone-{pair.random.random()}"}
    return target.post(COMPLETIONS, plain(prompt, kv_transfer_params={**params, **stranger}))


@exchange
def failed_pull_fails(pair: Pair) -> None:
    """With policy `fail` a pull that cannot reach prefill gives 500 and is counted."""
    before = pair.decode.metrics()
    answer = unreachable(pair, pair.prompt(70), pair.decode)
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert pair.decode.growth(before, "nixl_num_failed_transfers_total")[0] == 1
    assert pair.decode.metrics()["num_requests_running"] == 0


@exchange
def failed_pull_recomputes(pair: Pair) -> None:
    """With policy `recompute` the same gives 200 and the right answer; the failure is counted."""
    prompt = pair.prompt(70)
    before = pair.prefill.metrics()
    answer = unreachable(pair, prompt, pair.prefill)
    assert answer.status_code == httpx.codes.OK
    assert ids(answer.json()) == ids(pair.decode.ok(COMPLETIONS, plain(prompt)))
    assert pair.prefill.growth(before, "nixl_num_failed_transfers_total")[0] == 1


@exchange
def incomplete_parameters_wait(pair: Pair) -> None:
    """Parameters without the engine's id are neither refused nor used: the request waits until its client leaves."""
    prompt = pair.prompt(40)
    params = pair.first_leg(prompt)
    del params["remote_engine_id"]
    body = {"model": MODEL, **plain(prompt, kv_transfer_params=params)}
    try:
        answer = httpx.post(pair.decode.url + COMPLETIONS, json=body, timeout=3)
    except httpx.ReadTimeout:
        answer = None
    assert answer is None
    assert wait_for(lambda: pair.decode.metrics()["num_requests_waiting"] == 0, 5)
    pair.decode.ok(COMPLETIONS, plain(prompt))


@exchange
def disconnect_aborts(pair: Pair) -> None:
    """A client that leaves ends its request in the engine within seconds; no finish reason is counted for it."""
    before = pair.decode.metrics()
    body = {"model": MODEL, **plain(pair.prompt(20), max_tokens=1900, stream=True)}
    with pair.decode.client.stream("POST", pair.decode.url + COMPLETIONS, json=body) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 1, 5)
    assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 0, 5)
    aborted = 'request_success_total{finished_reason="abort"}'
    assert pair.decode.metrics()[aborted] == before[aborted]


# Small routes
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
    subscriber = Subscriber(target)
    adapted = target.ok(COMPLETIONS, plain(prompt, model="ad"))
    (stored,) = subscriber.events()
    subscriber.close()
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
    assert shown == {family.name: family.type for family in FAMILIES}
    for family in FAMILIES:
        bounds = re.findall(rf'^{re.escape(family.name)}_bucket{{.*?le="([^"+]+)"', text, re.MULTILINE)
        assert [float(bound) for bound in bounds] == family.buckets


@exchange
def rank_header(pair: Pair) -> None:
    """`X-data-parallel-rank` chooses a rank; one that does not exist is refused."""
    prompt = pair.prompt(20)
    pair.prefill.ok(COMPLETIONS, plain(prompt), x_data_parallel_rank="0")
    refused = pair.prefill.post(COMPLETIONS, plain(prompt), x_data_parallel_rank="3")
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert refused.json()["error"]["message"] == "data_parallel_rank 3 is out of range [0, 1)."


# KV events
class Subscriber:
    """A SUB socket on an engine's events; `seen` gathers batches until something is there."""

    def __init__(self, target: Target) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(target.events)
        self._target = target
        self._warm()

    def _warm(self) -> None:
        """Wait until the subscription holds: publish something until it is heard."""
        for attempt in range(50):
            self._target.ok(
                COMPLETIONS,
                plain([7] * 31 + [random.randrange(100, VOCABULARY)], cache_salt=f"warm{attempt}{random.random()}"),
            )
            if self.batches(0.2):
                while self.batches(0.2):
                    pass
                return
        raise AssertionError("no event was heard")

    def batches(self, quiet_s: float) -> list[tuple[bytes, int, list[Any]]]:
        """(topic, sequence, batch) of what arrives until nothing does for so long."""
        found = []
        while self._socket.poll(int(quiet_s * 1000)):
            topic, sequence, payload = self._socket.recv_multipart()
            found.append((topic, int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))
        return found

    def events(self, quiet_s: float = 0.5) -> list[Json]:
        """The events of those batches."""
        return [event for _, _, batch in self.batches(quiet_s) for event in batch[1]]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


def replayed(target: Target, start: int) -> Iterator[tuple[int, bytes]]:
    """(sequence, payload) of a replay, the end marker included."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(target.replay)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while dealer.poll(3000):
            _, _, sequence, payload = dealer.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            yield number, payload
            if number == -1:
                return
        raise AssertionError("the replay did not end")


STORED_FIELDS = {
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
}


@exchange
def events_tell_the_chain(pair: Pair) -> None:
    """A prompt's whole blocks are told at once, chained from the root, and generated blocks as they fill."""
    subscriber = Subscriber(pair.prefill)
    try:
        prompt = pair.prompt(70)
        answer = pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=40))
        batches = subscriber.batches(0.5)
        numbers = [number for _, number, _ in batches]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {topic for topic, _, _ in batches} == {b"kv"}
        assert {batch[2] for _, _, batch in batches} == {0}
        stored = [event for _, _, batch in batches for event in batch[1]]
        assert {event["type"] for event in stored} == {"BlockStored"}
        assert set(stored[0]) == STORED_FIELDS
        assert stored[0]["parent_block_hash"] is None
        assert stored[0]["token_ids"] == prompt[:64]
        assert len(stored[0]["block_hashes"]) == 2
        assert stored[0]["block_size"] == BLOCK_TOKENS
        assert stored[0]["extra_keys"] == [None, None]
        known = (prompt + ids(answer))[:-1]
        told = [token for event in stored for token in event["token_ids"]]
        assert told == known[: len(known) // BLOCK_TOKENS * BLOCK_TOKENS]
        assert stored[1]["parent_block_hash"] == stored[0]["block_hashes"][-1]
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        assert subscriber.events() == []
    finally:
        subscriber.close()


@exchange
def events_of_pulled_blocks(pair: Pair) -> None:
    """Decode tells pulled blocks as any, with prefill's hashes; an aligned prompt's last block comes again."""
    on_prefill, on_decode = Subscriber(pair.prefill), Subscriber(pair.decode)
    try:
        prompt = pair.prompt(96)
        params = pair.first_leg(prompt)
        (first,) = on_prefill.events()
        pair.decode.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=params))
        (pulled,) = on_decode.events()
        assert pulled["block_hashes"] == first["block_hashes"]
        assert len(pulled["block_hashes"]) == 3
        assert pulled["medium"] == "GPU"
        pair.prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1))
        (again,) = on_prefill.events()
        assert again["block_hashes"] == first["block_hashes"][-1:]
        assert again["parent_block_hash"] == first["block_hashes"][-2]
    finally:
        on_prefill.close()
        on_decode.close()


@exchange
def events_with_salt_and_session(pair: Pair) -> None:
    """A salt is an extra key of the first block only; a session id is told; a full report tells cached blocks again."""
    subscriber = Subscriber(pair.prefill)
    try:
        prompt = pair.prompt(70)
        pair.prefill.ok(COMPLETIONS, plain(prompt, cache_salt="tenant", session_id="s1"))
        (stored,) = subscriber.events()
        assert stored["extra_keys"] == [["tenant"], None]
        assert stored["session_id"] == "s1"
        pair.prefill.ok(COMPLETIONS, plain(prompt))
        (other,) = subscriber.events()
        assert not set(other["block_hashes"]) & set(stored["block_hashes"])
        pair.prefill.ok(COMPLETIONS, plain(prompt, vllm_xargs={"kv_cache_report_mode": "full"}))
        (full,) = subscriber.events()
        assert full["block_hashes"] == other["block_hashes"]
        assert full["token_ids"] == prompt[:64]
        assert full["parent_block_hash"] is None
    finally:
        subscriber.close()


@exchange
def replay(pair: Pair) -> None:
    """A DEALER that sends an empty frame and a sequence gets every batch from there and an end marker of -1."""
    pair.prefill.ok(COMPLETIONS, plain(pair.prompt(40)))
    time.sleep(0.3)
    numbers = [number for number, _ in replayed(pair.prefill, 0)]
    assert numbers[-1] == -1
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert len(numbers) > 1
    assert [number for number, _ in replayed(pair.prefill, 10**9)] == [-1]


# What ends an engine
@ending
def drain(pair: Pair) -> None:
    """SIGTERM lets streams end with [DONE] and unpulled KV be pulled; new completions are `abort`, new chats 500."""
    target = pair.decode
    prompt = pair.prompt(70)

    def first_leg(tokens: list[int]) -> Json:
        told = target.ok(COMPLETIONS, plain(tokens, max_tokens=1, kv_transfer_params=FIRST_LEG))
        params: Json = told["kv_transfer_params"]
        return params

    def late(path: str, asked: Json) -> httpx.Response:
        return httpx.post(target.url + path, json={"model": MODEL, **asked}, timeout=30)

    pair.left_over = first_leg(pair.prompt(64))
    held = first_leg(prompt)
    body = {"model": MODEL, **plain(pair.prompt(20), max_tokens=500, stream=True)}
    with target.client.stream("POST", target.url + COMPLETIONS, json=body) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        target.terminate()
        time.sleep(0.5)
        assert httpx.get(f"{target.url}/health", timeout=30).status_code == httpx.codes.OK
        completion = late(COMPLETIONS, plain(pair.prompt(20)))
        assert completion.status_code == httpx.codes.OK
        assert completion.json()["choices"][0]["finish_reason"] == "abort"
        assert completion.json()["choices"][0]["text"] == ""
        assert late(CHAT, chat(pair.messages())).status_code == httpx.codes.INTERNAL_SERVER_ERROR
        assert late(COMPLETIONS, plain(pair.prompt(20), stream=True)).text == "data: [DONE]\n\n"
        before = pair.prefill.metrics()
        pulled = pair.prefill.ok(COMPLETIONS, plain(prompt, kv_transfer_params=held))
        assert pair.prefill.growth(before, SOURCES[0]) == [70]
        rest = [line for line in lines if line]
    assert rest.pop() == "data: [DONE]"
    # A slow client gets several tokens in one event.
    shown = [ids(json.loads(line.removeprefix("data: "))) for line in [first, *rest]]
    assert sum(map(len, shown)) == 500
    assert ids(pulled) == ids(pair.prefill.ok(COMPLETIONS, plain(prompt)))
    assert wait_for(target.has_ended, 60)


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
