"""Command-line flags of vLLM as its parser reads them, so that a flag is recognised in any spelling.

Boundary: pure. Spellings of `--tensor-parallel-size 2` are `--tensor-parallel-size=2`, `--tensor_parallel_size 2`,
`--tensor-parallel-si 2` (any unambiguous beginning), `-tp 2`, `-t 2` and `-tp=2`; of a short form of one letter also
`-qfp8`; of a switch also `--no-…`; of a JSON value also `--kv-transfer-config.kv_role x`
(vllm/utils/argparse_utils.py, 0.32).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdpool_api.pool import RESERVED_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

KV_TRANSFER: Final = "--kv-transfer-config"

KNOWN: Final = frozenset(
    {
        *RESERVED_FLAGS,
        KV_TRANSFER,
        "--attention-backend",
        "--attention-config",
        "--block-size",
        "--compilation-config",
        "--cpu-offload-gb",
        "--data-parallel-rpc-port",
        "--data-parallel-size",
        "--disable-hybrid-kv-cache-manager",
        "--dtype",
        "--enable-chunked-prefill",
        "--enable-expert-parallel",
        "--enable-lora",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "--hf-overrides",
        "--kv-cache-dtype",
        "--kv-cache-memory-bytes",
        "--load-format",
        "--lora-modules",
        "--mamba-block-size",
        "--mamba-cache-dtype",
        "--mamba-cache-mode",
        "--mamba-ssm-cache-dtype",
        "--max-loras",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--pipeline-parallel-size",
        "--quantization",
        "--revision",
        "--shutdown-timeout",
        "--spec-method",
        "--spec-model",
        "--spec-tokens",
        "--speculative-config",
        "--tensor-parallel-size",
    }
)
"""Flags that the operator generates, or that prefill and decode must agree on."""

SHORT: Final = {
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-dp": "--data-parallel-size",
    "-dpp": "--data-parallel-rpc-port",
    "-ep": "--enable-expert-parallel",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}

_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")
"""What argparse takes for a negative number, hence for a value."""


class ArgumentError(ValueError):
    """An argument that cannot be used; the message names field and rule."""


@dataclass(frozen=True, slots=True)
class Given:
    """One flag that the author of a pool wrote."""

    flag: str
    """Its long name with dashes."""
    value: str | None
    """What follows it, or stands behind its `=`."""
    field: str
    """Where it stands, as `spec.engine.args[3]`."""
    items: tuple[str, ...]
    """The arguments that it takes up, verbatim."""
    negated: bool = False
    """Written as `--no-…`."""
    path: tuple[str, ...] = ()
    """Keys after a dot: `--flag.key.key value` sets one entry of a JSON value."""
    appended: bool = False
    """Written with a final `+`: the value extends a list."""


def canonical(name: str, known: frozenset[str] = KNOWN) -> tuple[str, bool]:
    """The long name, with dashes, of a flag written without `=value` and `.key`, and whether it is a `--no-` form."""
    if not name.startswith("--"):
        return SHORT.get(_completed(name, frozenset(SHORT)), name), False
    dashed = name.replace("_", "-")
    if dashed.startswith("--no-"):
        positive = _completed(f"--{dashed.removeprefix('--no-')}", known)
        if positive in known:
            return positive, True
    return _completed(dashed, known), False


def _completed(name: str, known: frozenset[str]) -> str:
    candidates = [flag for flag in known if flag.startswith(name)]
    return candidates[0] if name not in known and len(candidates) == 1 else name


def given(items: Sequence[str], field: str, known: frozenset[str] = KNOWN) -> Iterator[Given]:
    """Every flag in a list of arguments, in order; arguments that belong to none are passed over.

    Args:
        items: the arguments.
        field: path of the list, for messages.
        known: flags to complete abbreviations to.
    """
    for place, item in enumerate(items):
        if not is_flag(item):
            continue
        written, has_value, inline = _glued(item) or item.partition("=")
        name, dot, keys = written.partition(".")
        flag, negated = canonical(name, known)
        following = items[place + 1] if place + 1 < len(items) and not is_flag(items[place + 1]) else None
        value = inline if has_value else following
        yield Given(
            flag=flag,
            value=value,
            field=f"{field}[{place}]",
            items=(item,) if has_value or following is None else (item, following),
            negated=negated,
            path=tuple(keys.rstrip("+").split(".")) if dot else (),
            appended=keys.endswith("+"),
        )


def _glued(item: str) -> tuple[str, str, str] | None:
    """A short form of one letter and the value behind it, as `-qfp8`; None: no such spelling."""
    letter, value = item[:2], item[2:]
    return (letter, "=", value) if letter in SHORT and value[:1] not in ("", "=", ".") else None


def is_flag(item: str) -> bool:
    """Whether argparse takes an argument for a flag: a dash, more than that, no blank before any `=`, no number."""
    return (
        item.startswith("-")
        and item not in {"-", "--"}
        and " " not in item.partition("=")[0]
        and not _NUMBER.match(item)
    )


def lists(spec: InferencePoolSpec, role: Role) -> list[tuple[str, tuple[str, ...]]]:
    """The author's arguments for a role, as (path, arguments), in the order in which the engine gets them."""
    return [("spec.engine.args", spec.engine.args), (f"{spec.field_of(role)}.args", spec.role(role).args)]


def given_flags(spec: InferencePoolSpec, role: Role, known: frozenset[str] = KNOWN) -> list[Given]:
    """Every flag that the author wrote for a role."""
    return [each for field, items in lists(spec, role) for each in given(items, field, known)]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two JSON objects, the second over the first, field by field at every depth."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def json_object(each: Given) -> dict[str, Any]:
    """The JSON object that one flag gives, whole or as one dotted entry.

    Raises:
        ArgumentError: the value is absent, or no JSON object.
    """
    if each.value is None:
        raise ArgumentError(f"{each.field}: {each.flag} needs a value")
    if each.path:
        return _nested(each.path, each.value.split(",") if each.appended else _scalar(each.value))
    try:
        value = json.loads(each.value)
    except ValueError as fault:
        raise ArgumentError(f"{each.field}: {each.flag} must be a JSON object: {fault}") from fault
    if not isinstance(value, dict):
        raise ArgumentError(f"{each.field}: {each.flag} must be a JSON object, not {each.value[:40]}")
    return value


def json_value(found: Sequence[Given], flag: str) -> dict[str, Any]:
    """What all occurrences of a JSON flag give together, the later over the earlier.

    Raises:
        ArgumentError: see `json_object`.
    """
    result: dict[str, Any] = {}
    for each in found:
        if each.flag == flag:
            result = merged(result, json_object(each))
    return result


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[no-any-return] # path is never empty here


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
