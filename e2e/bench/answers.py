"""What a right answer is: to the byte from the engines here, by its form from engines that make up their texts.

Boundary: pure; asking is `load`'s business. A fault is a text that says what is wrong; an empty one, that
nothing is.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from e2e.bench import replies
from e2e.bench.workloads import Workload, serial

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN_BYTES: Final = 300
_EVENT_HEAD: Final = b"data: "
_EVENT_END: Final = b"\n\n"


class Answers(Protocol):
    """How a router's engines are asked, and what they answer."""

    is_exact: bool
    """Whether every byte is known beforehand."""

    def asked(self, workload: Workload) -> Workload:
        """The workload as these engines take it."""

    def fault(self, workload: Workload, number: int, body: bytes) -> str:
        """What is wrong with a whole answer to that request."""

    def fault_so_far(self, workload: Workload, number: int, body: bytes) -> str:
        """What is wrong with a stream as far as it has come."""


class Exact:
    """Answers of `responder`."""

    is_exact = True

    def asked(self, workload: Workload) -> Workload:
        """As it is."""
        return workload

    def fault(self, workload: Workload, number: int, body: bytes) -> str:
        """See `Answers`."""
        if workload.chunks:
            right = body == replies.stream(serial(number), workload.chunks)
        else:
            right = _same_json(body, replies.completion(serial(number)))
        return "" if right else f"wrong answer of {len(body)} bytes: {body[:_SHOWN_BYTES]!r}"

    def fault_so_far(self, workload: Workload, number: int, body: bytes) -> str:
        """See `Answers`."""
        whole = body.count(_EVENT_END)
        events = (replies.stream_event(serial(number), at, workload.chunks) for at in range(whole + 1))
        right = b"".join(events).startswith(body)
        return "" if right else f"wrong bytes after {whole} events: {body[-_SHOWN_BYTES:]!r}"


EXACT: Final = Exact()


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Text = msgspec.field(default_factory=_Text)
    delta: _Text = msgspec.field(default_factory=_Text)

    @property
    def form(self) -> tuple[bool, str | None]:
        """Whether there is text in it, and why it ends."""
        return bool(self.message.content or self.delta.content), self.finish_reason


class _Answer(msgspec.Struct):
    model: str
    choices: tuple[_Choice]


_decode: Final = msgspec.json.Decoder(_Answer).decode
_TOKEN: Final = (True, None)
_END: Final = (False, "length")
_ONLY_TOKEN: Final = (True, "length")


@dataclasses.dataclass(frozen=True)
class ByForm:
    """Answers whose texts nobody knows beforehand: so many pieces of text, the right end, the model that was asked."""

    models: Mapping[int, str]
    """By milliseconds between two tokens: an engine that makes up its texts has a pace of its own."""
    is_exact = False

    def asked(self, workload: Workload) -> Workload:
        """To the model that has its pace."""
        return _to_model(workload, self.models[workload.gap_ms])

    def fault(self, workload: Workload, number: int, body: bytes) -> str:
        """See `Answers`."""
        del number
        if not workload.chunks:
            return _fault(workload, [body], [_ONLY_TOKEN])
        if not body.endswith(replies.STREAM_END):
            return f"no [DONE] at the end of {len(body)} bytes: {body[-_SHOWN_BYTES:]!r}"
        return _fault(workload, _events(body.removesuffix(replies.STREAM_END)), [_TOKEN] * workload.chunks + [_END])

    def fault_so_far(self, workload: Workload, number: int, body: bytes) -> str:
        """See `Answers`."""
        del number
        if not body.startswith(_EVENT_HEAD[: len(body)]):
            return f"no stream: {body[:_SHOWN_BYTES]!r}"
        events = _events(body)
        return _fault(workload, events, [_TOKEN] * len(events))


@lru_cache(maxsize=32)
def _to_model(workload: Workload, model: str) -> Workload:
    # One object for each, because a workload keeps what its bodies have in common.
    return dataclasses.replace(workload, model=model)


def _events(body: bytes) -> list[bytes]:
    """What each event of a stream carries; what is no event stays as it is, and is no answer then."""
    return [event.removeprefix(_EVENT_HEAD) for event in body.split(_EVENT_END)[:-1]]


def _fault(workload: Workload, pieces: list[bytes], expected: list[tuple[bool, str | None]]) -> str:
    try:
        answers = [_decode(piece) for piece in pieces]
    except msgspec.MsgspecError as fault:
        return f"no answer: {fault}: {b''.join(pieces)[:_SHOWN_BYTES]!r}"
    if any(one.model != workload.model for one in answers):
        return f"an answer of another model than {workload.model}"
    found = [one.choices[0].form for one in answers]
    if found != expected:
        texts = sum(has_text for has_text, _ in found)
        wanted = sum(has_text for has_text, _ in expected)
        return f"{texts} pieces of text, not {wanted}, in {len(found)} events, the end {found[-1:]}"
    return ""


def _same_json(body: bytes, expected: bytes) -> bool:
    """Whether two texts are equal, or mean the same JSON: a router may write an answer that is not streamed anew."""
    if body == expected:
        return True
    try:
        return bool(json.loads(body) == json.loads(expected))
    except ValueError:
        return False
