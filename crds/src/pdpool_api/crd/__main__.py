"""Writes the CRD (`python -m pdpool_api.crd`), or checks that the file is what would be written (`--check`).

Boundary: the only part of the generator that reads or writes files. With `--snapshot FILE` it first renews the
package's copy of core/v1's schemas from a saved `kubectl get --raw /openapi/v3/api/v1`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names
from pdpool_api.crd import core, document, text
from pdpool_api.pool import InferencePool
from pdpool_api.schema import CORE_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FILE: Final = Path("crds") / f"{names.CRD_NAME}.yaml"
SIZE_LIMIT_BYTES: Final = 200_000
"""Client-side apply keeps the compact JSON in an annotation, which may hold 262,144 bytes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where `--check` finds a difference or the CRD is too large."""
    parser = argparse.ArgumentParser(prog="python -m pdpool_api.crd", description="Generate the CRD from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; print how the file differs and exit 1")
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE, help="default: %(default)s")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help="renew core/v1 from a saved /openapi/v3/api/v1")
    chosen = parser.parse_args(arguments)
    if chosen.snapshot is not None:
        _renew_snapshot(chosen.snapshot)
    size_bytes = len(json.dumps(document(), separators=(",", ":")).encode())
    if size_bytes > SIZE_LIMIT_BYTES:
        sys.stderr.write(f"the CRD is {size_bytes} bytes of compact JSON; the limit is {SIZE_LIMIT_BYTES}\n")
        return 1
    return _check(chosen.file) if chosen.check else _write(chosen.file)


def _write(file: Path) -> int:
    file.write_text(text(), encoding="utf-8")
    return 0


def _check(file: Path) -> int:
    present = file.read_text(encoding="utf-8") if file.exists() else ""
    difference = list(
        difflib.unified_diff(
            present.splitlines(keepends=True), text().splitlines(keepends=True), str(file), "generated from the models"
        )
    )
    sys.stdout.writelines(difference)
    return 1 if difference else 0


def _renew_snapshot(file: Path) -> None:
    reduced = core.snapshot(json.loads(file.read_text(encoding="utf-8")), sorted(_core_types()))
    own = Path(core.__file__).with_name(core.SNAPSHOT_FILE)
    own.write_text(json.dumps(reduced, indent=1) + "\n", encoding="utf-8")


def _core_types() -> set[str]:
    def found(node: Any) -> set[str]:
        if isinstance(node, list):
            return {name for each in node for name in found(each)}
        if not isinstance(node, dict):
            return set()
        own = {node[CORE_KEY]} if CORE_KEY in node else set()
        return own | {name for value in node.values() for name in found(value)}

    return found(InferencePool.model_json_schema(mode="serialization"))


if __name__ == "__main__":
    sys.exit(main())
