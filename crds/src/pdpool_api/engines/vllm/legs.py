"""The bodies of the two legs of one request, and what vLLM's answers say about the handoff.

Boundary: pure functions from bytes to bytes. A body is `dict[str, Raw]`: only the top level is read, every value
stays the bytes that the client sent, so that unknown fields, big integers, numbers and key order pass through
untouched. Why here: field names and what they do to an engine are vLLM's (they were tried on real engines); the
router knows legs, not fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw

Fields = dict[str, Raw]


class Route(Enum):
    """A generating route: its path, and the fields that limit its output and hold its prompt.

    What belongs to a route stands here and in no table by route: an enum's member is hashed by a call.
    """

    CHAT = ("/v1/chat/completions", "max_tokens", "messages")
    COMPLETIONS = ("/v1/completions", "max_tokens", "prompt")
    RESPONSES = ("/v1/responses", "max_output_tokens", "input")
    MESSAGES = ("/v1/messages", "max_tokens", "messages")

    def __init__(self, path: str, output_limit: str, prompt: str) -> None:
        self.path = path
        self.path_bytes = path.encode()
        self.output_limit = output_limit
        self.prompt = prompt


_RESPONSES: Final = Route.RESPONSES


class BodyError(ValueError):
    """A request body that no engine would read; the message holds nothing of the body."""


class HandoffError(ValueError):
    """A prefill answer that is no success: not JSON of the expected shape, or ended in `abort` or `error`."""


class Body(msgspec.Struct, frozen=True, gc=False):
    """A client's body, cleaned of what only the router may say."""

    raw: bytes
    """What decode gets, but for the handoff parameters: the client's own bytes unless something was taken out."""
    fields: Fields


class Handoff(msgspec.Struct, frozen=True, gc=False):
    """What a prefill answer hands to decode."""

    params: Raw | None
    """`kv_transfer_params` verbatim; None when the answer finished normally without transferable KV."""
    prompt_tokens: int
    cached_tokens: int
    ids: list[int] | None = None
    """The ids of the prompt's tokens, where they were wanted; None: the answer has none that can be read."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


KV_PARAMS: Final = "kv_transfer_params"
_SALT: Final = "cache_salt"
_ROUTER_ONLY: Final = (KV_PARAMS, "ec_transfer_params")
_XARGS: Final = "vllm_xargs"
_ROUTER_ONLY_XARGS: Final = frozenset({*_ROUTER_ONLY, "kv_cache_report_mode"})

# min_tokens > 1 and stream_options beside `stream: false` are answered 400; logprobs only make the answer big, and
# logprob_token_ids without them are answered 400.
_NOT_FOR_PREFILL: Final = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "logprob_token_ids")
_TO_BE_ONE: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
# `max_tokens`, which nearly every body has, is set anyway where it is the route's own limit.
_TO_CHANGE: Final = frozenset({*_NOT_FOR_PREFILL, *_TO_BE_ONE} - {"max_tokens"})
# What a decode engine cannot make from transferred KV: it would compute the prompt anyway, answer wrongly, or die.
_NEEDS_ONE_ENGINE: Final = ("n", "truncation", "prompt_logprobs", "echo", "use_beam_search", "best_of", "prompt_embeds")
# A prompt cut to what is left beside the answer, as `truncation` does too: legs that ask for answers of two lengths may
# cut it at two places.
_CUT: Final = "truncate_prompt_tokens"
_MAY_NEED_ONE_ENGINE: Final = frozenset({*_NEEDS_ONE_ENGINE, _CUT, "prompt"})
_NEUTRAL: Final = {
    "n": (b"1", b"null"),
    "truncation": (b'"disabled"',),
    "prompt_logprobs": (b"null",),
    "echo": (b"false", b"null"),
    "use_beam_search": (b"false", b"null"),
    "best_of": (b"1", b"null"),
    "prompt_embeds": (b"null",),
}

_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_TRUE: Final = Raw(b"true")
_ASK_FOR_KV: Final = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)

_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_encode_plain = msgspec.json.Encoder().encode


def _encode(fields: Fields) -> bytes:
    try:
        return _encode_plain(fields)
    except UnicodeEncodeError:  # half of a surrogate pair in a name: JSON can spell it, UTF-8 cannot
        return b"{%b}" % b",".join(b"%b:%b" % (json.dumps(name).encode(), value) for name, value in fields.items())


_ENDED_BADLY: Final = re.compile(rb'"finish_reason"\s*:\s*"(?:abort|error)"')
UNFINISHED: Final = {
    Route.CHAT: _ENDED_BADLY,
    Route.COMPLETIONS: _ENDED_BADLY,
    Route.RESPONSES: _ENDED_BADLY,
    # Elsewhere `stop_reason` is the client's own stop string, which may be any word.
    Route.MESSAGES: re.compile(rb'"stop_reason"\s*:\s*"(?:abort|error)"'),
}
"""An answer that the engine gave up. Quotes inside a JSON string are escaped, so text of a model never matches."""
STREAM_END: Final = {
    Route.CHAT: re.compile(rb"\ndata: ?\[DONE\]"),
    Route.COMPLETIONS: re.compile(rb"\ndata: ?\[DONE\]"),
    Route.RESPONSES: re.compile(rb"\n(?:data: ?\[DONE\]|event: ?response\.(?:completed|incomplete|failed))"),
    Route.MESSAGES: re.compile(rb"\n(?:data: ?\[DONE\]|event: ?message_stop)"),
}
"""The line that ends a stream which came to its end, after a line break."""


def received(body: bytes) -> Body:
    """A client's body, without the fields that only the router may set.

    Raises:
        BodyError: not a JSON object.
    """
    try:
        fields = _decode_fields(body)
    except RecursionError as fault:
        raise BodyError("the body is nested too deeply") from fault
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields = _as_the_engine_reads(body)
        body = _encode(fields)
    if KV_PARAMS in fields or "ec_transfer_params" in fields or _XARGS in fields:
        kept = _without_router_only(fields)
        if kept is not fields:
            return Body(_encode(kept), kept)
    return Body(body, fields)


def _as_the_engine_reads(body: bytes) -> Fields:
    """Fields of a body that strict JSON refuses, but Python's `json`, as engines use it, takes (NaN, UTF-16)."""
    try:
        loaded = json.loads(body)
    except RecursionError as fault:
        raise BodyError("the body is nested too deeply") from fault
    except ValueError as fault:
        raise BodyError("the body is not valid JSON") from fault
    if not isinstance(loaded, dict):
        raise BodyError("the body must be a JSON object")
    return {key: Raw(json.dumps(value).encode()) for key, value in loaded.items()}


def _without_router_only(fields: Fields) -> Fields:
    kept = {key: value for key, value in fields.items() if key not in _ROUTER_ONLY}
    if _XARGS in kept:
        try:
            xargs = _decode_fields(kept[_XARGS])
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                xargs = _as_the_engine_reads(bytes(kept[_XARGS]))
            except BodyError:  # no object: it holds nothing for an engine, which refuses it
                return kept if len(kept) < len(fields) else fields
        clean = {key: value for key, value in xargs.items() if key not in _ROUTER_ONLY_XARGS}
        if len(clean) < len(xargs):
            kept[_XARGS] = Raw(_encode(clean))
            return kept
    return kept if len(kept) < len(fields) else fields


def text_field(fields: Fields, name: str) -> str | None:
    """A field's text; None where it is absent or null.

    Raises:
        BodyError: the field is neither a string nor null.
    """
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _decode_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise BodyError(f"{name}: must be a string") from fault


def own_salt(fields: Fields) -> str | None:
    """The client's own salt of its KV; None where it gives none.

    Raises:
        BodyError: it is none that an engine would take.
    """
    salt = text_field(fields, _SALT)
    if salt == "":
        raise BodyError(f"{_SALT}: must not be empty")
    return salt


def salted(body: Body, salt: str) -> Body:
    """The body with this salt in place of the client's; KV of other salts never matches it."""
    value = Raw(json.dumps(salt).encode())
    fields = {**body.fields, _SALT: value}
    if _SALT in body.fields:
        return Body(_encode(fields), fields)
    return Body(_appended(body, _SALT, value), fields)


def one_engine_reason(fields: Fields) -> str | None:
    """Why the request must be served by one engine alone: the field's name; None where two legs can serve it."""
    if _MAY_NEED_ONE_ENGINE.isdisjoint(fields):
        return None
    for name in _NEEDS_ONE_ENGINE:
        if name in fields and bytes(fields[name]) not in _NEUTRAL[name]:
            return name
    if _CUT in fields and b"-" in bytes(fields[_CUT]):
        return _CUT
    prompt = fields.get("prompt")
    if prompt is not None and _several_prompts(prompt):
        return "prompt"
    return None


def _several_prompts(prompt: Raw) -> bool:
    text = bytes(prompt)
    if not text.startswith(b"["):
        return False
    if text[1:].lstrip()[:1] not in (b'"', b"["):
        return False  # token ids of one prompt
    try:
        return len(_decode_list(prompt)) > 1
    except msgspec.DecodeError:
        return True


def prefill_body(fields: Fields, route: Route, *, want_token_ids: bool = False) -> bytes:
    """The prefill leg: the client's request, for one token, keeping the KV of its prompt for a decode engine.

    `want_token_ids` asks for the ids of the prompt's tokens in the answer.
    """
    leg = fields.copy()
    if route is _RESPONSES or not _TO_CHANGE.isdisjoint(leg):
        for name in _NOT_FOR_PREFILL:
            leg.pop(name, None)
        for name in _TO_BE_ONE:
            # A limit left beside max_tokens would win over it.
            if name in leg:
                leg[name] = _ONE
    leg[route.output_limit] = _ONE
    leg["stream"] = _FALSE
    if want_token_ids:
        leg["return_token_ids"] = _TRUE
    leg[KV_PARAMS] = _ASK_FOR_KV
    return _encode(leg)


def decode_body(body: Body, params: Raw | None) -> bytes:
    """The decode leg: the client's own bytes, plus exactly the parameters that its prefill answered."""
    if params is None:
        return body.raw
    return _appended(body, KV_PARAMS, params)


def _appended(body: Body, name: str, value: Raw) -> bytes:
    end = body.raw.rindex(b"}")
    comma = b"," if body.fields else b""
    return b'%b%b"%b":%b}' % (body.raw[:end], comma, name.encode(), value)


_NULL: Final = Raw(b"null")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _ChoiceWithIds(_Choice):
    prompt_token_ids: list[int] | None = None


class _PrefillAnswer(msgspec.Struct):
    kv_transfer_params: Raw = _NULL
    choices: Sequence[_Choice] | None = None
    status: str | None = None
    stop_reason: str | None = None
    usage: _Counts | None = None


class _PrefillAnswerWithIds(_PrefillAnswer):
    """Read in one go: the ids of a long prompt are hundreds of kilobytes, which a second look would pass once more."""

    choices: Sequence[_ChoiceWithIds] | None = None
    prompt_token_ids: list[int] | None = None


class _Counted(msgspec.Struct):
    usage: _Counts | None = None


_decode_prefill = msgspec.json.Decoder(_PrefillAnswer).decode
_decode_prefill_with_ids = msgspec.json.Decoder(_PrefillAnswerWithIds).decode
_decode_counted = msgspec.json.Decoder(_Counted).decode
_decode_counts = msgspec.json.Decoder(_Counts).decode
_FAILED: Final = frozenset({"abort", "error", "failed", "cancelled"})
_NOTHING: Final = (b"null", b"{}", b"false", b"")


def handoff(answer: bytes, *, wants_ids: bool = False) -> Handoff:
    """What a prefill answer (status 200) hands over; `wants_ids`: with the ids of the prompt's tokens.

    Raises:
        HandoffError: the answer is malformed, or the engine gave the request up.
    """
    parsed, ids = _read_with_ids(answer) if wants_ids else (_read(answer), None)
    if parsed.status in _FAILED or parsed.stop_reason in _FAILED:
        raise HandoffError("the prefill engine gave the request up")
    for choice in parsed.choices or ():
        if choice.finish_reason in _FAILED:
            raise HandoffError("the prefill engine gave the request up")
    params = None if bytes(parsed.kv_transfer_params) in _NOTHING else parsed.kv_transfer_params
    counts = _usage(parsed.usage)
    return Handoff(params, counts.prompt_tokens, counts.cached_tokens, ids)


def _read(answer: bytes) -> _PrefillAnswer:
    try:
        return _decode_prefill(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise HandoffError("the prefill engine's answer is not valid") from fault


def _read_with_ids(answer: bytes) -> tuple[_PrefillAnswer, list[int] | None]:
    try:
        parsed = _decode_prefill_with_ids(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read(answer), None  # ids that are none do not make the answer a bad one
    ids = parsed.prompt_token_ids
    if ids is None and parsed.choices:
        ids = parsed.choices[0].prompt_token_ids  # where completions have them
    return parsed, ids


TELLS_IDS: Final = (Route.CHAT, Route.COMPLETIONS)
"""Routes whose answers can tell the ids of the prompt's tokens (vLLM 0.32)."""


def unfinished(answer: bytes, route: Route) -> bool:
    """Whether an answer, or whole lines of a stream, tell that the engine gave the request up."""
    # Quick look-ups first: the expression runs for few answers, and this for every piece of each stream.
    return (b'"abort"' in answer or b'"error"' in answer) and UNFINISHED[route].search(answer) is not None


def usage(answer: bytes) -> Usage | None:
    """Token counts of a whole answer; None where it tells none."""
    try:
        counts = _decode_counted(answer).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if counts is None else _usage(counts)


_USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


def streamed_usage(wire: bytes) -> Usage | None:
    """Token counts of the last event in a piece of a stream that tells them; None where none does."""
    found = _USAGE_OBJECT.findall(wire)
    if not found:
        return None
    try:
        return _usage(_decode_counts(found[-1]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _usage(counts: _Counts | None) -> Usage:
    if counts is None:
        return Usage(0, 0, 0)
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = (details.cached_tokens if details else None) or counts.cache_read_input_tokens or 0
    return Usage(
        counts.prompt_tokens or counts.input_tokens or 0,
        counts.completion_tokens or counts.output_tokens or 0,
        cached,
    )
