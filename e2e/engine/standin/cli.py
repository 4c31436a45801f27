"""The stand-in's command line: vLLM's own flags, as data from a real engine's parser, so that arguments can be tried.

Boundary: from arguments and environment to `EngineConfig`. An unknown flag, a value of the wrong kind or an unknown
key in a configuration object is refused as vLLM refuses it: a message on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from e2e.engine.standin.config import EngineConfig
from e2e.engine.standin.events import EventsConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FLAGS_FILE = Path(__file__).with_name("flags.json")
_POWERS = {unit: index + 1 for index, unit in enumerate("kmgt")}
_KEY = re.compile(r"(?<=--)[^.]*")


class Flag(msgspec.Struct, forbid_unknown_fields=True):
    """One flag of `vllm serve`."""

    names: list[str]
    kind: str
    optional: bool = False
    nargs: str | None = None
    choices: list[str] | None = None
    fields: list[str] | None = None


def size(text: str) -> int:
    """A number with vLLM's suffixes: 1k is 1,000 and 1K is 1,024; `auto` is -1.

    Raises:
        argparse.ArgumentTypeError: not a number.
    """
    if text.lower() == "auto":
        return -1
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    try:
        if found is None:
            return int(text)
        number, unit = found.groups()
        if unit.isupper():
            return int(number) * int(1024 ** _POWERS[unit.lower()])
        return int(float(number) * 1000 ** _POWERS[unit])
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid human_readable_int value: {text!r}") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to JSON") from error


def _object(fields: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    def parse(text: str) -> dict[str, Any]:
        value = _json(text)
        if not isinstance(value, dict):
            raise argparse.ArgumentTypeError(f"Input should be a dictionary: {text}")
        unknown = sorted(set(value) - set(fields))
        if unknown:
            raise argparse.ArgumentTypeError(f"Unexpected keyword argument: {', '.join(unknown)}")
        return value

    return parse


def _value_type(flag: Flag) -> Callable[[str], Any]:
    plain: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "json": _json, "size": size, "str": str}
    parse = _object(flag.fields or []) if flag.kind == "object" else plain[flag.kind]
    if not flag.optional:
        return parse
    return lambda text: None if text in {"", "None"} else parse(text)


def parser() -> argparse.ArgumentParser:
    """`vllm serve`'s parser."""
    built = argparse.ArgumentParser(prog="vllm serve", description="A stand-in for `vllm serve`: same flags, no model.")
    built.add_argument("model", nargs="?")
    for flag in msgspec.json.decode(FLAGS_FILE.read_bytes(), type=list[Flag]):
        if flag.kind == "true":
            built.add_argument(*flag.names, action="store_true")
        elif flag.kind == "switch":
            names = [name for name in flag.names if not name.startswith("--no-")]
            built.add_argument(*names, action=argparse.BooleanOptionalAction)
        else:
            kind = str if flag.choices else _value_type(flag)
            const = True if flag.nargs == "?" else None
            built.add_argument(*flag.names, type=kind, nargs=flag.nargs, choices=flag.choices, const=const)
    return built


def normal(arguments: Sequence[str]) -> list[str]:
    """Arguments in the one spelling that the parser knows: dashes, and `--object.key value` gathered into JSON."""
    plain: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    pending = iter(arguments)
    for argument in pending:
        if not argument.startswith("--"):
            plain.append(argument)
            continue
        name, equals, value = argument.partition("=")
        name = _KEY.sub(lambda found: found.group().replace("_", "-"), name, count=1)
        if "." not in name:
            plain.append(name + equals + value)
            continue
        text = value if equals else next(pending, "")
        flag, *keys = name.rstrip("+").split(".")
        place = gathered.setdefault(flag, {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = text.split(",") if name.endswith("+") else _lenient(text)
    return plain + [part for flag, value in gathered.items() for part in (flag, json.dumps(value))]


def _lenient(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _events(given: dict[str, Any] | None) -> EventsConfig:
    return msgspec.convert(given or {}, EventsConfig)


def _adapters(modules: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """`name=path` or JSON."""
    found = []
    for module in modules or []:
        if module.startswith("{"):
            told = json.loads(module)
            found.append((told["name"], told["path"]))
        else:
            name, _, path = module.partition("=")
            found.append((name, path))
    return tuple(found)


def config_from(arguments: Sequence[str], environment: Mapping[str, str]) -> EngineConfig:
    """The configuration that a command line (after `serve`) and an environment ask for.

    Raises:
        SystemExit: vLLM would refuse the arguments; the reason is on stderr.
    """
    built = parser()
    given = built.parse_args(normal(arguments))
    plain = EngineConfig()
    transfer: dict[str, Any] = given.kv_transfer_config or {}
    extra: dict[str, Any] = transfer.get("kv_connector_extra_config") or {}
    model = given.model or "Qwen/Qwen3-0.6B"
    block_tokens = given.block_size or plain.block_tokens
    asked_len = given.max_model_len if given.max_model_len not in {None, -1} else None
    blocks = _blocks(given, block_tokens, asked_len or plain.max_model_len)
    max_model_len = asked_len or min(plain.max_model_len, blocks * block_tokens)
    if max_model_len > blocks * block_tokens:
        built.error(f"max seq len ({max_model_len}) is larger than the KV cache ({blocks * block_tokens} tokens)")
    if transfer.get("kv_connector") and not transfer.get("kv_role"):
        built.error(
            "Please specify kv_role when kv_connector is set, supported roles are kv_producer, kv_consumer, kv_both"
        )
    return EngineConfig(
        model=model,
        served_names=tuple(given.served_model_name or [model]),
        host=given.host or "0.0.0.0",  # noqa: S104 - vLLM's default; pods need it
        port=given.port or 8000,
        kv_role=transfer.get("kv_role") if transfer.get("kv_connector") else None,
        engine_id=transfer.get("engine_id"),
        lease_s=float(extra.get("kv_lease_duration", plain.lease_s)),
        on_failure=transfer.get("kv_load_failure_policy", plain.on_failure),
        side_channel_host=environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        side_channel_port=int(environment.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
        block_tokens=block_tokens,
        blocks=blocks,
        max_model_len=max_model_len,
        max_seqs=given.max_num_seqs or plain.max_seqs,
        prefix_caching=given.enable_prefix_caching is not False,
        prompt_tokens_details=bool(given.enable_prompt_tokens_details),
        events=_events(given.kv_events_config),
        data_parallel=given.data_parallel_size or 1,
        lora=bool(given.enable_lora),
        lora_updating=environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in {"1", "true"},
        adapters=_adapters(given.lora_modules),
        scale_out=bool(given.enable_scale_out),
        shutdown_timeout_s=float(given.shutdown_timeout or 0),
    )


def _blocks(given: argparse.Namespace, block_tokens: int, max_model_len: int) -> int:
    if given.num_gpu_blocks_override:
        return int(given.num_gpu_blocks_override)
    if given.kv_cache_memory_bytes:
        return int(given.kv_cache_memory_bytes) // (block_tokens * EngineConfig.kv_bytes_per_token)
    return 4 * -(-max_model_len // block_tokens)
