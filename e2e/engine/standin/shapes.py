"""Shapes of OpenAI-style answers: completions and chat, whole and streamed, field by field as vLLM 0.32 writes them.

Boundary: pure; from outcomes to JSON values and bytes of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from e2e.engine.standin import tokens
from e2e.engine.standin.sequence import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.engine.standin.request import Asked

Kind = Literal["completion", "chat"]
encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + encode(value) + b"\n\n"


def piece_text(piece: bytes) -> str:
    """The text that a generated token adds; special tokens add none."""
    return tokens.decoded(piece, keep_special=False) if len(piece) == tokens.TOKEN_BYTES else piece.decode()


def answer_text(outcome: Outcome) -> str:
    """The text of a whole answer."""
    text = "".join(map(piece_text, outcome.answer))
    return text if outcome.text_length is None else text[: outcome.text_length]


def answer_ids(outcome: Outcome) -> list[int]:
    """The ids of a whole answer."""
    return [identity for piece in outcome.answer for identity in piece_ids(piece)]


def piece_ids(piece: bytes) -> list[int]:
    """The ids of a piece; scripted text may be any number of bytes."""
    return tokens.token_ids(piece if len(piece) % 2 == 0 else tokens.encoded(piece.decode()))


@dataclass(slots=True)
class Shape:
    """What is the same in every part of one answer."""

    kind: Kind
    identity: str
    created: int
    asked: Asked
    fingerprint: str
    shows_cached: bool

    def _usage(self, outcomes: Sequence[Outcome], completion_tokens: int, *, whole: bool) -> dict[str, Any]:
        asked = self.asked
        prompts = sum(asked.jobs[at].prompt_tokens for at in range(0, len(asked.jobs), asked.choices))
        counts = {
            "prompt_tokens": prompts,
            "total_tokens": prompts + completion_tokens,
            "completion_tokens": completion_tokens,
        }
        details: dict[str, Any] | None = None
        if self.shows_cached:
            details = {"cached_tokens": outcomes[-1].cached_tokens if outcomes else 0}
            if self.kind == "chat":
                details["created_cache_tokens"] = 0
        if whole:
            if details is not None:
                details = {"created_cache_tokens": None, "multimodal_tokens": None} | details
            return counts | {"prompt_tokens_details": details, "completion_tokens_details": None}
        return counts if details is None else counts | {"prompt_tokens_details": details}

    def _choice(self, index: int, outcome: Outcome) -> dict[str, Any]:
        asked, job = self.asked, self.asked.jobs[index]
        ids = answer_ids(outcome) if asked.return_token_ids else None
        text = answer_text(outcome)
        ended = {"finish_reason": outcome.finish_reason, "stop_reason": outcome.stop_reason, "token_ids": ids}
        if self.kind == "chat":
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            logprobs = _chat_logprobs(outcome) if asked.logprobs else None
            return {"index": index, "message": message, "logprobs": logprobs, **ended, "routed_experts": None}
        if asked.echo:
            text = ("" if asked.return_token_ids else tokens.decoded(job.prompt)) + text
            ended["token_ids"] = None if ids is None else tokens.token_ids(job.prompt) + ids
        return {
            "index": index,
            "text": text,
            "logprobs": _completion_logprobs(job.prompt if asked.echo else b"", outcome) if asked.logprobs else None,
            **ended,
            "prompt_logprobs": _prompt_logprobs(job.prompt)
            if asked.prompt_logprobs or (asked.echo and asked.logprobs)
            else None,
            "prompt_token_ids": tokens.token_ids(job.prompt) if asked.return_token_ids else None,
            "routed_experts": None,
        }

    def whole(self, outcomes: Sequence[Outcome]) -> bytes:
        """The body of an answer that is not streamed."""
        asked = self.asked
        answer: dict[str, Any] = {
            "id": self.identity,
            "object": "chat.completion" if self.kind == "chat" else "text_completion",
            "created": self.created,
            "model": asked.model,
            "choices": [self._choice(index, outcome) for index, outcome in enumerate(outcomes)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": self._usage(outcomes, sum(len(outcome.answer) for outcome in outcomes), whole=True),
        }
        if self.kind == "chat":
            prompt = asked.jobs[0].prompt
            answer["prompt_logprobs"] = _prompt_logprobs(prompt) if asked.prompt_logprobs else None
            answer["prompt_token_ids"] = tokens.token_ids(prompt) if asked.return_token_ids else None
            answer["prompt_text"] = tokens.decoded(prompt) if asked.body.get("return_prompt_text") else None
        transfer = None if asked.beam else outcomes[0].transfer
        return encode(answer | {"kv_transfer_params": transfer, "ec_transfer_params": None, "metrics": None})

    def head(self) -> bytes:
        """What every event of the stream begins with."""
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        value = {"id": self.identity, "object": name, "created": self.created, "model": self.asked.model}
        return b"data: " + encode(value)[:-1]

    def role_event(self, head: bytes, index: int) -> bytes:
        """A chat stream's first event for a choice."""
        job = self.asked.jobs[index]
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        value: dict[str, Any] = {"choices": [choice]}
        value["prompt_token_ids"] = tokens.token_ids(job.prompt) if self.asked.return_token_ids else None
        value["prompt_text"] = tokens.decoded(job.prompt) if self.asked.body.get("return_prompt_text") else None
        if self.asked.continuous_usage:
            value["usage"] = _counts(job.prompt_tokens, 0)
        return head + b"," + encode(value)[1:] + b"\n\n"

    def piece_event(self, head: bytes, index: int, piece: bytes, text: str, outcome: Outcome, *, first: bool) -> bytes:
        """The event of one generated token."""
        asked = self.asked
        choice: dict[str, Any] = {"index": index}
        if self.kind == "chat":
            choice["delta"] = {"content": text}
            choice["logprobs"] = _chat_logprobs(Outcome(answer=[piece])) if asked.logprobs else None
            choice["finish_reason"] = outcome.finish_reason
            if outcome.finish_reason is not None:
                choice["stop_reason"] = outcome.stop_reason
        else:
            prompt = asked.jobs[index].prompt
            echoed = prompt if asked.echo and first else b""
            choice["text"] = ("" if asked.return_token_ids else tokens.decoded(echoed)) + text
            choice["logprobs"] = _completion_logprobs(echoed, Outcome(answer=[piece])) if asked.logprobs else None
            choice["finish_reason"] = outcome.finish_reason
            choice["stop_reason"] = outcome.stop_reason
            shown = first and (asked.return_token_ids or asked.echo)
            choice["prompt_token_ids"] = tokens.token_ids(prompt) if shown else None
        choice["token_ids"] = piece_ids(piece) if asked.return_token_ids else None
        value: dict[str, Any] = {"choices": [choice]}
        if outcome.finish_reason is not None and not asked.include_usage:
            value["system_fingerprint"] = self.fingerprint
        if asked.continuous_usage:
            value["usage"] = _counts(asked.jobs[index].prompt_tokens, len(outcome.answer))
        return head + b"," + encode(value)[1:] + b"\n\n"

    def usage_event(self, head: bytes, outcomes: Sequence[Outcome]) -> bytes:
        """The event with usage and no choices that ends a stream whose client asked for it."""
        usage = self._usage(outcomes, sum(len(outcome.answer) for outcome in outcomes), whole=False)
        return (
            head + b"," + encode({"choices": [], "usage": usage, "system_fingerprint": self.fingerprint})[1:] + b"\n\n"
        )


def _counts(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _chat_logprobs(outcome: Outcome) -> dict[str, Any]:
    return {
        "content": [
            {"token": piece_text(piece), "logprob": -0.5, "bytes": list(piece), "top_logprobs": []}
            for piece in outcome.answer
        ]
    }


def _completion_logprobs(echoed: bytes, outcome: Outcome) -> dict[str, Any]:
    texts = [tokens.decoded(piece) for piece in tokens.pieces(echoed)] + [piece_text(piece) for piece in outcome.answer]
    offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
    values: list[float | None] = [-0.5] * len(texts)
    if echoed:
        values[0] = None
    tops = [None if value is None else {text: value} for text, value in zip(texts, values, strict=True)]
    return {"text_offset": offsets, "token_logprobs": values, "tokens": texts, "top_logprobs": tops}


def _prompt_logprobs(prompt: bytes) -> list[dict[str, Any] | None]:
    rest = list(tokens.pieces(prompt))[1:]
    return [
        None,
        *(
            {str(piece_ids(piece)[0]): {"logprob": -0.5, "rank": 1, "decoded_token": tokens.decoded(piece)}}
            for piece in rest
        ),
    ]
