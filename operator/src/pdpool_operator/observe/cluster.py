"""The store of live objects: fed by watches and by the periodic re-list, read by reconciles.

Boundary: no I/O. Watches are hints and lists are the truth, and both may arrive late: an object replaces another only
when its resourceVersion is higher (they are ordered within one kind), a list removes only what it is younger than,
and a deletion is remembered until a younger list has been seen, so that an older list brings nothing back.

Objects are trimmed to what reconciles read: of children the metadata (with the operator's own `managedFields` entry),
status, of a Deployment its size and what a pod of it holds, and of a ControllerRevision its content; of pods metadata,
place and status. They are kept as JSON and read again at each look: as dicts those of 500 pools took 68 MB, though few
of them are looked at in a minute.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pdpool_api import names
from pdpool_operator.records import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    OPTIONAL_RESOURCES,
    PODS,
    POOLS,
    WATCHED,
    ChildKey,
    Json,
    Listed,
    Observed,
    PoolRef,
    Resource,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = tuple[str, str]
"""Namespace and name."""
OVERDUE_S: Final = 60.0
"""A pod's end comes by its `deletionTimestamp`, and what a kubelet clears away after it takes seconds."""
_MOST_SHAPES: Final = 2000
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """One object, and what of it is asked without a look at the rest."""

    version: int
    label: str
    """Of the pool that it says it is of."""
    owner: tuple[str, str] | None
    """Uid and name of the pool that it is of by its controller reference."""
    text: bytes
    """Its JSON, trimmed, without the sets of fields that the operator owns."""
    fields: tuple[Json, ...]
    """Those, one for each entry of `managedFields`."""

    def read(self) -> Json:
        """The object."""
        live: Json = _decode(self.text)
        for entry, fields in zip(live["metadata"].get("managedFields", ()), self.fields, strict=False):
            entry["fieldsV1"] = fields
        return live


class Cluster:
    """What is known of the API server's objects."""

    def __init__(self, resources: Iterable[Resource] = WATCHED) -> None:
        self._objects: dict[Resource, dict[Key, _Kept]] = {resource: {} for resource in resources}
        self._tombstones: dict[Resource, dict[Key, int]] = {resource: {} for resource in self._objects}
        self._as_of: dict[Resource, int] = dict.fromkeys(self._objects, -1)
        """Version of the youngest list: what is not younger and was not in it is gone."""
        self._listed: set[Resource] = set()
        self._settled: set[Resource] = set()
        """Kinds that were listed, or that the API server was found to lack."""
        self.completed = asyncio.Event()
        """Set once every kind was listed or found absent; before that absent may mean unknown."""
        self._children: defaultdict[str, dict[tuple[Resource, Key], _Kept]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[Key, _Kept]] = defaultdict(dict)
        self._by_label: dict[Key, PoolRef] = {}
        self._shapes: dict[str, Json] = {}
        """Sets of owned fields, by their text."""

    @property
    def complete(self) -> bool:
        """True once every kind was listed."""
        return self.completed.is_set()

    def pools(self) -> tuple[PoolRef, ...]:
        """Every pool known."""
        return tuple(PoolRef(*key) for key in self._objects[POOLS])

    def has_pool(self, ref: PoolRef) -> bool:
        """True while the pool exists."""
        return (ref.namespace, ref.name) in self._objects[POOLS]

    def observed(self, ref: PoolRef, now_s: float = 0.0) -> Observed | None:
        """The pool with its children and pods; None when there is no such pool.

        Pods that were to have ended long ago are left out: their node is lost, and nobody can end them before it is
        back. They serve nobody, and the room that they hold is nobody's.

        Args:
            ref: which pool.
            now_s: the time, in seconds of the Unix epoch; by default no pod is left out.
        """
        kept = self._objects[POOLS].get((ref.namespace, ref.name))
        if kept is None:
            return None
        pool = kept.read()
        owned = self._children.get(pool["metadata"]["uid"], {})
        labelled = (pod.read() for pod in self._pods.get((ref.namespace, names.label_value(ref.name)), {}).values())
        return Observed(
            ref=ref,
            pool=pool,
            children={ChildKey(resource.kind, key[1]): live.read() for (resource, key), live in owned.items()},
            pods=tuple(pod for pod in labelled if _is_own(ref.name, pod) and left_s(pod, now_s) > 0),
            optional=frozenset(self._listed.intersection(OPTIONAL_RESOURCES)),
        )

    def put(self, resource: Resource, raw: Json) -> PoolRef | None:
        """Takes in an object; returns the pool that it concerns, or None when nothing is new."""
        key = _key(raw)
        return self._take(resource, key, raw) if self._is_new(resource, key, _version(raw)) else None

    def knows(self, resource: Resource, raw: Json) -> bool:
        """True where this state of an object, or a younger one, was taken in; may be asked by any thread."""
        return not self._is_new(resource, _key(raw), _version(raw))

    def _is_new(self, resource: Resource, key: Key, version: int) -> bool:
        known = self._objects[resource].get(key)
        newest = max(self._as_of[resource], self._tombstone(resource, key)) if known is None else known.version
        return version > newest

    def _take(self, resource: Resource, key: Key, raw: Json) -> PoolRef | None:
        known = self._objects[resource].get(key)
        self._forget(resource, key)
        live = self._objects[resource][key] = self._kept(trimmed(resource, raw))
        self._index(resource, key, live)
        # A child that lost its owner still concerns the pool that it was of.
        concerned = self._concerned(resource, key, live)
        return concerned if concerned or known is None else self._concerned(resource, key, known)

    def _kept(self, live: Json) -> _Kept:
        owner = pool_owner(live)
        fields = tuple(self._shared(each.pop("fieldsV1", {})) for each in live["metadata"].get("managedFields", ()))
        of = (owner["uid"], owner["name"]) if owner is not None else None
        return _Kept(_version(live), _pool_label(live), of, _encode(live), fields)

    def _shared(self, fields: Json) -> Json:
        """One copy for all objects that are owned alike, as those of pools mostly are: they are large."""
        if len(self._shapes) > _MOST_SHAPES:
            self._shapes.clear()  # whoever holds one keeps it
        return self._shapes.setdefault(json.dumps(fields), fields)

    def remove(self, resource: Resource, raw: Json) -> PoolRef | None:
        """Takes in a deletion (`raw` is the last state); returns the pool that it concerns."""
        key = _key(raw)
        known = self._objects[resource].get(key)
        if _version(raw) > self._as_of[resource]:
            self._tombstones[resource][key] = max(_version(raw), self._tombstone(resource, key))
        if known is None or known.version > _version(raw):
            return None
        concerned = self._concerned(resource, key, known)
        self._forget(resource, key)
        return concerned

    def replace(
        self, resource: Resource, items: Iterable[Listed], version: int, *, consistent: bool = False
    ) -> set[PoolRef]:
        """Takes in a complete list of a kind, as of `version`; returns the pools that something new concerns.

        A consistent list is as young as its request. When it is older than what is known, the API server's storage was
        put back to an earlier state: then only the list counts.
        """
        concerned: set[PoolRef | None] = set()
        if consistent and version < self._as_of[resource]:
            concerned = {self._concerned(resource, key, known) for key, known in self._objects[resource].items()}
            self._reset(resource)
        youngest = version >= self._as_of[resource]
        present = set()
        for each in items:
            key = (each.namespace, each.name)
            present.add(key)
            missed = youngest and key not in self._objects[resource] and each.version > self._tombstone(resource, key)
            if missed or self._is_new(resource, key, each.version):
                concerned.add(self._take(resource, key, each.read()))
        for key, known in list(self._objects[resource].items()):
            if key not in present and known.version <= version:
                concerned.add(self._concerned(resource, key, known))
                self._forget(resource, key)
        self._as_of[resource] = max(version, self._as_of[resource])
        self._tombstones[resource] = {k: at for k, at in self._tombstones[resource].items() if at > version}
        if resource in OPTIONAL_RESOURCES and resource not in self._listed:
            # What waited for the kind can be made now.
            concerned.update(self.pools())
        self._listed.add(resource)
        self._settle(resource)
        return {ref for ref in concerned if ref is not None}

    def lack(self, resource: Resource) -> set[PoolRef]:
        """Takes in that the API server has no such kind (any more); returns the pools that this concerns."""
        was_there = resource in self._listed
        self._listed.discard(resource)
        self._reset(resource)
        self._settle(resource)
        return set(self.pools()) if was_there else set()

    def _settle(self, resource: Resource) -> None:
        self._settled.add(resource)
        if len(self._settled) == len(self._objects):
            self.completed.set()

    def _tombstone(self, resource: Resource, key: Key) -> int:
        return self._tombstones[resource].get(key, -1)

    def _reset(self, resource: Resource) -> None:
        for key in list(self._objects[resource]):
            self._forget(resource, key)
        self._tombstones[resource] = {}
        self._as_of[resource] = -1

    def _index(self, resource: Resource, key: Key, live: _Kept) -> None:
        if resource is POOLS:
            self._by_label[key[0], names.label_value(key[1])] = PoolRef(*key)
        elif resource is PODS:
            self._pods[key[0], live.label][key] = live
        elif live.owner is not None:
            self._children[live.owner[0]][resource, key] = live

    def _forget(self, resource: Resource, key: Key) -> None:
        known = self._objects[resource].pop(key, None)
        if known is None:
            return
        if resource is POOLS:
            self._by_label.pop((key[0], names.label_value(key[1])), None)
        elif resource is PODS:
            _drop(self._pods, (key[0], known.label), key)
        elif known.owner is not None:
            _drop(self._children, known.owner[0], (resource, key))

    def _concerned(self, resource: Resource, key: Key, live: _Kept) -> PoolRef | None:
        if resource is POOLS:
            return PoolRef(*key)
        if resource is PODS:
            return self._by_label.get((key[0], live.label))
        return PoolRef(key[0], live.owner[1]) if live.owner is not None else None


def pool_owner(live: Json) -> Json | None:
    """The controller ownerReference to a pool of this group; None when there is none.

    Other groups have a kind of the same name: the group decides.
    """
    for reference in live["metadata"].get("ownerReferences", ()):
        group = str(reference.get("apiVersion", "")).partition("/")[0]
        if reference.get("controller") and group == names.GROUP and reference.get("kind") == names.KIND:
            found: Json = reference
            return found
    return None


def _is_own(pool: str, pod: Json) -> bool:
    """True for a pod of a ReplicaSet of the pool's Deployments: labels alone would let anybody's pod count."""
    labels = pod["metadata"].get("labels", {})
    parts = filter(None, (labels.get(names.LABEL_ROLE), labels.get(names.LABEL_REVISION)))
    deployment = names.child_name(pool, *parts)
    return any(
        owner.get("controller") and owner["kind"] == "ReplicaSet" and owner["name"].startswith(f"{deployment}-")
        for owner in pod["metadata"].get("ownerReferences", ())
    )


def left_s(pod: Json, now_s: float) -> float:
    """Seconds after which a pod that is to end is given up; infinite for one that stays."""
    try:
        ends = datetime.fromisoformat(str(pod["metadata"].get("deletionTimestamp", "")))
    except ValueError:
        return math.inf
    return ends.timestamp() + OVERDUE_S - now_s


def trimmed(resource: Resource, raw: Json) -> Json:
    """What is kept of an object."""
    metadata = dict(raw["metadata"])
    entries = metadata.pop("managedFields", ())
    if resource is PODS:
        return {"metadata": metadata, "spec": _pod_spec(raw.get("spec", {})), "status": raw.get("status", {})}
    metadata["managedFields"] = [dict(entry) for entry in entries if entry.get("manager") == names.FIELD_MANAGER]
    if resource is POOLS:
        return {"metadata": metadata, "spec": raw.get("spec", {}), "status": raw.get("status", {})}
    live: Json = {"metadata": metadata}
    if resource is CONTROLLER_REVISIONS:
        live["revision"] = raw.get("revision", 0)
        live["data"] = json.dumps(raw.get("data"))  # as text: what was read of it once is found by it
    if resource is DEPLOYMENTS:
        spec = raw.get("spec", {})
        template = _pod_spec(spec.get("template", {}).get("spec", {}))
        live["spec"] = {
            "replicas": spec.get("replicas"),
            "paused": spec.get("paused", False),
            "limits": template["limits"],
        }
        live["status"] = raw.get("status", {})
    return live


def _pod_spec(spec: Json) -> Json:
    """Where a pod runs, and what it holds there."""
    limits = [container.get("resources", {}).get("limits", {}) for container in spec.get("containers", ())]
    return {"nodeName": spec.get("nodeName", ""), "limits": [each for each in limits if each]}


def _drop(index: defaultdict[Any, dict[Any, _Kept]], outer: Any, inner: Any) -> None:
    index[outer].pop(inner, None)
    if not index[outer]:
        del index[outer]


def _key(raw: Json) -> Key:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def _version(raw: Json) -> int:
    return int(raw["metadata"]["resourceVersion"])


def _pool_label(live: Json) -> str:
    return str(live["metadata"].get("labels", {}).get(names.LABEL_POOL, ""))
