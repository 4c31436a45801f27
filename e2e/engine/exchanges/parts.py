"""What the rows of the table are written with: engines as targets, bodies, waiting, and the two tables themselves.

Boundary: no row is here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import random

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

    def growth(self, since: dict[str, float], *names: str, within_s: float = 15.0) -> list[float]:
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
        """Let the engines meet, both ways: on a busy machine real ones may miss NIXL's 5 s for the first handshake.

        Rows rely on it: where an engine computes what it could not pull, a handshake that failed shows much later.
        """
        for prefill, decode in ((self.prefill, self.decode), (self.decode, self.prefill)):

            def met(prefill: Target = prefill, decode: Target = decode) -> bool:
                prompt = self.prompt(40)
                leg = prefill.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=FIRST_LEG))
                before = decode.metrics()
                decode.post(COMPLETIONS, plain(prompt, kv_transfer_params=leg["kv_transfer_params"]))
                return decode.growth(before, "nixl_bytes_transferred_sum", within_s=1.0)[0] > 0

            assert wait_for(met, 60), f"{decode.url} pulls nothing from {prefill.url}"

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


SOURCES = (
    'prompt_tokens_by_source_total{source="external_kv_transfer"}',
    'prompt_tokens_by_source_total{source="local_compute"}',
    'prompt_tokens_by_source_total{source="local_cache_hit"}',
)
