"""Whether a live object still is what the operator applied: asked of its metadata alone.

Boundary: pure, and free of any knowledge of kinds: no table of the API server's defaults, no parsing of quantities.

- The annotation `pdpool.io/applied` holds the hash of the object that the operator last applied, and
- the operator's entry in `managedFields` holds exactly the fields that it still owns: whoever changes one takes it
  out of the entry, and defaults never enter it.

Hash equal, and the entry equal to the paths of the desired object: nothing to do. Safe also against a webhook that
rewrites our values, which a comparison of values would fight for ever.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names

if TYPE_CHECKING:
    from pdpool_operator.records import Json

_IDENTITY: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})
"""Fields of metadata that nobody owns."""


def without_none(value: Any) -> Any:
    """The value without absent (None) members: a null that is applied would be an owned field, for ever unmet."""
    if isinstance(value, dict):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_none(each) for each in value]
    return value


def merge_patch(before: Json, after: Json) -> Json:
    """What makes the one of the other (RFC 7396): members that go are None, lists are replaced whole."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            patch[name] = merge_patch(before[name], value)
        elif name not in before or before[name] != value:
            patch[name] = value
    return patch


def digest(body: Json) -> str:
    """Hash of an object as it is to be applied; the order of lists counts, that of mappings does not."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamped(body: Json) -> Json:
    """The object with the annotation that remembers its own hash."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_APPLIED: digest(body)}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def was_applied(desired: Json, live: Json) -> bool:
    """True when the live object is what was made of the (stamped) desired one, even if its owner was taken off since.

    The hash covers the ownerReference, hence the pool's uid: no other object, and no other life of the pool, has it.
    """
    applied = live["metadata"].get("annotations", {}).get(names.ANNOTATION_APPLIED)
    return entry(live) is not None and applied == desired["metadata"]["annotations"][names.ANNOTATION_APPLIED]


def entry(live: Json, subresource: str = "") -> Json | None:
    """What the operator owns of a live object by its own applies (`fieldsV1`); None: it never applied it."""
    for each in live["metadata"].get("managedFields", ()):
        ours = each.get("manager") == names.FIELD_MANAGER and each.get("operation") == "Apply"
        if ours and each.get("subresource", "") == subresource:
            fields: Json = each["fieldsV1"]
            return fields
    return None


def taken_over(desired: Json, live: Json) -> list[Json] | None:
    """The `managedFields` in which items that others put in the place of ours are ours; None: there are none.

    Only lists count from which an item of ours has vanished; what others put beside ours stays theirs. An entry that
    held such items is dropped: what else was in it keeps its value and belongs to nobody.
    """
    ours = entry(live)
    if ours is None:
        return None
    fields = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind", "metadata")}
    owned, kept = ours, []
    for each in live["metadata"]["managedFields"]:
        is_other = each["fieldsV1"] is not ours and not each.get("subresource")
        found = _replacements(ours, each["fieldsV1"], fields) if is_other else {}
        owned = _union(owned, found)
        if not found:
            kept.append(each)
    if owned == ours:
        return None
    return [{**each, "fieldsV1": owned} if each["fieldsV1"] is ours else each for each in kept]


def _replacements(ours: Json, theirs: Json, desired: Any) -> Json:
    """The part of a foreign entry that is undesired items of lists which lack a desired one."""
    if isinstance(desired, dict):
        inner = {f"f:{name}": value for name, value in desired.items()}
    elif isinstance(desired, list):
        inner = {key: item for key in theirs if key != "." for item in desired if _matches(key, item)}
        # Of an item that was taken away, the members that are empty lists stay in our entry; the item itself does not.
        own = [key for key, node in ours.items() if "." in node]
        if any(not any(_matches(key, item) for key in own) for item in desired):
            return {key: node for key, node in theirs.items() if key.startswith("k:") and key not in inner}
    else:
        return {}
    parts = {key: _replacements(ours.get(key, {}), node, inner[key]) for key, node in theirs.items() if key in inner}
    return {key: part for key, part in parts.items() if part}


def _union(one: Json, other: Json) -> Json:
    return {**one, **{key: _union(one.get(key, {}), node) for key, node in other.items()}}


def difference(desired: Json, live: Json | None) -> str:
    """Why the (stamped) desired object has to be applied; empty when it need not be."""
    if live is None:
        return "absent"
    owned = entry(live)
    if owned is None:
        return "never applied"
    want = desired["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    if live["metadata"].get("annotations", {}).get(names.ANNOTATION_APPLIED) != want:
        return "hash"
    metadata = {key: value for key, value in desired["metadata"].items() if key not in _IDENTITY}
    fields = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind", "metadata")}
    return mismatch(owned, {"metadata": metadata, **fields})


def mismatch(owned: Json, desired: Any, path: str = "") -> str:
    """The first path that is owned and not desired (`remove …`), or desired and not owned (`unowned …`); or empty.

    `owned` is a node of `fieldsV1`: `f:name` members of a mapping, `k:{…}` and `v:…` items of a list, `.` the node
    itself. An empty node is owned as a whole: a scalar, or a list or mapping that the schema treats as one value.
    """
    if not owned:
        return ""
    if isinstance(desired, dict):
        return _mapping_mismatch(owned, desired, path)
    if isinstance(desired, list):
        return _list_mismatch(owned, desired, path)
    return f"remove {path}"


def _mapping_mismatch(owned: Json, desired: Json, path: str) -> str:
    for key in owned:
        if key.startswith("f:") and key[2:] not in desired:
            return f"remove {path}.{key[2:]}"
    for name, value in desired.items():
        node = owned.get(f"f:{name}")
        if node is None:
            return f"unowned {path}.{name}"
        if found := mismatch(node, value, f"{path}.{name}"):
            return found
    return ""


def _list_mismatch(owned: Json, desired: list[Any], path: str) -> str:
    left = list(range(len(desired)))
    for key, node in owned.items():
        if key == ".":
            continue
        place = next((at for at in left if _matches(key, desired[at])), None)
        if place is None:
            return f"remove {path}[{key}]"
        left.remove(place)
        if found := mismatch(node, desired[place], f"{path}[{place}]"):
            return found
    return f"unowned {path}[{left[0]}]" if left else ""


def _matches(key: str, item: Any) -> bool:
    kind, _, text = key.partition(":")
    wanted = json.loads(text)
    if kind == "v":
        return bool(item == wanted)
    if kind != "k" or not isinstance(item, dict):
        return False
    # The one key of a list that the API server fills in before it tells items apart.
    given = {"protocol": "TCP", **item}
    return all(given.get(name) == value for name, value in wanted.items())
