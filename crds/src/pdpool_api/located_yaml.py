"""YAML text as plain values, with the line of each field: what strict files are read with.

Boundary: YAML only; what a field means is for the model that reads the values. Why not `yaml.safe_load`: it takes the
last of two equal keys, so that one of two settings is silently ignored, and it forgets where a field stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pdpool_api import kubectl_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence


class LocatedError(ValueError):
    """Text that is no YAML, or says a key twice; the message names the line."""


class Located:
    """The values of a document, and where they stand.

    Raises:
        LocatedError: see there.
    """

    def __init__(self, text: str) -> None:
        try:
            loader = _Loader(text)
            try:
                self._root = loader.get_single_node()
                self.value: Any = loader.construct_document(self._root) if self._root is not None else None
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as fault:
            mark = fault.problem_mark or fault.context_mark
            where = f"line {mark.line + 1}: " if mark is not None else ""
            raise LocatedError(f"{where}not YAML: {fault.problem or fault.context}") from fault
        except yaml.YAMLError as fault:
            raise LocatedError(f"not YAML: {fault}") from fault
        except RecursionError as fault:
            raise LocatedError("not YAML: nested too deeply") from fault

    def line(self, path: Sequence[str | int]) -> int | None:
        """Line (from 1) of a field, or of the nearest thing around it; None in an empty document.

        Only the nodes on the path are looked at, so that aliases cost nothing.
        """
        node = self._root
        if node is None:
            return None
        line: int = node.start_mark.line
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line
        return line + 1


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


class _Loader(kubectl_yaml.Loader):
    """A loader that takes each key once, and only text for a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (_TEXT, _MERGE):
                raise LocatedError(f"line {line}: a key must be text")
            if key.value in seen:
                raise LocatedError(f"line {line}: {key.value}: given twice, first on line {seen[key.value]}")
            seen[key.value] = line
        return super().construct_mapping(node, deep=deep)


_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
