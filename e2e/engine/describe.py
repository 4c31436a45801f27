"""A program for the engine's own interpreter: tell the flags of `vllm serve`, and what its parser makes of arguments.

Usage: `describe.py` prints the flags as JSON, for the stand-in; `describe.py -` answers questions, each a line of JSON
with command lines, by a line that begins with `answer: `. Boundary: imports only vllm; how the flags are used is
`standin.cli`'s business. They are data, not code, so that a test can compare them with the engine that is installed.
"""

import dataclasses
import json
import sys
from typing import Any

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

KINDS = {"int": "int", "float": "float", "loads": "json", "union_dict_and_str": "str", "_parse_type": "json"}
HUMAN = ("human_readable_int", "human_readable_int_or_auto")


def cells(function: Any) -> list[Any]:
    """What a nested function closes over."""
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def described_type(kind: Any) -> dict[str, Any]:
    """The kind of a flag's value, and the fields of a configuration object."""
    name = getattr(kind, "__name__", "str")
    if name == "_optional_type":
        return described_type(cells(kind)[0]) | {"optional": True}
    if name == "parse_dataclass":
        owner = next(
            (cell for cell in cells(kind) + list(kind.__defaults__ or ()) if dataclasses.is_dataclass(cell)), None
        )
        if owner is None:
            return {"kind": "json"}
        return {"kind": "object", "fields": sorted(field.name for field in dataclasses.fields(owner) if field.init)}
    if name in HUMAN:
        return {"kind": "size"}
    return {"kind": KINDS.get(name, "str")}


def described(action: Any) -> dict[str, Any]:
    """One flag."""
    told: dict[str, Any] = {"names": list(action.option_strings)}
    if type(action).__name__ == "BooleanOptionalAction":
        return told | {"kind": "switch"}
    if action.nargs == 0:
        return told | {"kind": "true"}
    told |= described_type(action.type)
    if action.nargs is not None:
        told["nargs"] = action.nargs
    if action.choices is not None:
        told["choices"] = [str(choice) for choice in action.choices]
    return told


def understood(chosen: dict[str, Any]) -> dict[str, Any]:
    """What was parsed: plain values, and the fields of the two configurations of KV."""
    plain = (str, int, list, type(None))
    return {
        name: value if isinstance(value, plain) else vars(value)
        for name, value in chosen.items()
        if isinstance(value, plain) or name in ("kv_transfer_config", "kv_events_config")
    }


def main() -> None:
    """Print the flags, one a line; or answer until the input ends."""
    parser = make_arg_parser(FlexibleArgumentParser())
    actions = [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - no other way
    flags = [described(action) for action in actions if action.dest != "help"]
    if sys.argv[1:] != ["-"]:
        lines = ",\n  ".join(json.dumps(flag) for flag in flags)
        sys.stdout.write(f"[\n  {lines}\n]\n")
        return
    options = {name: action.dest for action in actions for name in action.option_strings}
    for line in sys.stdin:
        parsed = [understood(vars(parser.parse_args(arguments))) for arguments in json.loads(line)]
        told = json.dumps({"flags": flags, "options": options, "parsed": parsed}, default=str)
        sys.stdout.write(f"answer: {told}\n")
        sys.stdout.flush()


main()
