"""What a request's body says about its prompt: the text that grows from turn to turn, and what else shapes it.

Boundary: pure functions over raw fields (see `legs`). The text is the client's own JSON, not a rendering: the prompt of
a conversation's next turn begins with the bytes of the turn before, and that is all that prefix keys need. Two
spellings of one prompt are two texts; the token ids that engines tell bring them together again.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from pdpool_api.engines.vllm.legs import BodyError, Fields, Route, text_field

_SHAPING: Final = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "instructions",
    "mm_processor_kwargs",
    "previous_response_id",
    "reasoning_effort",
    "suffix",
    "system",
    "thinking",
    "tool_choice",
    "tools",
    "truncate_prompt_tokens",
)
"""Fields that an engine renders before the text, or that change how it is rendered."""
_SHAPES: Final = frozenset(_SHAPING)
SALT: Final = "cache_salt"
# No body of a client may hold up all others: these bounds are beyond what contexts hold.
_MOST_IDS_BYTES: Final = 1 << 24
_MOST_OPENING_MESSAGES: Final = 64


class _Message(msgspec.Struct):
    role: str = ""


_ROLE_FIRST: Final = re.compile(rb'\{\s*"role"\s*:\s*"([a-z]+)"')
"""As nearly every client writes a message: it need not be read to its end."""
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_id_lists = msgspec.json.Decoder(list[list[int]]).decode


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """A prompt as its client wrote it."""

    text: bytes
    """The text, without the brackets or quotes that close it."""
    context: bytes
    """Whatever else makes equal text another prompt, salt and model apart."""
    opening_bytes: int
    """Where in the text the first message of a user ends; 0: there is none, or the text has no messages."""
    salt: str = ""
    ids: list[int] | None = None
    """The token ids, where the client gave them."""


def prompt_text(fields: Fields, route: Route) -> PromptText | None:
    """The prompt of a body; None where there is none, or only an engine could read it."""
    raw = fields.get(route.prompt)
    if raw is None:
        return None
    try:
        salt = text_field(fields, SALT) or ""
    except BodyError:
        return None
    whole = bytes(raw)
    if whole[:1] not in b'["' or len(whole) < 2:  # noqa: PLR2004 - a pair of brackets
        return None
    context = route.path_bytes
    if not _SHAPES.isdisjoint(fields):
        context += b"".join(b"%b:%b;" % (name.encode(), fields[name]) for name in _SHAPING if name in fields)
    if whole.startswith(b'"'):
        return PromptText(whole[1:-1], context, 0, salt)
    text = whole[1:-1].strip()
    if route is Route.COMPLETIONS:
        ids = _ids(whole)
        return None if ids is None and text[:1] != b'"' else PromptText(text, context, 0, salt, ids)
    return PromptText(text, context, _opening_bytes(whole, text), salt)


def _ids(prompt: bytes) -> list[int] | None:
    """The ids of one prompt, also as a list of one list."""
    if len(prompt) > _MOST_IDS_BYTES:
        return None
    try:
        return _decode_ids(prompt)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        lists = _decode_id_lists(prompt)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return lists[0] if len(lists) == 1 else None


def _opening_bytes(whole: bytes, text: bytes) -> int:
    try:
        messages = _decode_list(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    at = 0
    for message in messages[:_MOST_OPENING_MESSAGES]:
        piece = bytes(message)
        # Between two stand only a comma and white space; to look for the whole piece takes longer than to read it.
        at = text.find(piece[:1], at) + len(piece)
        role_first = _ROLE_FIRST.match(piece)
        try:
            role = role_first[1].decode() if role_first is not None else _decode_message(piece).role
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 0
        if role == "user":
            return at
    return 0
