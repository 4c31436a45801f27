"""Writes: server-side apply of what is needed and of nothing else; then one status, and Events of what turned.

Boundary: carries out a `Plan` and says what came of it. Whether a write is needed is decided by `ownership`. Every
write says which life of an object it means (its uid), and the first apply of a child is not forced, so that an object
that somebody else made in the meantime is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import structlog

from pdpool_api import names
from pdpool_operator import ownership, telemetry
from pdpool_operator.announcements import Announcer
from pdpool_operator.kube import ApiError, ConflictError, Kube, NotFoundError, RejectedError
from pdpool_operator.news import news
from pdpool_operator.observe.cluster import Cluster, pool_owner, trimmed
from pdpool_operator.records import (
    CHILD_RESOURCES,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    PODS,
    POOLS,
    REPLICA_SETS,
    Child,
    ChildKey,
    Json,
    Note,
    Observed,
    Outcome,
    Plan,
    Resource,
)

_BY_KIND: Final = {resource.kind: resource for resource in CHILD_RESOURCES}
_TAKE_OVER_TRIES: Final = 5
_ORDER: Final = {resource: place for place, resource in enumerate(CHILD_RESOURCES)}

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Results:
    live: dict[ChildKey, Json] = field(default_factory=dict)
    written: list[ChildKey] = field(default_factory=list)
    conflicts: list[ChildKey] = field(default_factory=list)
    refused: dict[ChildKey, str] = field(default_factory=dict)
    failed: dict[ChildKey, str] = field(default_factory=dict)

    def frozen(self) -> Outcome:
        return Outcome(
            live=self.live,
            written=tuple(sorted(self.written)),
            conflicts=tuple(sorted(self.conflicts)),
            refused=dict(sorted(self.refused.items())),
            failed=dict(sorted(self.failed.items())),
        )


class Writer:
    """The only writer of children and of pool statuses."""

    def __init__(self, kube: Kube, cluster: Cluster) -> None:
        self._kube = kube
        self._cluster = cluster
        self._announcer = Announcer(kube)
        self._same: dict[ChildKey, tuple[Child, tuple[str, str]]] = {}
        """Child, and life of the object, between which no difference was found: most looks find the same again."""
        self._pointless: dict[str, tuple[str, str]] = {}
        """By uid: hash and entry of an apply that changed nothing; it waits until one of them changes."""

    def rest(self) -> None:
        """Forgets what was found to be the same; the next look compares anew."""
        self._same.clear()

    async def refusals(self, observed: Observed, plan: Plan) -> dict[ChildKey, str]:
        """Deployments of the plan that the API server would never take, with its words; nothing is written.

        They hold what a pool's author writes freely. Asked before anything is begun, so that a spec of which one part
        is refused starts no pod of another, and changes nothing that runs.
        """
        deployments = [child for child in plan.apply if child.resource is DEPLOYMENTS]
        words = await asyncio.gather(*(self._refusal(observed, child) for child in deployments))
        return {child.key: said for child, said in zip(deployments, words, strict=True) if said}

    async def with_records(self, observed: Observed) -> Observed:
        """The pool, in whose store no record is although engines run, with the records that there are.

        Without one everything is made as this version makes it: a list that was empty by mistake must not roll a pool.
        """
        kinds = {key.kind for key in observed.children}
        if CONTROLLER_REVISIONS.kind in kinds or DEPLOYMENTS.kind not in kinds:
            return observed
        selector = f"{names.LABEL_POOL}={names.label_value(observed.ref.name)}"
        listing = await self._kube.list_all(CONTROLLER_REVISIONS, observed.ref.namespace, selector)
        found = {
            ChildKey(CONTROLLER_REVISIONS.kind, each["metadata"]["name"]): trimmed(CONTROLLER_REVISIONS, each)
            for each in listing.items
            if _owned(each, observed.uid)
        }
        return replace(observed, children={**observed.children, **found})

    async def _refusal(self, observed: Observed, child: Child) -> str:
        live = observed.children.get(child.key)
        if self._is_same(child, live):
            return ""
        body = _body(child)
        if live is not None and ownership.was_applied(body, live):
            return ""  # taken once already
        try:
            await self._kube.apply(
                child.resource, observed.ref.namespace, _meant(body, live), force=live is not None, dry_run=True
            )
        except RejectedError as fault:
            return fault.words
        except ApiError:
            return ""  # the write itself will tell
        return ""

    async def carry_out(self, observed: Observed, plan: Plan) -> Outcome:
        """Applies and deletes what the plan says; faults are in the outcome, none is raised."""
        results = _Results(live=dict(observed.children))
        keys = {child.key for child in plan.apply}
        for key in self._same.keys() - keys:
            del self._same[key]
        ordered = sorted(plan.apply, key=lambda child: (_ORDER[child.resource], child.name))
        for _, stage in groupby(ordered, key=lambda child: child.resource):
            await asyncio.gather(*(self._child(observed, child, results) for child in stage))
        await asyncio.gather(*(self._adjust(observed, key, fields, results) for key, fields in plan.adjust.items()))
        await asyncio.gather(*(self._undo(observed, key, template, results) for key, template in plan.undo.items()))
        await asyncio.gather(*(self._note(observed, note, results) for note in plan.notes))
        await asyncio.gather(*(self._delete(observed, key, results) for key in plan.delete))
        return results.frozen()

    async def _adjust(self, observed: Observed, key: ChildKey, fields: Json, results: _Results) -> None:
        """Sets single fields of a Deployment whose whole body nobody knows any more."""
        live = observed.children[key]
        if "deletionTimestamp" in live["metadata"]:
            return
        try:
            stored = await self._kube.adjust(DEPLOYMENTS, live, {"spec": fields})
        except NotFoundError:
            return
        except ApiError as fault:
            results.failed[key] = str(fault)
            return
        _log.info("adjusted", pool=str(observed.ref), child=str(key), replicas=fields.get("replicas"))
        telemetry.CHILD_WRITES.inc()
        self._cluster.put(DEPLOYMENTS, stored)
        results.written.append(key)
        results.live[key] = stored

    async def _undo(self, observed: Observed, key: ChildKey, template: str, results: _Results) -> None:
        """Puts a Deployment back to the template of one of its ReplicaSets, and lets it go on."""
        namespace = observed.ref.namespace
        try:
            live = await self._kube.get(DEPLOYMENTS, namespace, key.name)
            earlier = await self._kube.get(REPLICA_SETS, namespace, f"{key.name}-{template}")
            if live is None or earlier is None or not _is_controlled(earlier, live):
                return  # the next look sees it
            back = _without_hash(earlier["spec"]["template"])
            strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
            patch = {
                "metadata": {"annotations": {names.ANNOTATION_UNDONE: str(live["metadata"]["generation"] + 1)}},
                "spec": {
                    "paused": False,
                    "strategy": strategy,
                    "template": ownership.merge_patch(live["spec"]["template"], back),
                },
            }
            stored = await self._kube.adjust(DEPLOYMENTS, live, patch)
        except NotFoundError:
            return
        except ApiError as fault:
            results.failed[key] = str(fault)
            return
        _log.info("taken back", pool=str(observed.ref), child=str(key), template=template)
        telemetry.CHILD_WRITES.inc()
        self._cluster.put(DEPLOYMENTS, stored)
        results.written.append(key)
        results.live[key] = stored

    async def _note(self, observed: Observed, note: Note, results: _Results) -> None:
        """Marks one pod, or takes its mark off."""
        pod = {"metadata": {"namespace": observed.ref.namespace, "name": note.name, "uid": note.uid}}
        try:
            stored = await self._kube.adjust(PODS, pod, {"metadata": {"annotations": dict(note.annotations)}})
        except NotFoundError:
            return
        except ApiError as fault:
            results.failed[ChildKey(PODS.kind, note.name)] = str(fault)
            return
        _log.info("marked", pool=str(observed.ref), pod=note.name, annotations=dict(note.annotations))
        self._cluster.put(PODS, stored)

    async def _child(self, observed: Observed, child: Child, results: _Results) -> None:
        try:
            live = await self._apply(observed, child, results)
        except ConflictError as fault:
            # Not owned, deleted, or re-made since it was looked at: the next look tells which.
            results.failed[child.key] = str(fault)
        except RejectedError as fault:
            results.refused[child.key] = fault.words
        except ApiError as fault:
            results.failed[child.key] = str(fault)
        else:
            if live is not None:
                results.live[child.key] = live

    async def _apply(self, observed: Observed, child: Child, results: _Results) -> Json | None:
        namespace = observed.ref.namespace
        live = observed.children.get(child.key)
        if self._is_same(child, live):
            return live
        body = _body(child)
        if live is None:
            # Watches see only objects with our labels: another's object of this name shows itself only here.
            live = await self._kube.get(child.resource, namespace, child.name)
            if live is not None and not (_owned(live, observed.uid) or ownership.was_applied(body, live)):
                if _of_earlier_life(live, observed):
                    results.failed[child.key] = "is of a deleted pool of this name, and goes with it"
                else:
                    results.conflicts.append(child.key)
                return None
        if live is not None and "deletionTimestamp" in live["metadata"]:
            results.failed[child.key] = "is being deleted"
            return live
        why = ownership.difference(body, live)
        if live is not None and not why:
            self._same[child.key] = child, _life(live)
        if not why or (live is not None and self._pointless.get(live["metadata"]["uid"]) == _mark(body, live)):
            return live
        stored = await self._write(child, namespace, body, live)
        _log.info("applied", pool=str(observed.ref), child=str(child.key), why=why)
        results.written.append(child.key)
        return stored

    def _is_same(self, child: Child, live: Json | None) -> bool:
        known = self._same.get(child.key)
        return known is not None and live is not None and known[1] == _life(live) and known[0] == child

    async def _write(self, child: Child, namespace: str, body: Json, live: Json | None) -> Json:
        meant = _meant(body, live)
        if live is not None and ownership.was_applied(body, live):
            await self._take_over(child.resource, namespace, meant)
        stored = await self._kube.apply(child.resource, namespace, meant, force=live is not None)
        telemetry.CHILD_WRITES.inc()
        if live is not None and stored["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]:
            self._pointless[live["metadata"]["uid"]] = _mark(body, live)
        self._cluster.put(child.resource, stored)
        return stored

    async def _take_over(self, resource: Resource, namespace: str, meant: Json) -> None:
        """Makes items that others put in the place of ours our own, so that the next apply removes them.

        Whoever changes the key of a list's item, as the number of a port or the name of a container, takes ours away
        and leaves one of theirs: an apply alone would put ours beside it, and the two may exclude each other.
        """
        for _ in range(_TAKE_OVER_TRIES):
            live = await self._kube.get(resource, namespace, meant["metadata"]["name"])
            if live is None or live["metadata"]["uid"] != meant["metadata"]["uid"]:
                return
            entries = ownership.taken_over(meant, live)
            if entries is None:
                return
            with contextlib.suppress(ConflictError):  # its controller was faster
                await self._kube.set_managed_fields(resource, live, entries)
                return

    async def _delete(self, observed: Observed, key: ChildKey, results: _Results) -> None:
        live = observed.children[key]
        if "deletionTimestamp" in live["metadata"]:
            return
        resource: Resource = _BY_KIND[key.kind]
        try:
            await self._kube.delete(resource, observed.ref.namespace, key.name, uid=live["metadata"]["uid"])
        except ApiError as fault:
            results.failed[key] = str(fault)
            return
        _log.info("deleted", pool=str(observed.ref), child=str(key))
        telemetry.CHILD_WRITES.inc()
        results.written.append(key)
        results.live.pop(key, None)

    async def report(self, observed: Observed, status: Json) -> bool:
        """Writes the status of the pool if it differs from the live one, and tells what is new in it.

        False when the pool changed meanwhile: then nothing was written, and nothing is told.
        """
        if not status_differs(observed.pool, status):
            return True
        metadata = {
            "name": observed.ref.name,
            "namespace": observed.ref.namespace,
            # On a status a foreign uid is accepted silently: only the version tells one life of a pool from the next.
            "resourceVersion": observed.pool["metadata"]["resourceVersion"],
        }
        body = {"apiVersion": POOLS.api_version, "kind": POOLS.kind, "metadata": metadata, "status": status}
        try:
            stored = await self._kube.apply(POOLS, observed.ref.namespace, body, force=True, subresource="status")
        except ConflictError:
            return False
        except NotFoundError:
            return True
        self._cluster.put(POOLS, stored)
        for each in turns(observed.pool, status):
            said = {name: each.get(name, "") for name in ("type", "status", "reason", "message")}
            _log.info("condition", pool=str(observed.ref), **said)
        await self._announcer.tell(stored, news(observed.pool.get("status") or {}, status))
        return True


def _life(live: Json) -> tuple[str, str]:
    """Uid and version: what no other state of any object has."""
    return live["metadata"]["uid"], live["metadata"]["resourceVersion"]


def turns(pool: Json, status: Json) -> list[Json]:
    """The conditions of `status` whose status or reason is not what the pool says so far."""
    live = _conditions(pool)
    return [
        each
        for each in status["conditions"]
        if any(each[name] != live.get(each["type"], {}).get(name) for name in ("status", "reason"))
    ]


def status_differs(pool: Json, status: Json) -> bool:
    """True when the live status lacks something of `status`, or holds something that we wrote and no longer say."""
    live = pool.get("status") or {}
    conditions = _conditions(pool)
    for name, value in status.items():
        if name != "conditions" and live.get(name) != value:
            return True
    if any(conditions.get(each["type"]) != each for each in status["conditions"]):
        return True
    owned = ownership.entry(pool, "status")
    return owned is None or bool(ownership.mismatch(owned, {"status": status}))


def _of_earlier_life(live: Json, observed: Observed) -> bool:
    """True for a child of a pool of this name that was deleted a moment ago: the garbage collector is on its way."""
    owner = pool_owner(live)
    return owner is not None and owner["name"] == observed.ref.name


def _body(child: Child) -> Json:
    return ownership.stamped(ownership.without_none(child.body))


def _meant(body: Json, live: Json | None) -> Json:
    """The body for exactly this life of the object, when there is one."""
    return body if live is None else {**body, "metadata": {**body["metadata"], "uid": live["metadata"]["uid"]}}


def _is_controlled(replica_set: Json, deployment: Json) -> bool:
    return any(
        owner.get("controller") and owner["uid"] == deployment["metadata"]["uid"]
        for owner in replica_set["metadata"].get("ownerReferences", ())
    )


def _without_hash(template: Json) -> Json:
    """The template of a ReplicaSet as its Deployment has it."""
    metadata = template["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != "pod-template-hash"}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _conditions(pool: Json) -> dict[str, Json]:
    return {each["type"]: each for each in (pool.get("status") or {}).get("conditions", ())}


def _mark(body: Json, live: Json) -> tuple[str, str]:
    return ownership.digest(body), ownership.digest(ownership.entry(live) or {})


def _owned(live: Json, uid: str) -> bool:
    owner = pool_owner(live)
    return owner is not None and owner["uid"] == uid
