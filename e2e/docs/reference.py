"""The reference pages: one for each schema, one for the metrics.

Boundary: pure. A field without a description is an error, unless its section explains it: what nobody explains nobody
should have to set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdpool_api.metrics import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]
_BOUNDS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
}
_UNSAID: Final = 2**31 - 1
"""A bound as large as a number's type is no rule that a reader needs."""


class UndescribedError(ValueError):
    """A field that has no description; the message names its path."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema."""

    path: str
    kind: str
    rules: str
    about: str


def page(title: str, intro: str, fields: Iterator[Field]) -> str:
    """A page of one table for each top-level field, so that a long schema stays readable."""
    parts: dict[str, list[Field]] = {}
    for field in fields:
        parts.setdefault(field.path.split(".")[0].removesuffix("[]"), []).append(field)
    text = f"# {title}\n\n{intro}\n"
    for part, found in parts.items():
        text += f"\n## {part}\n\n| field | meaning | type | rules |\n| --- | --- | --- | --- |\n"
        text += "".join(
            f"| `{each.path}` | {_cell(each.about)} | {each.kind} | {_cell(each.rules)} |\n" for each in found
        )
    return text


def fields(schema: Json, definitions: Mapping[str, Json], *, typed: frozenset[str] = frozenset()) -> Iterator[Field]:
    """Every field below an object's schema, in its order.

    Args:
        schema: of the object.
        definitions: what `$ref` points into.
        typed: names of fields whose type Kubernetes defines; what is below them is not listed.

    Raises:
        UndescribedError: a field says nothing of itself.
    """
    yield from _below({**schema, "description": ""}, definitions, typed, "")


def _below(schema: Json, definitions: Mapping[str, Json], typed: frozenset[str], at: str) -> Iterator[Field]:
    for name, raw in schema.get("properties", {}).items():
        given = _resolved(raw, definitions)
        path = f"{at}{name}"
        about = given.get("description", "")
        if not about and not schema.get("description"):
            raise UndescribedError(f"{path} has no description, nor has what it stands in")
        yield Field(path, _kind(given, definitions), _rules(given), about)
        if name in typed:
            continue
        around = about or schema.get("description", "")
        items = _resolved(given["items"], definitions) if isinstance(given.get("items"), dict) else {}
        if given.get("properties"):
            yield from _below({**given, "description": around}, definitions, typed, f"{path}.")
        elif items.get("properties"):
            yield from _below({"description": around, **items}, definitions, typed, f"{path}[].")


def _resolved(schema: Json, definitions: Mapping[str, Json]) -> Json:
    """A schema with its reference followed; what stands beside the reference wins."""
    options = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(options) == 1:
        schema = {**options[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
    if "$ref" not in schema:
        return schema
    target = definitions[schema["$ref"].rsplit("/", 1)[1]]
    return {**_resolved(target, definitions), **{key: value for key, value in schema.items() if key != "$ref"}}


def _kind(schema: Json, definitions: Mapping[str, Json]) -> str:
    if schema.get("type") == "array":
        return f"list of {_kind(_resolved(schema.get('items', {}), definitions), definitions)}"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "number or string"
    return str(schema.get("type", "any"))


def _rules(schema: Json) -> str:
    said = [f"default `{schema['default']}`"] if schema.get("default") not in (None, "", [], {}) else []
    for key, words in _BOUNDS.items():
        if key in schema and not (key == "maximum" and schema[key] >= _UNSAID):
            said.append(words.format(f"{schema[key]:g}" if isinstance(schema[key], float) else schema[key]))
    if pattern := schema.get("pattern"):
        said.append(f"matches `{pattern}`")
    said += [each["message"] for each in schema.get("x-kubernetes-validations", ()) if "message" in each]
    return "; ".join(said)


def metrics_page() -> str:
    """Every metric of router and operator."""
    text = "# Metrics\n\nMade from the catalogue that both planes are held against. Absent is not zero.\n"
    for title, prefix in (("Router", "pdpool_router_"), ("Operator", "pdpool_operator_")):
        text += f"\n## {title}\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n"
        for name, metric in CATALOGUE.items():
            if name.startswith(prefix):
                labels = ", ".join(f"`{each}`" for each in metric.labels)
                text += f"| `{name}` | {metric.kind} | {labels} | {metric.help} |\n"
    return text


def _cell(text: str) -> str:
    """Text inside a table: one line, with no bar that would end the cell, and no markup of a pattern's."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
