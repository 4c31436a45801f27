"""Conditions and counts, as they are said of what was observed, planned and done."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_api.conditions import ConditionType, Reason
from pdpool_api.pool import InferencePoolStatus
from pdpool_operator.apply import status_differs, turns
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import ChildKey, Images, Observed, Outcome, Plan, PoolRef, Refusal
from pdpool_operator.status import status

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="r:1")
COMPLETE = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}


def observe(raw: dict[str, Any], *pods: dict[str, Any], children: dict[ChildKey, Any] | None = None) -> Observed:
    return Observed(PoolRef("serving", "tiny"), raw, children or {}, pods)


def live(
    plan: Plan, *, ready: dict[str, int] | None = None, updated: dict[str, int] | None = None, **state: Any
) -> dict[ChildKey, Any]:
    """Every desired Deployment as its controller would report it, all replicas ready unless said."""
    assert plan.desired is not None
    found = {}
    for child in plan.desired.children:
        if child.resource.kind != "Deployment":
            continue
        assert child.role is not None
        want = child.body["spec"]["replicas"]
        count = (ready or {}).get(child.role, want)
        found[child.key] = {
            "metadata": {**child.body["metadata"], "uid": child.name, "generation": 1},
            "spec": {"replicas": want},
            "status": {
                "observedGeneration": 1,
                "replicas": want,
                "updatedReplicas": (updated or {}).get(child.role, want),
                "readyReplicas": count,
                "availableReplicas": count,
                "conditions": [COMPLETE],
                **state,
            },
        }
    return found


def conditions(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in said["conditions"]}


def pod(role: str, **status_: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"{role}-0", "labels": {names.LABEL_ROLE: role}}, "status": status_}


def ready_pods(deployments: dict[ChildKey, Any]) -> list[dict[str, Any]]:
    """The pods of engine Deployments, all ready."""
    found = []
    for key, each in deployments.items():
        labels = each["metadata"]["labels"]
        owner = {"controller": True, "kind": "ReplicaSet", "name": f"{key.name}-x"}
        for number in range(each["spec"]["replicas"] if names.LABEL_REVISION in labels else 0):
            metadata = {"name": f"{key.name}-{number}", "uid": f"{key.name}-{number}", "labels": labels}
            state = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"started": True}]}
            found.append({"metadata": {**metadata, "ownerReferences": [owner]}, "status": state})
    return found


STARTED = {"name": "engine", "started": True, "ready": False, "restartCount": 1, "state": {"running": {}}}
STARTING = {"name": "engine", "started": False, "ready": False, "restartCount": 0, "state": {"running": {}}}


def said(raw: dict[str, Any], *pods: dict[str, Any], now: str = NOW, **of_live: Any) -> dict[str, Any]:
    observed = observe(raw, *pods)
    plan = next_plan(observed, IMAGES)
    return status(observed, plan, Outcome(live=live(plan, **of_live)), now=now)


def test_all_ready_is_available(raw_pool: dict[str, Any]) -> None:
    """Every replica updated and available and a ready router make Ready True and Progressing False."""
    found = said(raw_pool)
    ready = conditions(found)["Ready"]
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("True", "Available", 3)
    assert conditions(found)["Progressing"]["status"] == "False"
    assert conditions(found)["SpecValid"]["status"] == "True"
    assert "Stalled" not in conditions(found)
    assert found["prefill"]["ready"] == "2/2"
    assert found["url"] == "http://tiny-router.serving.svc"
    assert found["observedGeneration"] == 3


@pytest.mark.parametrize(
    ("router", "url"),
    [
        ({}, "http://tiny-router.serving.svc"),
        ({"service": {"port": 8080}}, "http://tiny-router.serving.svc:8080"),
        ({"tlsSecretRef": {"name": "cert"}}, "https://tiny-router.serving.svc:80"),
        ({"tlsSecretRef": {"name": "cert"}, "service": {"port": 443}}, "https://tiny-router.serving.svc"),
    ],
)
def test_the_url_is_the_services(raw_pool: dict[str, Any], router: dict[str, Any], url: str) -> None:
    """It opens what the router's Service listens on: scheme and port."""
    raw_pool["spec"]["router"] = router
    assert said(raw_pool)["url"] == url


@pytest.mark.parametrize(
    ("of_live", "pods", "reason"),
    [
        ({"updated": {"prefill": 1}}, [], "RollingOut"),
        ({"observedGeneration": 0}, [], "RollingOut"),
        ({"ready": {"decode": 0}, "conditions": []}, [], "RollingOut"),
        ({"ready": {"decode": 0}}, [pod("decode", containerStatuses=[STARTING])], "RollingOut"),
        ({"ready": {"decode": 0}}, [pod("decode", containerStatuses=[STARTED])], "ReplicasNotReady"),
        ({"ready": {"router": 0}}, [pod("router", containerStatuses=[STARTED])], "RouterNotReady"),
        ({"replicas": 5}, [], "RollingOut"),
    ],
)
def test_what_is_missing_has_a_reason(
    raw_pool: dict[str, Any], of_live: dict[str, Any], pods: list[dict[str, Any]], reason: str
) -> None:
    """What rolls out is told from what broke later, and from a router that is not there."""
    ready = conditions(said(raw_pool, *pods, **of_live))["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", reason)
    assert "prefill" in ready["message"]
    assert "decode" in ready["message"]


def test_one_ready_router_of_two_is_enough(raw_pool: dict[str, Any]) -> None:
    """The router needs a ready replica, not all of them."""
    raw_pool["spec"]["router"] = {"replicas": 2}
    assert conditions(said(raw_pool, ready={"router": 1}))["Ready"]["status"] == "True"


def test_zero_wanted_is_ready(raw_pool: dict[str, Any]) -> None:
    """A pool whose roles are wanted at zero, and are at zero, is Ready with its own reason."""
    raw_pool["spec"]["prefill"]["replicas"] = raw_pool["spec"]["decode"]["replicas"] = 0
    assert conditions(said(raw_pool))["Ready"]["reason"] == "ScaledToZero"


def test_pods_say_why_in_their_own_words(raw_pool: dict[str, Any]) -> None:
    """A missing Secret is named; the seconds of a back-off are not, as each reading would be a write (Q15)."""
    missing = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}
    failing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    pods = [
        pod("prefill", containerStatuses=[{"name": "engine", "restartCount": 0, "state": missing}]),
        pod("decode", containerStatuses=[{"name": "engine", "restartCount": 3, "state": failing}]),
    ]
    ready = conditions(said(raw_pool, *pods, ready={"prefill": 0, "decode": 0}))["Ready"]
    assert ready["reason"] == "MissingReference"
    assert 'secret "hf" not found' in ready["message"]
    assert "CrashLoopBackOff" in ready["message"]
    assert "40s" not in ready["message"]


def test_everything_that_is_missing_is_named(raw_pool: dict[str, Any]) -> None:
    """However many references are missing, the condition names each: whoever makes them wants to know all (Q15)."""
    observed = observe(raw_pool)
    plan = next_plan(observed, IMAGES)
    words = tuple(f"Secret token-{number}" for number in range(9))
    missing = replace(observed, missing_objects=words)
    ready = conditions(status(missing, plan, Outcome(live=live(plan, ready={"decode": 0})), now=NOW))["Ready"]
    assert ready["reason"] == "MissingReference"
    for each in words:
        assert f"{each} is missing" in ready["message"]


def test_pods_that_no_node_can_take_are_counted(raw_pool: dict[str, Any]) -> None:
    """Unschedulable pods are counted per role, and the scheduler's words are in the message."""
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes: no gpu",
    }
    found = said(raw_pool, pod("prefill", conditions=[unschedulable]), ready={"prefill": 0})
    assert found["prefill"]["unschedulableReplicas"] == 1
    assert found["decode"]["unschedulableReplicas"] == 0
    assert conditions(found)["Ready"]["reason"] == "Unschedulable"
    assert "no gpu" in conditions(found)["Ready"]["message"]


def test_a_missing_claim_is_a_missing_reference(raw_pool: dict[str, Any]) -> None:
    """A claim that does not exist shows itself as unschedulable, and is named as what it is."""
    words = 'persistentvolumeclaim "models" not found'
    blocked = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    ready = conditions(said(raw_pool, pod("decode", conditions=[blocked]), ready={"decode": 0}))["Ready"]
    assert ready["reason"] == "MissingReference"
    assert words in ready["message"]


def test_pods_that_nobody_can_make_are_told(raw_pool: dict[str, Any]) -> None:
    """A quota, a security standard or a class that is not there: the server's words, without a name that moves."""
    told = set()
    for name in ("tiny-decode-1-abcde", "tiny-decode-1-vwxyz"):
        words = f'pods "{name}" is forbidden: exceeded quota: gpus'
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": words}
        told.add(conditions(said(raw_pool, ready={"decode": 0}, conditions=[failure]))["Ready"]["message"])
    (message,) = told
    assert "decode pods are forbidden: exceeded quota: gpus" in message


def test_a_rollout_past_its_deadline_is_stalled(raw_pool: dict[str, Any]) -> None:
    """The Deployment's own deadline makes Progressing False and Stalled True, with the pod's reason."""
    overdue = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    pods = [pod("decode", containerStatuses=[{**STARTED, "state": {"waiting": {"reason": "ErrImagePull"}}}])]
    found = conditions(said(raw_pool, *pods, ready={"decode": 0}, conditions=[overdue]))
    for kind in ("Ready", "Progressing", "Stalled"):
        assert found[kind]["reason"] == "RolloutStalled"
    assert "ErrImagePull" in found["Stalled"]["message"]


def test_a_refused_spec_keeps_what_was_said_and_counts_anew(raw_pool: dict[str, Any]) -> None:
    """With SpecValid False revision and sizes stay, counts are today's, and every condition names the refusal."""
    raw_pool["status"] = said(raw_pool)
    running = live(next_plan(observe(raw_pool), IMAGES), ready={"decode": 0, "router": 0})
    observed = observe(raw_pool, children=running)
    plan = Plan(desired=None, refusal=Refusal(Reason.INCOMPATIBLE_ROLES, "a is not b"))
    found = status(observed, plan, Outcome(live=running), now=LATER)
    assert found["prefill"] == raw_pool["status"]["prefill"]
    assert found["decode"] == {**raw_pool["status"]["decode"], "readyReplicas": 0, "ready": "0/1"}
    assert found["router"] == {"replicas": 1, "readyReplicas": 0}
    assert found["revision"] == raw_pool["status"]["revision"]
    for kind, word in (("Ready", "False"), ("SpecValid", "False"), ("Stalled", "True"), ("Progressing", "False")):
        assert (conditions(found)[kind]["status"], conditions(found)[kind]["message"]) == (word, "a is not b")
    advisory = conditions(found)["Advisory"]
    assert (advisory["status"], advisory["reason"]) == ("Unknown", "IncompatibleRoles")
    assert advisory["observedGeneration"] == raw_pool["metadata"]["generation"], "nothing stale is left standing"


def test_a_transition_has_its_time(raw_pool: dict[str, Any]) -> None:
    """LastTransitionTime moves when a status does, and only then."""
    raw_pool["status"] = said(raw_pool, ready={"decode": 0})
    again = said(raw_pool, ready={"decode": 0}, now=LATER)
    assert again == raw_pool["status"]
    ready = conditions(said(raw_pool, now=LATER))
    assert ready["Ready"]["lastTransitionTime"] == LATER
    assert ready["SpecValid"]["lastTransitionTime"] == NOW


def test_conflicts_and_faults_are_named(raw_pool: dict[str, Any]) -> None:
    """Each object of others is named in NameConflict; refused writes, in ApplyFailed with the server's words."""
    observed = observe(raw_pool)
    plan = next_plan(observed, IMAGES)
    assert plan.desired is not None
    every = tuple(child.key for child in plan.desired.children)
    taken = status(observed, plan, Outcome(conflicts=every), now=NOW)
    assert conditions(taken)["Ready"]["reason"] == "NameConflict"
    assert len(every) > 10
    for key in every:
        assert str(key) in conditions(taken)["Stalled"]["message"]
    refused = Outcome(live=live(plan), refused={ChildKey("Deployment", "tiny-router"): "duplicate entries"})
    found = conditions(status(observed, plan, refused, now=NOW))
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "ApplyFailed")
    assert "duplicate entries" in found["Ready"]["message"]
    assert found["Progressing"]["status"] == "False"
    failed = Outcome(live=live(plan), failed={ChildKey("Deployment", "tiny-router"): "no answer"})
    assert conditions(status(observed, plan, failed, now=NOW))["Progressing"]["status"] == "True"


def test_foreign_conditions_are_left_to_their_owners(raw_pool: dict[str, Any]) -> None:
    """A condition of a type that is not ours is neither written nor a reason to write."""
    foreign = {"type": "example.com/Audited", "status": "True", "reason": "X", "message": "", "lastTransitionTime": NOW}
    ours = said(raw_pool)
    raw_pool["status"] = {**ours, "conditions": [*ours["conditions"], foreign]}
    again = said(raw_pool)
    assert again == ours
    owned = {"f:status": _owned(ours)}
    entry = {"manager": "pdpool", "operation": "Apply", "subresource": "status", "fieldsV1": owned}
    raw_pool["metadata"]["managedFields"] = [entry]
    assert not status_differs(raw_pool, again)


def _owned(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"f:{key}": _owned(each) for key, each in value.items()}
    if isinstance(value, list):
        return {f'k:{{"type":"{each["type"]}"}}': {".": {}, **_owned(each)} for each in value}
    return {}


def test_what_is_no_longer_said_is_taken_back(raw_pool: dict[str, Any]) -> None:
    """A condition that we wrote and say no more is a difference; so is any other value, and a missing entry."""
    ours = said(raw_pool)
    stalled = {"type": "Stalled", "status": "True", "reason": "X", "message": "", "lastTransitionTime": NOW}
    before = {**ours, "conditions": [*ours["conditions"], stalled]}
    entry = {
        "manager": "pdpool",
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": {"f:status": _owned(before)},
    }
    pool = {"metadata": {"managedFields": [entry]}, "status": before}
    assert status_differs(pool, ours)
    assert not status_differs(pool, before)
    assert status_differs({**pool, "status": {**before, "url": "http://other"}}, before)
    assert status_differs({**pool, "metadata": {}}, before)


def test_conditions_stand_in_one_order(raw_pool: dict[str, Any]) -> None:
    """Another order of the same conditions would be a write."""
    raw_pool["status"] = said(raw_pool)
    raw_pool["status"]["conditions"].reverse()
    order = [each["type"] for each in said(raw_pool)["conditions"]]
    assert order == [each.value for each in ConditionType if each.value in order]


counts = st.integers(0, 4)


@given(st.fixed_dictionaries(dict.fromkeys(("prefill", "decode", "router"), counts)), st.data())
def test_ready_means_everything_is_there(have: dict[str, int], data: st.DataObject) -> None:
    """Ready is True exactly when every role has its replicas updated and available and a router is ready."""
    raw = {
        "metadata": {"name": "tiny", "namespace": "serving", "uid": "u", "generation": 1, "resourceVersion": "1"},
        "spec": {
            "model": {"id": "m"},
            "prefill": {"replicas": data.draw(counts)},
            "decode": {"replicas": data.draw(counts)},
            "router": {"replicas": 2},
        },
    }
    plan = next_plan(observe(raw), IMAGES)
    assert plan.desired is not None
    want = plan.desired.replicas
    ready = {role: min(count, want[names.Role(role)]) for role, count in have.items()}
    found = said(raw, ready=ready)
    InferencePoolStatus.model_validate(found)
    expected = all(ready[role] == want[names.Role(role)] for role in ("prefill", "decode")) and ready["router"] > 0
    assert (conditions(found)["Ready"]["status"] == "True") is expected


# --- the step between revisions ------------------------------------------------------------------------------------


def test_a_pool_between_revisions_is_rolling_out(raw_pool: dict[str, Any]) -> None:
    """Both revisions count in a role's replicas, and Ready is False until one is left."""
    old = live(next_plan(observe(raw_pool), IMAGES))
    raw_pool["spec"]["model"]["revision"] = "v2"
    new = live(next_plan(observe(raw_pool), IMAGES), ready={"prefill": 0})
    children = {**old, **new}
    observed = observe(raw_pool, *ready_pods(old), children=children)
    plan = next_plan(observed, IMAGES)
    assert plan.superseded == {key for key in old if key not in new}
    found = status(observed, plan, Outcome(live=children), now=NOW)
    assert conditions(found)["Ready"]["reason"] == "RollingOut"
    assert found["prefill"]["replicas"] == 4
    assert found["prefill"]["readyReplicas"] == 2


def test_reverting_brings_back_the_old_revision_as_it_is(raw_pool: dict[str, Any]) -> None:
    """After a revert the Deployments that still serve are the desired ones, and the half-made others go at once."""
    first = next_plan(observe(raw_pool), IMAGES)
    old = live(first)
    changed = copy.deepcopy(raw_pool)
    changed["spec"]["model"]["revision"] = "v2"
    new = live(next_plan(observe(changed), IMAGES), ready={"prefill": 0, "decode": 0})
    plan = next_plan(observe(raw_pool, *ready_pods(old), children={**old, **new}), IMAGES)
    assert plan.desired is not None
    assert first.desired is not None
    assert plan.desired.revision == first.desired.revision
    assert set(plan.delete) == {key for key in new if key not in old}


def test_what_is_around_a_role_stays_as_long_as_its_pods(raw_pool: dict[str, Any]) -> None:
    """A change of the mode keeps Service, policy and budget of the roles that go until their pods have gone."""
    first = next_plan(observe(raw_pool), IMAGES)
    assert first.desired is not None
    old = {**{each.key: {"metadata": each.body["metadata"]} for each in first.desired.children}, **live(first)}
    raw_pool["spec"]["mode"] = "Aggregated"
    del raw_pool["spec"]["prefill"]
    step = next_plan(observe(raw_pool, *ready_pods(old), children=old), IMAGES)
    leaving = {key for key in old if "-prefill" in key.name or "-decode" in key.name}
    assert {key.kind for key in leaving} == {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"}
    assert step.superseded == {key for key in leaving if key.kind == "Deployment"}
    record = {key for key in step.delete if key.kind == "ControllerRevision"}
    assert set(step.delete) == record
    empty = {key: {**each, "status": {"observedGeneration": 1}} for key, each in old.items()}
    assert set(next_plan(observe(raw_pool, children=empty), IMAGES).delete) == leaving | record


def test_children_that_nobody_wants_go(raw_pool: dict[str, Any]) -> None:
    """An owned object of a name that is not desired is deleted, whatever its kind."""
    stray = {"metadata": {"name": "tiny-old", "labels": {names.LABEL_ROLE: "router"}, "uid": "x"}}
    plan = next_plan(observe(raw_pool, children={ChildKey("Service", "tiny-old"): stray}), IMAGES)
    assert plan.delete == (ChildKey("Service", "tiny-old"),)


def test_an_aggregated_pool_reports_its_role_under_decode(raw_pool: dict[str, Any]) -> None:
    """The one engine role is described by spec.decode, and status.decode is where it is reported."""
    del raw_pool["spec"]["prefill"]
    raw_pool["spec"]["mode"] = "Aggregated"
    found = said(raw_pool)
    assert found["mode"] == "Aggregated"
    assert found["decode"]["ready"] == "1/1"
    assert "prefill" not in found
    assert conditions(found)["Ready"]["status"] == "True"


def test_accelerators_are_counted_on_nodes(raw_pool: dict[str, Any]) -> None:
    """Scheduled pods hold theirs until they end, leaving ones too; a waiting pod holds none."""
    raw_pool["spec"]["maxGpus"] = 16
    holding = {"nodeName": "n", "limits": [{"nvidia.com/gpu": "2", "cpu": "1"}]}
    pods = [
        {**pod("prefill", phase="Running"), "spec": holding},
        {**pod("decode", phase="Pending"), "spec": {**holding, "nodeName": ""}},
        {**pod("decode", phase="Failed"), "spec": holding},
        {**pod("decode", phase="Running"), "spec": holding},
    ]
    pods[3]["metadata"]["deletionTimestamp"] = NOW
    assert said(raw_pool, *pods)["gpus"] == {"inUse": 4, "max": 16}


def test_remarks_are_one_condition(raw_pool: dict[str, Any]) -> None:
    """Everything worth knowing is in the message of Advisory, which blocks nothing."""
    raw_pool["spec"]["monitoring"] = {"podMonitor": True}
    raw_pool["spec"]["decode"]["args"] = ["--enforce-eager"]
    advisory = conditions(said(raw_pool))["Advisory"]
    assert (advisory["status"], advisory["reason"]) == ("True", "OptionalApiMissing")
    assert "PodMonitor" in advisory["message"]
    assert "--enforce-eager" in advisory["message"]
    assert conditions(said(raw_pool))["Ready"]["status"] == "True"
    del raw_pool["spec"]["monitoring"], raw_pool["spec"]["decode"]["args"]
    assert conditions(said(raw_pool))["Advisory"]["status"] == "False"


def test_what_was_not_checked_is_said(raw_pool: dict[str, Any]) -> None:
    """A valid pool whose model has unknown sizes tells that its fit was not looked at."""
    raw_pool["spec"]["prefill"]["hardware"] = raw_pool["spec"]["decode"]["hardware"] = "l4"
    valid = conditions(said(raw_pool))["SpecValid"]
    assert (valid["status"], valid["reason"]) == ("True", "Valid")
    assert "not checked" in valid["message"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"maxGpus": 1, "prefill": {}, "decode": {}}, "MaxGpusExceeded"),
        ({"prefill": {"hardware": "l4", "parallelism": {"tensor": 16}}}, "ReplicaExceedsNode"),
        ({"model": {"id": "Qwen/Qwen3-32B"}, "decode": {"hardware": "l4"}, "prefill": {}}, "ModelDoesNotFit"),
        ({"prefill": {"args": ["-tp=x"]}}, "InvalidSpec"),
    ],
    ids=repr,
)
def test_what_cannot_run_stalls_the_pool(raw_pool: dict[str, Any], spec: dict[str, Any], reason: str) -> None:
    """Refused by arithmetic: SpecValid False, Stalled True, and nothing is applied or deleted."""
    raw_pool["spec"].update(spec)
    plan = next_plan(observe(raw_pool), IMAGES)
    assert (plan.apply, plan.delete) == ((), ())
    found = conditions(status(observe(raw_pool), plan, Outcome(), now=NOW))
    assert (found["SpecValid"]["status"], found["SpecValid"]["reason"]) == ("False", reason)
    assert found["Stalled"]["status"] == "True"
    assert found["Ready"]["reason"] == reason


def test_the_log_says_turns_of_conditions_only() -> None:
    """A condition is told when its status or reason changes, not when its message or generation does."""
    ready = {"type": "Ready", "status": "False", "reason": "RollingOut", "message": "1/2", "observedGeneration": 1}
    pool = {"status": {"conditions": [ready]}}
    assert turns(pool, {"conditions": [{**ready, "message": "2/2", "observedGeneration": 2}]}) == []
    turned = {**ready, "status": "True", "reason": "Available"}
    fresh = {**ready, "type": "SpecValid"}
    assert turns(pool, {"conditions": [turned, fresh]}) == [turned, fresh]
    assert turns({}, {"conditions": [ready]}) == [ready]


# --- a rollout that does not go on, and sizes that shrink -----------------------------------------------------------


def _state(**state: Any) -> dict[str, Any]:
    return {"name": "engine", "image": "vllm:bad", "ready": False, "started": False, "restartCount": 0, **state}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (_state(state={"waiting": {"reason": "ErrImagePull"}}), "ErrImagePull, ImagePullBackOff: vllm:bad"),
        (_state(state={"waiting": {"reason": "ImagePullBackOff"}}), "ErrImagePull, ImagePullBackOff: vllm:bad"),
        (_state(state={"waiting": {"reason": "InvalidImageName", "message": "bad"}}), "InvalidImageName: bad"),
        (
            _state(
                restartCount=1,
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"reason": "Error", "exitCode": 2}},
            ),
            "CrashLoopBackOff: Error, exit code 2",
        ),
        (
            _state(
                restartCount=1,
                state={"running": {}},
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            "CrashLoopBackOff: OOMKilled, exit code 137",
        ),
        (
            _state(restartCount=2, state={"running": {}}, lastState={"terminated": {"reason": "Error", "exitCode": 1}}),
            "CrashLoopBackOff: Error, exit code 1",
        ),
        (_state(restartCount=1, state={"running": {}}, lastState={"terminated": {"reason": "Error"}}), ""),
        (_state(state={"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}), ""),
        (_state(state={"running": {}}), ""),
    ],
    ids=repr,
)
def test_what_does_not_heal_stalls_a_rollout_at_once(
    raw_pool: dict[str, Any], container: dict[str, Any], words: str
) -> None:
    """Images that cannot be pulled and containers that end again and again are told before any budget is over.

    What heals by waiting (a slow start, one crash, an object that is still to come) is not.
    """
    revision = next_plan(observe(raw_pool), IMAGES).desired
    assert revision is not None
    bad = pod("decode", containerStatuses=[container])
    bad["metadata"]["labels"][names.LABEL_REVISION] = revision.revision
    found = conditions(said(raw_pool, bad, ready={"decode": 0}, conditions=[]))
    assert (found["Progressing"]["reason"] == "RolloutStalled") is bool(words)
    assert ("Stalled" in found) is bool(words)
    assert f"decode {words}" in found["Progressing"]["message"] or not words
    # A pool that had arrived is not rolling out: one of its pods broke.
    later = conditions(said(raw_pool, bad, ready={"decode": 0}))
    assert later["Progressing"]["reason"] != "RolloutStalled"


def test_pods_that_leave_take_nothing_from_ready(raw_pool: dict[str, Any]) -> None:
    """A role that is being made smaller has all it needs; that it is not done yet, Progressing says."""
    found = conditions(said(raw_pool, replicas=3, updatedReplicas=3, readyReplicas=3, availableReplicas=3))
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("True", "Available")
    assert (found["Progressing"]["status"], found["Progressing"]["reason"]) == ("True", "RollingOut")


def test_zero_is_reached_when_the_last_pod_has_gone(raw_pool: dict[str, Any]) -> None:
    """Wanted at zero and still leaving is not yet scaled to zero."""
    raw_pool["spec"]["prefill"]["replicas"] = raw_pool["spec"]["decode"]["replicas"] = 0
    found = conditions(said(raw_pool, replicas=1, updatedReplicas=1, readyReplicas=1, availableReplicas=1))
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "RollingOut")
