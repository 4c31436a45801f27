"""Engine pods keep the recipe that they were made by, until an edit of the spec asks for others."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pdpool_api.names import Role
from pdpool_operator.build import recipes
from pdpool_operator.reconcile import VERSION, next_plan
from pdpool_operator.records import ChildKey, Images, Observed, Plan, PoolRef, Recipe
from tests.operator import other_version

OLD, NEW = (
    Images(engine="vllm/vllm-openai:v0.33.0", router="r:1"),
    Images(engine="vllm/vllm-openai:v0.34.0", router="r:2"),
)
KINDS = sorted(other_version.differences())
Json = dict[str, Any]


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the operator another version, in some or (nothing named) in all respects."""

    def become(*kinds: str) -> None:
        for kind, (module, name, other) in other_version.differences().items():
            if not kinds or any(kind.endswith(each) for each in kinds):
                monkeypatch.setattr(module, name, other)

    return become


def planned(raw: Json, images: Images, *before: Plan) -> Plan:
    """The next step where what was applied `before` is there."""
    raw, children = copy.deepcopy(raw), {}
    for child in (child for plan in before for child in plan.apply):
        live: Json = {"metadata": {**child.body["metadata"], "generation": 1}}
        if child.resource.kind == "ControllerRevision":
            live |= {"revision": child.body["revision"], "data": json.dumps(child.body["data"])}
        if child.resource.kind == "Deployment":
            live["spec"] = {"replicas": child.body["spec"]["replicas"]}
            live["status"] = {"observedGeneration": 1, "readyReplicas": child.body["spec"]["replicas"]}
        children[ChildKey(child.resource.kind, child.name)] = live
    return next_plan(Observed(PoolRef("serving", "tiny"), raw, children), images)


def templates(plan: Plan) -> dict[Role, tuple[str, Json]]:
    """Revision and pod template by engine role, as they are written."""
    engines = [child for child in plan.apply if child.revision]
    return {child.role: (child.name, json.loads(json.dumps(_bare(child.body)))) for child in engines if child.role}


def _bare(body: Json) -> Any:
    return _without_none({"labels": body["metadata"]["labels"], **body["spec"]})


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def recipe(plan: Plan) -> Recipe:
    assert plan.desired is not None
    assert plan.desired.recipe is not None
    return plan.desired.recipe


def _inputs(plan: Plan) -> str:
    assert plan.desired is not None
    return plan.desired.mode_inputs


def edited(raw: Json, **spec: Any) -> Json:
    found = copy.deepcopy(raw)
    for name, value in spec.items():
        found["spec"][name] = {**found["spec"].get(name, {}), **value} if isinstance(value, dict) else value
    return found


@pytest.mark.parametrize("kind", [*KINDS, "everything"])
@pytest.mark.parametrize("mode", ["Disaggregated", "Aggregated", "Auto"])
def test_another_operator_alone_changes_no_engine(raw_pool: Json, upgraded: Any, kind: str, mode: str) -> None:
    """Whatever another version would do in another way, engine Deployments are as they were, and the record too."""
    raw_pool["spec"]["mode"] = mode
    if mode == "Aggregated":
        del raw_pool["spec"]["prefill"]
    before = planned(raw_pool, OLD)
    upgraded(*([kind] if kind != "everything" else []))
    fresh, after = planned(raw_pool, NEW), planned(raw_pool, NEW, before)
    if kind not in {"inputs", "remembered inputs", "rule"} or mode == "Auto":
        assert fresh.desired is not None
        assert (templates(fresh), fresh.desired.mode_inputs) != (templates(before), _inputs(before))
    assert templates(after) == templates(before)
    assert recipe(after) == recipe(before)
    assert after.desired is not None
    assert before.desired is not None
    assert after.desired.revision == before.desired.revision
    assert not after.superseded
    assert not after.delete


def test_a_newer_schema_with_more_defaults_changes_no_engine(raw_pool: Json, upgraded: Any) -> None:
    """The API server fills in the defaults of a newer schema into pools that were stored before it."""
    before = planned(raw_pool, OLD)
    upgraded()
    raw_pool["spec"]["engine"] = {"name": "VLLM", "imagePullPolicy": "IfNotPresent", "startupTimeoutSeconds": 1800}
    after = planned(raw_pool, NEW, before)
    assert templates(after) == templates(before)


@pytest.mark.parametrize(
    "edit",
    [
        {"decode": {"replicas": 3}},
        {"maxGpus": 8},
        {"decode": {"rollout": {"maxSurge": 1, "maxUnavailable": 1}}},
        {"decode": {"disruptionBudget": {"maxUnavailable": 2}}},
        {"router": {"replicas": 1, "drainSeconds": 9}},
        {"monitoring": {"podMonitor": True}},
        {"workload": {"promptTokens": {"p50": 1, "p99": 2}}},
        {"engine": {"image": OLD.engine}},
    ],
    ids=repr,
)
def test_an_edit_that_asks_for_no_other_pods_changes_none(raw_pool: Json, upgraded: Any, edit: Json) -> None:
    """Sizes, the router and what else stands outside of pods are edited without taking up the newer recipe.

    So does an image that is named and is the one that runs.
    """
    before = planned(raw_pool, OLD)
    upgraded()
    after = planned(edited(raw_pool, **edit), NEW, before)
    kept = {role: (name, each["template"]) for role, (name, each) in templates(after).items()}
    assert kept == {role: (name, each["template"]) for role, (name, each) in templates(before).items()}
    assert recipe(after).roles == recipe(before).roles


def test_an_edit_of_one_role_rolls_that_role_alone_after_an_upgrade(raw_pool: Json, upgraded: Any) -> None:
    """Where both versions call the revision the same, the role that is edited takes up the newer recipe.

    The default image is none of its own: prefill and decode must share it.
    """
    before = planned(raw_pool, OLD)
    upgraded("arguments", "version")
    raw = edited(raw_pool, decode={"env": [{"name": "X", "value": "1"}]})
    after = planned(raw, NEW, before)
    assert templates(after)[Role.PREFILL] == templates(before)[Role.PREFILL]
    assert after.desired is not None
    assert before.desired is not None
    assert after.desired.revision == before.desired.revision
    (container,) = templates(after)[Role.DECODE][1]["template"]["spec"]["containers"]
    assert container["image"] == OLD.engine
    assert container["args"][-1] == "--a-new-flag"
    assert {role: each.operator for role, each in recipe(after).roles.items()} == {
        Role.PREFILL: VERSION,
        Role.DECODE: "9.9.9",
    }


@pytest.mark.parametrize(
    "edit",
    [
        {"model": {"revision": "v2"}},
        {"engine": {"env": [{"name": "X", "value": "1"}]}},
        {"decode": {"env": [{"name": "X", "value": "1"}]}},
    ],
    ids=repr,
)
def test_an_edit_that_rolls_all_takes_up_the_newer_recipe(raw_pool: Json, upgraded: Any, edit: Json) -> None:
    """A change of what the roles share, or of both, is made as a new pool would be.

    So is a change of one role where the newer operator calls what runs by another name: its pods would not pair with
    those of before.
    """
    before = planned(raw_pool, OLD)
    upgraded()
    raw = edited(raw_pool, **edit)
    after, fresh = planned(raw, NEW, before), planned(raw, NEW)
    assert {name for name, _ in templates(after).values()} == {name for name, _ in templates(fresh).values()}
    assert recipe(after) == recipe(fresh)
    assert all(each.operator == "9.9.9" for each in recipe(after).roles.values())


def test_an_image_that_is_not_named_any_more_is_the_default_of_today(raw_pool: Json) -> None:
    """Taking the image out of the spec is an edit: the pool follows the operator from then on."""
    raw_pool["spec"]["engine"] = {"image": "mine:1"}
    before = planned(raw_pool, OLD)
    del raw_pool["spec"]["engine"]
    after = planned(raw_pool, NEW, before)
    (container,) = templates(after)[Role.DECODE][1]["template"]["spec"]["containers"]
    assert container["image"] == NEW.engine


def test_a_pool_that_a_newer_operator_refuses_keeps_what_runs(raw_pool: Json) -> None:
    """The default image of before is not supported any more: nothing is rolled onto the one of today."""
    before = planned(raw_pool, Images(engine="vllm/vllm-openai:v0.33.0", router="r"))
    old = recipe(before)
    record = next(child for child in before.apply if child.resource.kind == "ControllerRevision")
    data = json.loads(json.dumps(record.body["data"]).replace("v0.33.0", "v0.29.0"))
    live = {"metadata": record.body["metadata"], "data": json.dumps(data)}
    observed = Observed(PoolRef("serving", "tiny"), raw_pool, {record.key: live})
    after = next_plan(observed, NEW)
    assert after.refusal is not None
    assert after.refusal.reason == "UnsupportedVersion"
    assert not after.apply
    assert old.engine_image == "vllm/vllm-openai:v0.33.0"


def test_what_is_applied_after_an_upgrade_is_the_same_to_the_last_field(raw_pool: Json, upgraded: Any) -> None:
    """No field of an engine Deployment differs: nothing is written, and drift is corrected towards the recipe."""
    before = planned(raw_pool, OLD)
    upgraded("arguments", "shape", "version")
    after = planned(raw_pool, NEW, before)
    bodies = [[_without_none(child.body) for child in plan.apply if child.revision] for plan in (before, after)]
    assert json.dumps(bodies[0], sort_keys=True) == json.dumps(bodies[1], sort_keys=True)


def test_a_revert_amid_a_rollout_after_an_upgrade_returns_to_what_serves(raw_pool: Json, upgraded: Any) -> None:
    """While replicas of the earlier revision are left, its recipe is: a revert makes nothing a third time."""
    first = planned(raw_pool, OLD)
    upgraded()
    changed = edited(raw_pool, model={"revision": "v2"})
    second = planned(changed, NEW, first)
    amid = planned(changed, NEW, first, second)
    assert amid.superseded
    assert not [key for key in amid.delete if key.kind == "ControllerRevision"]
    (mine,) = (child for child in amid.apply if child.resource.kind == "ControllerRevision")
    back = planned(edited(raw_pool, router={"drainSeconds": 9}), NEW, first, second)
    assert {role: each[1]["template"] for role, each in templates(back).items()} == {
        role: each[1]["template"] for role, each in templates(first).items()
    }
    (record,) = (child for child in back.apply if child.resource.kind == "ControllerRevision")
    assert record.body["revision"] > mine.body["revision"]
    assert recipe(back).roles == recipe(first).roles
    refused = edited(raw_pool, mode="Aggregated")
    kept = recipes.kept(Observed(PoolRef("serving", "tiny"), refused, _records(first, second)))
    assert kept[0].spec == changed["spec"], "the last that was accepted goes on"


def _records(*plans: Plan) -> dict[ChildKey, Json]:
    found = (child for plan in plans for child in plan.apply if child.resource.kind == "ControllerRevision")
    return {
        child.key: {
            "metadata": child.body["metadata"],
            "revision": child.body["revision"],
            "data": json.dumps(child.body["data"]),
        }
        for child in found
    }


def test_a_record_without_a_recipe_is_no_hindrance(raw_pool: Json) -> None:
    """Records of the time before recipes hold the spec alone: what runs is made as it is made now."""
    before = planned(raw_pool, OLD)
    record = next(child for child in before.apply if child.resource.kind == "ControllerRevision")
    live = {"metadata": record.body["metadata"], "data": json.dumps({"spec": raw_pool["spec"]})}
    after = next_plan(Observed(PoolRef("serving", "tiny"), raw_pool, {record.key: live}), OLD)
    assert templates(after) == templates(before)


def test_a_record_can_be_read_by_a_person(raw_pool: Json) -> None:
    """Unpacked, it holds the templates as they are applied: redaction finds in them what it finds in a Deployment."""
    before = planned(raw_pool, OLD)
    record = next(child for child in before.apply if child.resource.kind == "ControllerRevision")
    told = recipes.readable(record.body)["data"]["recipe"]["roles"]
    assert told["decode"] == {"operator": VERSION, "template": recipe(before).roles[Role.DECODE].template}
    odd = recipes.readable({"data": {"recipe": {"roles": {"decode": {"template": "?"}}}}})
    assert odd["data"]["recipe"]["roles"] == {"decode": {}}
