"""From the JSON schema of a pydantic model to a structural schema that the API server takes.

Boundary: pure; knows nothing of pools. Each step cures something that the API server refuses (`$ref`, `null`, `const`,
`exclusiveMinimum` as a number, `additionalProperties: false`) or that would bite later (a default that is not the full
value: rules are checked against it before nested defaults are filled in).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api.crd import core
from pdpool_api.schema import CORE_KEY, RULES_KEY

if TYPE_CHECKING:
    from pydantic import BaseModel

Schema = dict[str, Any]

_HOLDS_SCHEMAS: Final = frozenset({"properties", "items", "additionalProperties"})
_DROPPED: Final = frozenset({"title", "readOnly", "examples", "deprecated", "$defs"})


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, in the order of its fields."""
    # Of the two views only this one holds computed fields.
    raw = model.model_json_schema(by_alias=True, mode="serialization")
    return _converted(raw, raw.get("$defs", {}))


def _converted(node: Schema, definitions: Schema) -> Schema:
    node = _joined(_without_null(_joined(node, definitions)), definitions)
    if CORE_KEY in node:
        node = _with_core(node)
    result: Schema = {}
    for key, value in node.items():
        result.update(_below(key, value, definitions) if key in _HOLDS_SCHEMAS else _keyword(key, value, node))
    return _ordered(core.with_required_keys(result))


def _below(key: str, value: Any, definitions: Schema) -> Schema:
    if key == "properties":
        return {key: {name: _converted(each, definitions) for name, each in value.items()}}
    # `additionalProperties: false` is what pruning does anyway, and forbidden beside `properties`.
    return {key: _converted(value, definitions)} if isinstance(value, dict) else {}


def _keyword(key: str, value: Any, node: Schema) -> Schema:
    match key:
        case "const":
            return {"enum": [value]}
        case "exclusiveMinimum":
            return {"minimum": value, "exclusiveMinimum": True}
        case "exclusiveMaximum":
            return {"maximum": value, "exclusiveMaximum": True}
        case "required":
            return _required(value, node["properties"])
        case "default":
            return _default(value)
        case _:
            return {} if key in _DROPPED else {key: value}


def _joined(node: Schema, definitions: Schema) -> Schema:
    """A reference replaced by its target; what stands beside the reference wins, rules of both hold."""
    if "$ref" not in node:
        return node
    target = _joined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
    beside = {key: value for key, value in node.items() if key != "$ref"}
    joined = {**target, **beside}
    both = [*target.get(RULES_KEY, []), *beside.get(RULES_KEY, [])]
    return {**joined, RULES_KEY: both} if both else joined


def _without_null(node: Schema) -> Schema:
    """`X or null` as X: absent is the way to say nothing."""
    choices = node.get("anyOf")
    if not choices or {"type": "null"} not in choices:
        return node
    (kept,) = [each for each in choices if each != {"type": "null"}]
    return {**kept, **{key: value for key, value in node.items() if key not in {"anyOf", "default"}}}


def _with_core(node: Schema) -> Schema:
    own = {key: value for key, value in node.items() if key not in {CORE_KEY, "without"}}
    return {**core.definition(node[CORE_KEY], without=node["without"]), **own}


def _required(names: list[str], properties: Schema) -> Schema:
    """Computed fields count as required in pydantic's view of what is written; a status may be written in part."""
    kept = [name for name in names if not properties[name].get("readOnly")]
    return {"required": kept} if kept else {}


def _default(value: Any) -> Schema:
    kept = _meaningful(value)
    return {} if kept is None else {"default": kept}


def _meaningful(value: Any) -> Any:
    """A default without its empty parts (absent says the same, and objects stay short); None: nothing is left."""
    if isinstance(value, dict):
        kept = {name: part for name, each in value.items() if (part := _meaningful(each)) is not None}
        return kept or None
    return None if value in ("", [], ()) else value


def _ordered(schema: Schema) -> Schema:
    first = [key for key in ("description", "type") if key in schema]
    return {key: schema[key] for key in [*first, *(key for key in schema if key not in first)]}
