"""Pools in YAML files, read as the API server would read them.

Boundary: files to objects, with every fault named. YAML is taken as `kubectl` takes it: `70.6e9` is a number, `12:30`
and `2026-01-01` are words, and a key that stands twice is a fault.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import yaml

from pdpool_api import kubectl_yaml, names
from pdpool_api.pool import InferencePool, PoolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_NO_UID: Final = "00000000-0000-0000-0000-000000000000"
"""Of a pool that is not stored."""
_NAME_RULE: Final = "must be lower-case letters, digits, '-' and '.', with a letter or digit at each end"


class PoolFileError(Exception):
    """A text that is no YAML; the message says where."""


@dataclass(frozen=True, slots=True)
class Written:
    """One pool as a file has it; exactly one of `pool` and `fault` is given."""

    name: str
    """What it is called, for messages."""
    pool: InferencePool | None = None
    fault: str = ""


class _Loader(kubectl_yaml.Loader):
    """YAML as `kubectl` reads it, and duplicate keys refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the library's
        """A mapping whose keys are all different.

        Raises:
            yaml.constructor.ConstructorError: a key stands twice.
        """
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        keys.pop("<<", None)
        if twice := [key for key, times in keys.items() if times > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def pools(file: IO[str], namespace: str | None = None) -> tuple[Written, ...]:
    """Every pool of a file with any number of documents; objects of other kinds are left out.

    Args:
        file: the open file.
        namespace: for pools that name none.

    Raises:
        PoolFileError: the text is no YAML.
    """
    try:
        documents = list(yaml.load_all(file, Loader=_Loader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as fault:
        raise PoolFileError(str(fault)) from fault
    return tuple(_read(each, namespace) for document in documents for each in _items(document) if _is_pool(each))


def _items(document: Any) -> Iterator[Any]:
    """The document itself, or what a `List` holds."""
    if isinstance(document, dict) and document.get("kind") in ("List", f"{names.KIND}List"):
        yield from document.get("items") or ()
    else:
        yield document


def _is_pool(document: Any) -> bool:
    """Other groups have a kind of the same name: the group decides, and its version is judged later."""
    if not isinstance(document, dict):
        return False
    group = str(document.get("apiVersion", "")).partition("/")[0]
    return document.get("kind") == names.KIND and group == names.GROUP


def _read(document: dict[str, Any], namespace: str | None) -> Written:
    raw = _without_nulls({name: value for name, value in document.items() if name != "status"})
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return Written("(without a name)", fault="metadata.name: a name is required")
    if namespace and "namespace" not in metadata:
        metadata = {**metadata, "namespace": namespace}
    called = "/".join(str(metadata[field]) for field in ("namespace", "name") if field in metadata)
    if (fault := _name_fault(metadata)) is not None:
        return Written(called, fault=fault)
    raw["metadata"] = {"uid": _NO_UID, **metadata}
    try:
        return Written(called, pool=InferencePool.parse_exactly(raw))
    except PoolError as fault:
        return Written(called, fault=str(fault))


def _name_fault(metadata: dict[str, Any]) -> str | None:
    for field in ("name", "namespace"):
        value = metadata.get(field, "x")
        if not isinstance(value, str) or not _NAME.match(value):
            return f"metadata.{field}: {value!r} {_NAME_RULE}"
        if len(value) > names.NAME_MAX_LENGTH:
            return f"metadata.{field}: must be at most {names.NAME_MAX_LENGTH} characters"
    return None


def _without_nulls(value: Any) -> Any:
    """The API server takes a field that is null for one that is absent."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
