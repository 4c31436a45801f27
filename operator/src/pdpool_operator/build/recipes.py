"""What was accepted last, kept as a ControllerRevision of the pool: the spec, and the recipe of its engine pods.

The spec is what goes on when an edit is refused. The recipe is what keeps engine pods as they are when only the
operator has changed: another version has other defaults, arguments and shapes of a pod.

Boundary: pure. The API server lets nobody change the content of a ControllerRevision, so that the hash in its name says
all of it: another content is another object. The ones before go with the replicas of their revision. Templates are
packed: with large variables the same text would stand there three times, and an object is limited to 1.5 MB.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_operator import ownership
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import CONTROLLER_REVISIONS, Child, ChildKey, EngineRecipe, Recipe

if TYPE_CHECKING:
    from collections.abc import Collection

    from pdpool_api.pool import InferencePool
    from pdpool_operator.records import Json, Observed

_SPEC: Final = "spec"
_RECIPE: Final = "recipe"
_HASH_LENGTH: Final = 8


def record(pool: InferencePool, recipe: Recipe, observed: Observed) -> Child:
    """The object that keeps the recipe, numbered as the last that was accepted."""
    data = {
        _SPEC: recipe.spec,
        _RECIPE: {
            "engineImage": recipe.engine_image,
            "mode": recipe.mode,
            "revision": recipe.revision,
            "roles": {
                role.value: {"operator": each.operator, "template": _packed(each.template)}
                for role, each in recipe.roles.items()
            },
        },
    }
    meta = metadata(pool, Role.ROUTER, _SPEC, ownership.digest(data)[:_HASH_LENGTH])
    known = numbers(observed)
    last = max(known.values(), default=0)
    is_last = known.get(meta["name"], 0) == last > 0
    body = {
        "apiVersion": CONTROLLER_REVISIONS.api_version,
        "kind": CONTROLLER_REVISIONS.kind,
        "metadata": meta,
        "revision": last if is_last else last + 1,
        "data": data,
    }
    return Child(CONTROLLER_REVISIONS, body)


def numbers(observed: Observed) -> dict[str, int]:
    """The names of the records that there are, with the order in which they were accepted."""
    return {live["metadata"]["name"]: _number(live) for live in _records(observed)}


def kept(observed: Observed, known: dict[str, Recipe | None] | None = None) -> tuple[Recipe, ...]:
    """Every recipe that is remembered: of the present spec if it was accepted, then the later before the earlier.

    `known` holds what was read before, by the text of its record, and is kept up to date.
    """
    known = {} if known is None else known
    texts = [str(live.get("data")) for live in reversed(_records(observed))]
    for text in known.keys() - set(texts):
        del known[text]
    for text in texts:
        if text not in known:
            known[text] = _read(text)
    found = [each for text in texts if (each := known[text]) is not None]
    return tuple(sorted(found, key=lambda each: each.spec != observed.pool["spec"]))


def outlived(observed: Observed, revisions: Collection[str]) -> frozenset[ChildKey]:
    """Records to keep beside the desired one: the last of each revision that still has replicas, for a revert."""
    last = {}
    for live in _records(observed) if revisions else ():
        recipe = _read(str(live.get("data")))
        if recipe is not None and recipe.revision in revisions:
            last[recipe.revision] = ChildKey(CONTROLLER_REVISIONS.kind, live["metadata"]["name"])
    return frozenset(last.values())


def _records(observed: Observed) -> list[Json]:
    """In the order in which they were accepted."""
    found = [live for key, live in observed.children.items() if key.kind == CONTROLLER_REVISIONS.kind]
    return sorted(found, key=lambda live: (_number(live), live["metadata"]["name"]))


def _number(live: Json) -> int:
    return int(live.get("revision") or 0)


def readable(body: Json) -> Json:
    """A record with its templates unpacked: for a person, and for whoever takes out of it what is secret."""
    told = (body.get("data") or {}).get(_RECIPE) or {}
    roles = {}
    for role, each in (told.get("roles") or {}).items():
        try:
            roles[role] = {**each, "template": _unpacked(each["template"])}
        except (KeyError, TypeError, ValueError, zlib.error):
            roles[role] = {}
    return {**body, "data": {**(body.get("data") or {}), _RECIPE: {**told, "roles": roles}}}


def _read(data: str) -> Recipe | None:
    """None: somebody else wrote it, or a version that knows more."""
    try:
        return _recipe(json.loads(data))
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error):
        return None


def _recipe(data: Json) -> Recipe:
    told = data.get(_RECIPE) or {}
    return Recipe(
        spec=data.get(_SPEC) or {},
        engine_image=told.get("engineImage", ""),
        mode=told.get("mode", ""),
        revision=told.get("revision", ""),
        roles={
            Role(role): EngineRecipe(each["operator"], _unpacked(each["template"]))
            for role, each in told.get("roles", {}).items()
        },
    )


def _packed(template: Json) -> str:
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _unpacked(text: str) -> Json:
    found: Json = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
