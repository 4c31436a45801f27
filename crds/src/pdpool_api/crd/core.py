"""Schemas of core/v1 for the CRD: from a snapshot of an API server's own `/openapi/v3/api/v1`.

Boundary: the snapshot is data of this package; `snapshot` makes it, `definition` reads it. Schemas are inlined, because
a CRD knows no `$ref`; prose is dropped, because with it the CRD is too large for a client-side `kubectl apply`. Written
by hand they would drift; left out (preserve-unknown-fields) a misspelt field inside `env` would pass.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from pdpool_api.schema import INT_OR_STRING, QUANTITY_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Schema = dict[str, Any]

SNAPSHOT_FILE: Final = "core_v1.json"

_REF_PREFIX: Final = "#/components/schemas/"
_CORE_PREFIX: Final = "io.k8s.api.core.v1."

_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}

_REPLACED: Final[Mapping[str, Schema]] = {
    # The only form in which a CRD may say `anyOf` with types; a number such as 1.5 must then be quoted.
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {**INT_OR_STRING, "pattern": QUANTITY_PATTERN},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": INT_OR_STRING,
    # Of embedded metadata (a volume's claim template) only these two are ever used.
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "type": "object",
        "properties": {"annotations": _STRINGS, "labels": _STRINGS},
    },
}

_DROPPED: Final = frozenset(
    {
        "description",
        "title",
        # The API server fills in its own defaults when the operator applies a child; an empty one would also keep
        # `required` from ever biting.
        "default",
        "x-kubernetes-unions",
        "x-kubernetes-patch-strategy",
        "x-kubernetes-patch-merge-key",
        "x-kubernetes-group-version-kind",
    }
)


def definition(name: str, *, without: Iterable[str] = ()) -> Schema:
    """The structural schema of a type of core/v1, fully inlined.

    Args:
        name: as `EnvVar`.
        without: top-level properties to leave out.

    Raises:
        KeyError: the snapshot does not hold the type, or one that it refers to.
    """
    schema = _inlined(_snapshot(), _CORE_PREFIX + name)
    dropped = frozenset(without)
    if dropped:
        schema["properties"] = {key: value for key, value in schema["properties"].items() if key not in dropped}
    return schema


def snapshot(openapi: Mapping[str, Any], names: Iterable[str]) -> Schema:
    """The part of `/openapi/v3/api/v1` that some types of core/v1 need, without what `definition` drops.

    Raises:
        KeyError: a type is not in the document.
    """
    schemas = openapi["components"]["schemas"]
    kept: Schema = {}
    waiting = [_CORE_PREFIX + name for name in names]
    while waiting:
        name = waiting.pop()
        if name not in kept and name not in _REPLACED:
            kept[name] = _without_prose(schemas[name])
            waiting.extend(_references(kept[name]))
    return {"components": {"schemas": dict(sorted(kept.items()))}}


def with_required_keys(schema: Schema) -> Schema:
    """A schema in which every list-map's keys are required in its items: the API server insists."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        items = schema["items"]
        schema = {**schema, "items": {**items, "required": sorted({*items.get("required", []), *keys})}}
    return schema


@cache
def _snapshot() -> Schema:
    text = resources.files(__package__).joinpath(SNAPSHOT_FILE).read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)["components"]["schemas"]
    return loaded


def _inlined(schemas: Schema, name: str) -> Schema:
    if name in _REPLACED:
        return json.loads(json.dumps(_REPLACED[name]))  # type: ignore[no-any-return]
    resolved = _resolved(schemas, schemas[name])
    assert isinstance(resolved, dict)
    return resolved


def _resolved(schemas: Schema, node: Any) -> Any:
    if isinstance(node, list):
        return [_resolved(schemas, each) for each in node]
    if not isinstance(node, dict):
        return node
    siblings = {key: _resolved(schemas, value) for key, value in node.items() if key not in {"allOf", "$ref"}}
    for reference in _own_references(node):
        siblings = {**_inlined(schemas, reference), **siblings}
    return with_required_keys(siblings)


def _own_references(node: Mapping[str, Any]) -> list[str]:
    own = [node, *node.get("allOf", [])]
    return [each["$ref"].removeprefix(_REF_PREFIX) for each in own if "$ref" in each]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for each in node for name in _references(each)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"].removeprefix(_REF_PREFIX)] if isinstance(node.get("$ref"), str) else []
    return own + [name for value in node.values() for name in _references(value)]


def _without_prose(node: Any, *, names: bool = False) -> Any:
    """A schema without prose; `names`: the keys are names of properties, which may well be called `description`."""
    if isinstance(node, list):
        return [_without_prose(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_prose(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or key not in _DROPPED
    }
