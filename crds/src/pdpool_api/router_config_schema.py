"""Writes the JSON schema of the router's configuration file, or checks that it is up to date (`--check`).

Boundary: the only part of it that reads or writes files; `router_config` is the source. Why published: editors complete
and check a file by it before a router refuses it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import GenerateJsonSchema

from pdpool_api.router_config import RouterConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FILE: Final = Path("crds/router-config.schema.json")


class _Untitled(GenerateJsonSchema):
    """Without titles that only say a field's name again."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """See `GenerateJsonSchema`."""
        del schema
        return False


def text() -> str:
    """The schema, as it is published."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RouterConfig.model_json_schema(by_alias=True, schema_generator=_Untitled),
        "title": "Configuration file of pdpool-router",
    }
    return json.dumps(schema, indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where `--check` finds that the file is another."""
    parser = argparse.ArgumentParser(prog="python -m pdpool_api.router_config_schema", description="Write the schema.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file differs")
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE, help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    if not chosen.check:
        chosen.file.write_text(text(), encoding="utf-8")
        return 0
    if chosen.file.exists() and chosen.file.read_text(encoding="utf-8") == text():
        return 0
    sys.stdout.write(f"{chosen.file} is not what the models say: make generate\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
