"""Rolls pods when something that they took from outside their template has changed, and only then.

Engines: the value of a Secret that a variable comes from. Routers: the ServiceAccount, whose tokens are worth nothing
once it was deleted, also when one of the same name is made.

Boundary: pure; values are never seen here, only keyed digests (`observe.secrets`). What was seen last stands on the
live Deployment, so that a restart or an upgrade of the operator, a new digest key, or a namespace whose Secrets may be
read from now on rolls nothing: pods are rolled by a change, not by an appearance.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names
from pdpool_operator.records import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICE_ACCOUNTS,
    Child,
    ChildKey,
    Desired,
    Json,
    Observed,
    Reference,
    SecretEntry,
    SecretsSeen,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PARTS: Final = ("engine", "prefill", "decode")
_TEMPLATES: Final = ("prefill", "decode", "router")


def references(pool: Json) -> frozenset[SecretEntry]:
    """Entries of Secrets that the pool's engines take variables from, and whole Secrets that they mount."""
    spec = pool["spec"]
    token = spec["model"].get("tokenSecretRef")
    return frozenset(
        [
            *([SecretEntry(token["name"], token["key"])] if token else []),
            *_of_variables(_variables(spec)),
            *_of_volumes(each for part in _PARTS for each in _volumes(spec.get(part) or {})),
        ]
    )


def objects(pool: Json) -> frozenset[Reference]:
    """ConfigMaps, PersistentVolumeClaims and ServiceAccounts without which a pod of the pool does not start."""
    spec = pool["spec"]
    parts = [spec.get(part) or {} for part in _TEMPLATES]
    accounts = [(part.get("template") or {}).get("serviceAccountName") for part in parts]
    volumes = [spec["model"].get("cache") or {}, *(each for part in parts for each in _volumes(part))]
    return frozenset(
        [
            *(Reference(SERVICE_ACCOUNTS.kind, str(name)) for name in accounts if name),
            *_of_claims(volumes),
            *_of_config_maps(volumes),
            *_of_config_map_keys(_variables(spec)),
        ]
    )


def is_on(pool: Json) -> bool:
    """True where a new value of a Secret rolls the pods that use it."""
    return bool((pool["spec"].get("engine") or {}).get("secretRotation", "Roll") == "Roll")


def stamped(desired: Desired, observed: Observed) -> Desired:
    """The children with what was seen of their Secrets; a change rolls the pods of the Deployments that it concerns."""
    seen = observed.secrets
    if seen is None:
        # Not looked at: what stands on the live Deployments is kept, as taking it off would roll them.
        seen = SecretsSeen()
    children = tuple(_stamped(child, observed, seen) for child in desired.children)
    words = "; ".join(filter(None, (desired.unchecked, seen.unwatched)))
    return replace(desired, children=children, unchecked=words)


def _stamped(child: Child, observed: Observed, seen: SecretsSeen) -> Child:
    if child.resource is not DEPLOYMENTS:
        return child
    live = observed.children.get(child.key, {}).get("metadata", {})
    if child.role in names.ENGINE_ROLES:
        return _marked(child, live.get("annotations", {}), _digest(child, seen))
    account = _account(child, live, observed)
    return _with_pods(child, {names.ANNOTATION_ACCOUNT: account}) if account else child


def _marked(child: Child, live: Json, now: str) -> Child:
    """The Deployment with what was seen (empty: nothing was), and its pods with the last change that rolled them."""
    before, rolled = live.get(names.ANNOTATION_SECRETS, ""), live.get(names.ANNOTATION_SECRETS_ROLLED, "")
    now = now or before
    if before and now != before and _key(now) == _key(before):
        rolled = now
    marks = {names.ANNOTATION_SECRETS: now, names.ANNOTATION_SECRETS_ROLLED: rolled}
    marked = replace(child, body=_annotated(child.body, {name: value for name, value in marks.items() if value}))
    return _with_pods(marked, {names.ANNOTATION_SECRETS_ROLLED: rolled}) if rolled else marked


def _account(child: Child, live: Json, observed: Observed) -> str:
    """Identity of the live ServiceAccount, where it is one of ours and younger than the Deployment.

    The first account is made before the Deployment, so a younger one has taken its place.
    """
    name = child.body["spec"]["template"]["spec"]["serviceAccountName"]
    account = observed.children.get(ChildKey(SERVICE_ACCOUNTS.kind, name), {}).get("metadata", {})
    is_younger = account.get("creationTimestamp", "") > live.get("creationTimestamp", "9999")
    return str(account["uid"]) if is_younger else ""


def _with_pods(child: Child, marks: Json) -> Child:
    template = _annotated(child.body["spec"]["template"], marks)
    return replace(child, body={**child.body, "spec": {**child.body["spec"], "template": template}})


def _digest(child: Child, seen: SecretsSeen) -> str:
    """`<key's id>.<digest>` of all entries that the child's pods use; empty: none, or one is not known."""
    variables = (each for container in _containers(child) for each in container.get("env", ()))
    wanted = sorted(set(_of_variables(variables)))
    known = [seen.digests.get(each) for each in wanted]
    if not known or None in known:
        return ""
    words = "\n".join(f"{each.name} {each.key} {digest}" for each, digest in zip(wanted, known, strict=True))
    return f"{seen.key_id}.{hashlib.sha256(words.encode()).hexdigest()[:32]}"


def _key(mark: str) -> str:
    """The id of the digest key; marks made with different keys say nothing about each other."""
    return mark.partition(".")[0]


def _annotated(holder: Json, marks: Json) -> Json:
    metadata = holder["metadata"]
    annotations = {**metadata.get("annotations", {}), **marks}
    return {**holder, "metadata": {**metadata, "annotations": annotations}} if annotations else holder


def _containers(child: Child) -> list[Json]:
    found: list[Json] = child.body["spec"]["template"]["spec"]["containers"]
    return found


def _of_variables(variables: Iterable[Any]) -> Iterator[SecretEntry]:
    for each in variables:
        source = (each.get("valueFrom") or {}).get("secretKeyRef")
        if source:
            yield SecretEntry(str(source.get("name", "")), str(source["key"]), optional=bool(source.get("optional")))


def _volumes(part: Json) -> list[Json]:
    found: list[Json] = (part.get("template") or {}).get("volumes", [])
    return found


def _variables(spec: Json) -> list[Json]:
    return [each for part in _PARTS for each in (spec.get(part) or {}).get("env", ())]


def _of_volumes(volumes: Iterable[Json]) -> Iterator[SecretEntry]:
    for each in volumes:
        source = each.get("secret") or {}
        found = [(source.get("secretName"), source), *((one.get("name"), one) for one in _projected(each, "secret"))]
        for name, one in found:
            if name:
                yield SecretEntry(str(name), "", optional=bool(one.get("optional")))


def _of_claims(volumes: Iterable[Json]) -> Iterator[Reference]:
    for each in volumes:
        name = (each.get("persistentVolumeClaim") or {}).get("claimName")
        if name:
            yield Reference(CLAIMS.kind, str(name))


def _of_config_maps(volumes: Iterable[Json]) -> Iterator[Reference]:
    """Mounted ConfigMaps, and the entries of them that are asked for by name."""
    for volume in volumes:
        for source in (volume.get("configMap") or {}, *_projected(volume, "configMap")):
            if source.get("name") and not source.get("optional"):
                for key in ("", *(each["key"] for each in source.get("items") or ())):
                    yield Reference(CONFIG_MAPS.kind, str(source["name"]), str(key))


def _of_config_map_keys(variables: Iterable[Json]) -> Iterator[Reference]:
    for each in variables:
        source = (each.get("valueFrom") or {}).get("configMapKeyRef") or {}
        if source.get("name") and not source.get("optional"):
            yield Reference(CONFIG_MAPS.kind, str(source["name"]), str(source["key"]))


def _projected(volume: Json, kind: str) -> list[Json]:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return [each[kind] for each in sources if each.get(kind)]
