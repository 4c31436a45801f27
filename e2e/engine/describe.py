"""A program for the engine's own interpreter: print the flags of `vllm serve` as JSON, for the stand-in.

Usage: `describe.py`. Boundary: imports only vllm; how the answer is used is `standin.cli`'s business. It is data, not
code, so that a test can compare it with the engine that is installed.
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


def main() -> None:
    """Print the flags, one a line."""
    parser = make_arg_parser(FlexibleArgumentParser())
    flags = [described(action) for action in parser._actions if action.option_strings and action.dest != "help"]  # noqa: SLF001 - no other way
    lines = ",\n  ".join(json.dumps(flag) for flag in flags)
    sys.stdout.write(f"[\n  {lines}\n]\n")


main()
