"""What a test wants the stand-in engine to do wrong: rules, pace and start-up, as values that also travel as JSON.

Boundary: says which rule applies to a request; `http` and `api` act on it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

Leg = Literal["prefill", "decode", "plain"]


class Rule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One fault or delay, applied to the requests it matches. Every field that is left out asks for nothing.

    Which requests: `path` (regular expression, matched from the start; default: the generation routes), `leg` (by the
    request's `kv_transfer_params`), `contains` (text anywhere in the body), `where` (in-process only), and at most
    `times` of them.
    """

    name: str = ""
    path: str = "/v1/(chat/completions|completions|responses|messages)$"
    leg: Leg | None = None
    contains: str = ""
    times: int | None = None
    # When
    delay_headers_s: float = 0.0
    delay_body_s: float = 0.0  # after the headers were sent
    delay_chunk_s: float = 0.0  # before each event of a stream
    # Instead of the answer
    status: int | None = None
    headers: dict[str, str] = {}
    body: str | None = None  # default: an error of vLLM's shape; as text/event-stream it is sent event by event
    gzip_if_asked: bool = False  # as a proxy in between might
    never_answer: bool = False
    invalid_json: bool = False
    # How bytes travel
    bytes_per_write: int = 0
    write_gap_s: float = 0.001
    reset_after_bytes: int | None = None  # of the whole answer, headers included; 0: before the first byte
    close_after_bytes: int | None = None  # an orderly end of the connection instead
    # What the engine says
    drop_kv_params: bool = False
    finish_reason: str | None = None  # `abort` or `error`, after `fault_after_tokens`
    error_event: bool = False  # vLLM's error event within a stream, after `fault_after_tokens`
    fault_after_tokens: int = 0
    omit_done: bool = False  # a stream that ends cleanly, without [DONE]
    tokens: int | None = None  # how many to generate, whatever the request says
    text: list[str] | None = None  # the answer, one item a chunk

    def acts_on_bytes(self) -> bool:
        """Whether the way bytes are written differs from one write per piece."""
        return bool(self.bytes_per_write) or self.reset_after_bytes is not None or self.close_after_bytes is not None


class Pace(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How long work takes: all zero means at once."""

    prefill_s_per_token: float = 0.0
    step_s: float = 0.0  # one token of decode
    pull_s: float = 0.0


class Startup(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Slow starts for probes: seconds until the port opens, and from then until `/v1/models` lists the model."""

    open_after_s: float = 0.0
    models_empty_s: float = 0.0


class Settings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Everything about the stand-in that is not vLLM's; a process reads it from `$PDPOOL_STANDIN` as JSON."""

    admin_port: int = 0  # 0: no control endpoint
    record: int = 10_000  # how many of the newest requests are kept
    pace: Pace = msgspec.field(default_factory=Pace)
    startup: Startup = msgspec.field(default_factory=Startup)
    rules: list[Rule] = []


_TIMES = re.compile(rb'"do_remote_decode"\s*:\s*true')
_PULL = re.compile(rb'"do_remote_prefill"\s*:\s*true')


def leg_of(body: bytes) -> Leg:
    """Which leg a request is, told from its bytes so that it works for bodies that are not valid."""
    if b"kv_transfer_params" not in body:
        return "plain"
    if _TIMES.search(body):
        return "prefill"
    return "decode" if _PULL.search(body) else "plain"


class Script:
    """The rules in force; the first that matches is used."""

    def __init__(self, rules: list[Rule] | None = None) -> None:
        self._entries: list[tuple[Rule, re.Pattern[str], Callable[[Any], bool] | None, list[int | None]]] = []
        for rule in rules or []:
            self.add(rule)

    def add(self, rule: Rule, where: Callable[[Any], bool] | None = None) -> Rule:
        """Put a rule in force after those there are; `where` further narrows it by the recorded request."""
        self._entries.append((rule, re.compile(rule.path), where, [rule.times]))
        return rule

    def clear(self) -> None:
        """No rule any more."""
        self._entries.clear()

    def rules(self) -> list[Rule]:
        """Those in force, used up ones included."""
        return [entry[0] for entry in self._entries]

    def take(self, request: Any) -> Rule | None:
        """The rule for a request (with `path` and `body`), counted as used; None in most cases."""
        for rule, path, where, left in self._entries:
            if left[0] == 0 or not path.match(request.path):
                continue
            if rule.leg is not None and rule.leg != leg_of(request.body):
                continue
            if rule.contains and rule.contains.encode() not in request.body:
                continue
            if where is not None and not where(request):
                continue
            if left[0] is not None:
                left[0] -= 1
            return rule
        return None
