"""Which change of a Secret rolls which pods, and what rolls nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from pdpool_api import names
from pdpool_api.pool import InferencePool
from pdpool_operator import build, rotation
from pdpool_operator.records import ChildKey, Desired, Images, Observed, PoolRef, SecretEntry, SecretsSeen

Json = dict[str, Any]
IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="pdpool-router:1")
TOKEN = SecretEntry("hf", "HF_TOKEN")
OTHER = SecretEntry("other", "k")


def pool(raw: Json, **spec: Any) -> Json:
    found = copy.deepcopy(raw)
    found["spec"] |= {"model": {**raw["spec"]["model"], "tokenSecretRef": {"name": "hf", "key": "HF_TOKEN"}}, **spec}
    return found


def step(raw: Json, live: Json, seen: SecretsSeen | None) -> tuple[Json, Json]:
    """One reconcile: the annotations on Deployments, and those of their pods, by role; `live` is what was applied."""
    desired = build.desired(InferencePool.parse(raw), IMAGES)
    assert isinstance(desired, Desired)
    children = {ChildKey("Deployment", name): {"metadata": {"annotations": notes}} for name, notes in live.items()}
    observed = Observed(PoolRef("serving", "tiny"), raw, children, secrets=seen)
    engines = [each for each in rotation.stamped(desired, observed).children if each.revision]
    notes = {each.name: each.body["metadata"].get("annotations", {}) for each in engines}
    templates = {each.name: each.body["spec"]["template"]["metadata"].get("annotations", {}) for each in engines}
    return notes, templates


def seen(value: str = "v1", key: str = "k1", **more: Any) -> SecretsSeen:
    return SecretsSeen(key, {TOKEN: value}, **more)


def test_a_new_value_rolls_and_nothing_else_does(raw_pool: Json) -> None:
    """The first sight, a restart, another key, a Secret that is away for a while: no roll. A new value: one roll."""
    raw = pool(raw_pool)
    notes, templates = step(raw, {}, seen())
    assert not any(templates.values()), "the first sight is no change"
    assert all(each[names.ANNOTATION_SECRETS].startswith("k1.") for each in notes.values())
    assert step(raw, notes, seen()) == (notes, templates)
    away = SecretsSeen("k1", {}, missing=("Secret hf",))
    for harmless in (None, away, seen("v1", "k2"), SecretsSeen(unwatched="may not")):
        assert not any(step(raw, notes, harmless)[1].values())
    rolled, marked = step(raw, notes, seen("v2"))
    assert all(each[names.ANNOTATION_SECRETS_ROLLED] for each in marked.values())
    for harmless in (seen("v2"), None, away, seen("v2", "k2"), seen("v9", "k2")):
        assert step(raw, rolled, harmless)[1] == marked, "what was rolled once is not rolled back"
    again = step(raw, step(raw, rolled, seen("v2", "k2"))[0], seen("v3", "k2"))[1]
    assert set(map(str, again.values())).isdisjoint(map(str, marked.values())), "with a new key changes are seen again"


def test_only_the_role_that_uses_it_rolls(raw_pool: Json) -> None:
    """A Secret of one role's variables rolls that role alone; the router never."""
    source = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}
    raw = pool(raw_pool, decode={"hardware": "cpu", "env": [source]})
    both = {TOKEN: "a", OTHER: "b"}
    notes, _ = step(raw, {}, SecretsSeen("k1", both))
    _, templates = step(raw, notes, SecretsSeen("k1", {**both, OTHER: "c"}))
    assert [bool(each) for name, each in sorted(templates.items())] == [True, False]
    _, templates = step(raw, notes, SecretsSeen("k1", {**both, TOKEN: "c"}))
    assert all(templates.values())


def test_references_are_those_of_engines(raw_pool: Json) -> None:
    """Token, variables of both levels and mounted Secrets, optional ones too."""
    source = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k", "optional": True}}}
    projected = {"sources": [{"secret": {"name": "keys"}}, {"serviceAccountToken": {"path": "t"}}]}
    volumes = [
        {"name": "a", "secret": {"secretName": "certificates"}},
        {"name": "b", "projected": projected},
        {"name": "c", "emptyDir": {}},
    ]
    raw = pool(
        raw_pool,
        engine={"env": [source, {"name": "PLAIN", "value": "x"}]},
        decode={"template": {"volumes": volumes}},
    )
    mounted = {SecretEntry("certificates", ""), SecretEntry("keys", "")}
    assert rotation.references(raw) == {TOKEN, replace(OTHER, optional=True), *mounted}


def test_objects_are_those_that_pods_need(raw_pool: Json) -> None:
    """Claims, ConfigMaps as volumes and variables, ServiceAccounts, of engines and routers; nothing optional (Q15)."""
    variables = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "perhaps", "key": "b", "optional": True}}},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    engines = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "logs"}},
        {"name": "b", "configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"name": "c", "configMap": {"name": "perhaps", "optional": True}},
        {"name": "d", "projected": {"sources": [{"configMap": {"name": "part"}}, {"downwardAPI": {}}]}},
    ]
    raw = pool(
        raw_pool,
        engine={"env": variables},
        decode={"template": {"volumes": engines}},
        prefill={"template": {"serviceAccountName": "runner"}},
        router={"template": {"volumes": [{"name": "x", "configMap": {"name": "of-router"}}]}},
    )
    raw["spec"]["model"]["cache"] = {"persistentVolumeClaim": {"claimName": "models"}}
    assert {each.words for each in rotation.objects(raw)} == {
        "PersistentVolumeClaim models",
        "PersistentVolumeClaim logs",
        "ConfigMap ca",
        "key ca.crt of ConfigMap ca",
        "ConfigMap part",
        "ConfigMap of-router",
        "key a of ConfigMap settings",
        "ServiceAccount runner",
    }


def test_ignored_secrets_keep_what_stands_on_live_pods(raw_pool: Json) -> None:
    """Without rotation the mark of the last change stays: taking it off would roll."""
    source = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k", "optional": True}}}
    raw = pool(raw_pool, engine={"env": [source]})
    ignored = pool(raw_pool, engine={"secretRotation": "Ignore"})
    assert rotation.is_on(raw)
    assert not rotation.is_on(ignored)
    rolled = step(raw, step(raw, {}, SecretsSeen("k", {TOKEN: "1", replace(OTHER, optional=True): "1"}))[0],
                  SecretsSeen("k", {TOKEN: "2", replace(OTHER, optional=True): "1"}))  # fmt: skip
    for seen in (None, SecretsSeen(missing=("Secret hf",))):
        assert step(ignored, rolled[0], seen)[1] == rolled[1]


@pytest.mark.parametrize("unwatched", ["", "may not"])
def test_what_is_not_watched_is_said(raw_pool: Json, unwatched: str) -> None:
    """The words stand beside what else could not be checked."""
    desired = build.desired(InferencePool.parse(raw_pool), IMAGES)
    assert isinstance(desired, Desired)
    observed = Observed(PoolRef("s", "tiny"), raw_pool, {}, secrets=SecretsSeen(unwatched=unwatched))
    said = rotation.stamped(replace(desired, unchecked="size unknown"), observed).unchecked
    assert said == ("size unknown; may not" if unwatched else "size unknown")


EARLY, LATE, LATEST = (f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3))


@pytest.mark.parametrize(
    ("account", "deployment", "rolls"),
    [
        (None, None, False),
        (EARLY, None, False),
        (EARLY, EARLY, False),
        (EARLY, LATE, False),
        (LATE, EARLY, True),
        (LATEST, EARLY, True),
        (None, EARLY, False),
    ],
)
def test_a_new_service_account_rolls_the_router_alone(
    raw_pool: Json,
    account: str | None,
    deployment: str | None,
    rolls: bool,  # noqa: FBT001 - a column
) -> None:
    """Tokens of a deleted account are worth nothing, though one of its name is made; the first one rolls nothing."""
    desired = build.desired(InferencePool.parse(raw_pool), IMAGES)
    assert isinstance(desired, Desired)
    live: Json = {}
    if deployment:
        live[ChildKey("Deployment", "tiny-router")] = {"metadata": {"creationTimestamp": deployment}}
    if account:
        live[ChildKey("ServiceAccount", "tiny-router")] = {"metadata": {"creationTimestamp": account, "uid": account}}
    found = rotation.stamped(desired, Observed(PoolRef("serving", "tiny"), raw_pool, live))
    deployments = [each for each in found.children if each.resource.kind == "Deployment"]
    marks = {each.name: each.body["spec"]["template"]["metadata"].get("annotations") for each in deployments}
    assert marks.pop("tiny-router") == ({names.ANNOTATION_ACCOUNT: account} if rolls else None)
    assert not any(marks.values())
    assert not any("annotations" in each.body["metadata"] for each in deployments)
