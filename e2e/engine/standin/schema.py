"""What the fields of a body may hold, route by route: a value that fits is brought into its type, another is refused.

Boundary: pure; the fields that the stand-in reads, as vLLM's own schemas take them (numbers may be written as strings,
truth as a word). What a value of the right type means is `request`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.engine.standin.refusal import invalid, parameter

if TYPE_CHECKING:
    from e2e.engine.standin.refusal import Body

Read = Callable[[Any], Any]
_WORDS = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "off", "0"), False
)
_MOST_SALT, _NOT_IN_SALT = 128, frozenset("@/\\\0")


class _UnfitError(Exception):
    """A value that does not fit: the library's name of the error, its words, and where within the field it stands."""

    def __init__(self, kind: str, message: str, within: str = "") -> None:
        super().__init__(message)
        self.kind, self.within = kind, within


def integer(value: Any) -> int:
    """A whole number, also in a string."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise _UnfitError("int_from_float", "Input should be a valid integer, got a number with a fractional part")
        return int(value)
    if not isinstance(value, str):
        raise _UnfitError("int_type", "Input should be a valid integer")
    try:
        return int(value)
    except ValueError as error:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise _UnfitError("int_parsing", message) from error


def number(value: Any) -> float:
    """A number, also in a string."""
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str):
        raise _UnfitError("float_type", "Input should be a valid number")
    try:
        return float(value)
    except ValueError as error:
        message = "Input should be a valid number, unable to parse string as a number"
        raise _UnfitError("float_parsing", message) from error


def flag(value: Any) -> bool:
    """Whether something holds, also as 0 and 1 or as a word."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, int | str):
        raise _UnfitError("bool_parsing", "Input should be a valid boolean, unable to interpret input")
    raise _UnfitError("bool_type", "Input should be a valid boolean")


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _UnfitError("string_type", "Input should be a valid string")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise _UnfitError("dict_type", "Input should be a valid dictionary")
    return value


def options(value: Any) -> dict[str, Any]:
    """`stream_options`."""
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or instance of StreamOptions"
        raise _UnfitError("model_type", message)
    return {name: None if it is None else flag(it) for name, it in value.items() if name in _OPTIONS}


_OPTIONS = ("include_usage", "continuous_usage_stats")


def items(read: Read) -> Read:
    """A list of such."""

    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _UnfitError("list_type", "Input should be a valid list")
        found = []
        for index, item in enumerate(value):
            try:
                found.append(read(item))
            except _UnfitError as unfit:
                raise _UnfitError(unfit.kind, str(unfit), f".{index}{unfit.within}") from unfit
        return found

    return read_all


def either(*reads: Read) -> Read:
    """The first that fits; where none does, the first one's refusal."""

    def read_one(value: Any) -> Any:
        first: _UnfitError | None = None
        for read in reads:
            try:
                return read(value)
            except _UnfitError as unfit:
                first = first or unfit
        assert first is not None
        raise first

    return read_one


def maybe(read: Read) -> Read:
    """Such a value, or null."""
    return lambda value: None if value is None else read(value)


def token_id(value: Any) -> int:
    """A token's id; the vocabulary is another matter. Digits in a string are text."""
    found = integer(value if not isinstance(value, str) else "")
    if found < 0:
        raise _UnfitError("greater_than_equal", "Input should be greater than or equal to 0")
    return found


def message(value: Any) -> dict[str, Any]:
    """A turn of a conversation: its content is text, or parts."""
    found = mapping(value)
    _CONTENT(found.get("content"))
    return found


_CONTENT = maybe(either(text, items(either(text, mapping))))
_ARGUMENT = either(text, number, items(either(text, number)))


def arguments(value: Any) -> dict[str, Any]:
    """`vllm_xargs`: strings, numbers, and lists of them."""
    found = mapping(value)
    for name, it in found.items():
        try:
            _ARGUMENT(it)
        except _UnfitError as unfit:
            raise _UnfitError(unfit.kind, str(unfit), f".{name}") from unfit
    return found


class Schema(NamedTuple):
    """The fields of one route: how each is read, and those that must be there."""

    fields: Mapping[str, Read]
    required: tuple[str, ...] = ()

    def read(self, body: Body) -> Body:
        """The body with its values in their types.

        Raises:
            RefusedError: one does not fit, or is missing.
        """
        _check_before(body)
        for name in self.required:
            if name not in body:
                raise invalid(f"body.{name}", "missing", "Field required", f"<dict of {len(body)} items>")
        found = dict(body)
        for name, read in self.fields.items():
            if name not in body:
                continue
            try:
                found[name] = read(body[name])
            except _UnfitError as unfit:
                raise invalid(f"body.{name}{unfit.within}", unfit.kind, str(unfit), body[name]) from unfit
        return found


def _check_before(body: Body) -> None:
    """What vLLM looks at before types, and refuses in its own words."""
    if body.get("stream_options") and not body.get("stream"):
        raise parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    shown = body.get("prompt_logprobs")
    if shown is not None and not isinstance(shown, int | float):
        raise parameter("`prompt_logprobs` must be an integer.", "prompt_logprobs", shown)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if salt is not None and (len(salt) > _MOST_SALT or not _NOT_IN_SALT.isdisjoint(salt)):
        words = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise parameter(words, "cache_salt")


SHARED: Mapping[str, Read] = {
    "model": maybe(text),
    "stream": maybe(flag),
    "stream_options": maybe(options),
    "temperature": maybe(number),
    "seed": maybe(integer),
    "stop": maybe(either(text, items(text))),
    "min_tokens": integer,
    "ignore_eos": flag,
    "use_beam_search": flag,
    "prompt_logprobs": maybe(integer),
    "logprob_token_ids": maybe(items(integer)),
    "return_token_ids": maybe(flag),
    "request_id": text,
    "session_id": maybe(text),
    "kv_transfer_params": maybe(mapping),
    "ec_transfer_params": maybe(mapping),
    "vllm_xargs": maybe(arguments),
}
"""Of all generating routes."""
COMPLETION = Schema(
    {
        "prompt": maybe(either(items(token_id), items(items(token_id)), text, items(text))),
        "max_tokens": maybe(integer),
        "n": integer,
        "echo": maybe(flag),
        "logprobs": maybe(integer),
        **SHARED,
    }
)
CHAT = Schema(
    {
        "messages": items(message),
        "max_tokens": maybe(integer),
        "max_completion_tokens": maybe(integer),
        "n": maybe(integer),
        "echo": flag,
        "logprobs": maybe(flag),
        "top_logprobs": maybe(integer),
        "add_generation_prompt": flag,
        **SHARED,
    },
    required=("messages",),
)
RESPONSES = Schema(
    {
        "input": either(text, items(message)),
        "instructions": maybe(text),
        "max_output_tokens": maybe(integer),
        **SHARED,
    },
    required=("input",),
)
_ANTHROPICS: Mapping[str, Read] = {
    "model": text,
    "messages": items(message),
    "system": maybe(either(text, items(mapping))),
}
MESSAGES = Schema({**SHARED, **_ANTHROPICS, "max_tokens": integer}, required=("model", "messages", "max_tokens"))
COUNT_TOKENS = Schema(_ANTHROPICS, required=("model", "messages"))
TOKENIZE = Schema({"model": maybe(text), "prompt": text}, required=("prompt",))
TOKENIZE_CHAT = Schema(
    {"model": maybe(text), "messages": items(message), "add_generation_prompt": flag}, required=("messages",)
)
DETOKENIZE = Schema({"model": maybe(text), "tokens": items(token_id)}, required=("tokens",))
LOAD_ADAPTER = Schema({"lora_name": text, "lora_path": text, "load_inplace": flag}, required=("lora_name", "lora_path"))
UNLOAD_ADAPTER = Schema({"lora_name": text}, required=("lora_name",))
