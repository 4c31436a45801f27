"""What is said of a pool: counts per role and conditions, from Observed, Plan and Outcome.

Boundary: pure; the time is an argument. Every condition is decided here and nowhere else. Messages carry decisions,
counts of replicas and pods' own reasons; nothing in them moves by itself with time, as each change of a message is a
write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names
from pdpool_api.conditions import Condition, ConditionType, Reason, set_condition, without
from pdpool_api.conditions import Status as ConditionStatus
from pdpool_api.hardware import accelerator_resources
from pdpool_api.names import Role
from pdpool_api.pool import InferencePoolStatus, RoleStatus, RouterStatus
from pdpool_api.pool_status import GpuStatus
from pdpool_operator.records import (
    DEPLOYMENTS,
    Child,
    ChildKey,
    Desired,
    HealthVerdict,
    Json,
    Observed,
    Outcome,
    Plan,
    Remark,
)
from pdpool_operator.sizes import active

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdpool_operator.sizes import Sizing

_OURS: Final = frozenset(each.value for each in ConditionType)
_STALLING: Final = frozenset({Reason.NAME_CONFLICT, Reason.ROLLOUT_STALLED})
_MISSING: Final = ("CreateContainerConfigError", "FailedMount")
_MAX_NAMED: Final = 5
_UNPULLED: Final = ("ErrImagePull", "ImagePullBackOff")
_REFUSED: Final = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerError", "RunContainerError")
_RESTARTS: Final = 2
"""A container that ended so often without having started is not unlucky."""
_NAMED_POD: Final = re.compile(r'^pods "[^"]*" is forbidden: ')
"""Each try makes another name: it would move the words."""
_SCHEME_PORTS: Final = {"http": 80, "https": 443}
"""What a URL means that names no port."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas of one role, over all of its Deployments."""

    desired: int
    replicas: int
    ready: int
    updated: int
    available: int
    """Of the desired revision only."""
    fresh: bool
    """The Deployment controller has seen the last change."""
    complete: bool
    """Its last rollout came to its end once."""
    stalled: str
    """The controller's words when the rollout passed its deadline."""
    refused: str
    """The API server's words when no pod can be made: a quota, a security standard, a class that is not there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition's status, reason and message."""

    status: ConditionStatus
    reason: Reason
    message: str


def status(observed: Observed, plan: Plan, outcome: Outcome, *, now: str) -> Json:
    """The whole status as it is to be written.

    Args:
        observed: the pool before this reconcile.
        plan: what was to be done.
        outcome: what came of it.
        now: RFC 3339 time, for transitions.
    """
    live = observed.pool.get("status") or {}
    if plan.desired is None:
        said = _counted_anew(InferencePoolStatus.model_validate({**live, "conditions": ()}), observed)
    else:
        counts = role_counts(plan, outcome)
        # In mode Aggregated spec.decode describes the one role, so it is reported there.
        decode = Role.DECODE if Role.DECODE in counts else Role.AGGREGATED
        said = InferencePoolStatus(
            mode=plan.desired.mode,
            mode_inputs=plan.desired.mode_inputs,
            revision=plan.desired.revision,
            url=_url(observed, plan.desired),
            prefill=_role_status(plan, counts, observed, Role.PREFILL) if Role.PREFILL in counts else None,
            decode=_role_status(plan, counts, observed, decode),
            router=RouterStatus(replicas=counts[Role.ROUTER].replicas, ready_replicas=counts[Role.ROUTER].ready),
            gpus=GpuStatus(in_use=sum(map(_gpus, observed.pods)), max=plan.desired.max_gpus),
        )
    found = conditions(observed, plan, outcome, now=now)
    return said.model_copy(update={"observed_generation": observed.generation, "conditions": found}).to_json()


def _url(observed: Observed, desired: Desired) -> str:
    """The address of what runs, which a refused edit of the spec does not change."""
    assert desired.spec is not None
    router = desired.spec.router
    scheme, port = "https" if router.tls_secret_ref else "http", router.service.port
    service = names.child_name(observed.ref.name, Role.ROUTER.value)
    return f"{scheme}://{service}.{observed.ref.namespace}.svc{'' if port == _SCHEME_PORTS[scheme] else f':{port}'}"


def _counted_anew(before: InferencePoolStatus, observed: Observed) -> InferencePoolStatus:
    """What was said before the spec was refused, with the counts of today: what runs goes on, and may fail."""
    said: dict[str, RoleStatus | RouterStatus] = {}
    decode = Role.AGGREGATED if before.mode == "Aggregated" else Role.DECODE
    for field, role, of_role in (("prefill", Role.PREFILL, before.prefill), ("decode", decode, before.decode)):
        if of_role is not None:
            live = _deployments(observed, role)
            current = [each for each in live if each["metadata"]["labels"].get(names.LABEL_REVISION) == before.revision]
            now = {
                "replicas": _sum(live, "replicas"),
                "ready_replicas": _sum(live, "readyReplicas"),
                "updated_replicas": _sum(current, "updatedReplicas"),
                "unschedulable_replicas": _unschedulable_count(observed, role),
            }
            said[field] = of_role.model_copy(update=now)
    if before.router is not None:
        routers = _deployments(observed, Role.ROUTER)
        said["router"] = RouterStatus(replicas=_sum(routers, "replicas"), ready_replicas=_sum(routers, "readyReplicas"))
    return before.model_copy(update=said)


def _deployments(observed: Observed, role: Role) -> list[Json]:
    return [live for key, live in observed.children.items() if key.kind == DEPLOYMENTS.kind and _role_of(live) == role]


def conditions(observed: Observed, plan: Plan, outcome: Outcome, *, now: str) -> tuple[Condition, ...]:
    """Ready, Progressing, SpecValid, Advisory, and Stalled where nothing goes on by itself; in their fixed order."""
    ready, progressing = _verdicts(observed, plan, outcome)
    spec_valid = Verdict("True", Reason.VALID, plan.desired.unchecked if plan.desired is not None else "")
    if plan.refusal is not None and plan.refusal.reason != Reason.MISSING_REFERENCE:
        spec_valid = Verdict("False", Reason(plan.refusal.reason), plan.refusal.message)
    said = {
        ConditionType.READY: ready,
        ConditionType.PROGRESSING: progressing,
        ConditionType.SPEC_VALID: spec_valid,
    }
    if plan.desired is not None and plan.refusal is None:
        said[ConditionType.ADVISORY] = _advisory(plan.desired.remarks)
    else:
        words = "not judged while the spec is refused"
        said[ConditionType.ADVISORY] = Verdict("Unknown", spec_valid.reason, words)
    live = (observed.pool.get("status") or {}).get("conditions", ())
    result: tuple[Condition, ...] = tuple(Condition.model_validate(each) for each in live if each["type"] in _OURS)
    stops = (each for each in (ready, progressing) if each.reason in _STALLING)
    stalled = spec_valid if spec_valid.status == "False" else next(stops, None)
    if plan.desired is not None and not plan.desired.sizes:
        result = without(result, ConditionType.SCALING_ACTIVE)
    elif plan.desired is not None and (scaling := active(plan.desired.sizes)) is not None:
        said[ConditionType.SCALING_ACTIVE] = Verdict("True" if scaling[0] else "False", *scaling[1:])
    if plan.desired is not None and plan.desired.health is not None:
        of_health = plan.desired.health
        said[ConditionType.ROUTING_HEALTHY] = _of_health(of_health.routing)
        if of_health.transfer is None:
            result = without(result, ConditionType.TRANSFER_HEALTHY)
        else:
            said[ConditionType.TRANSFER_HEALTHY] = _of_health(of_health.transfer)
    if stalled is None:
        result = without(result, ConditionType.STALLED)
    else:
        said[ConditionType.STALLED] = Verdict("True", stalled.reason, stalled.message)
    for kind, verdict in said.items():
        result = set_condition(
            result,
            kind,
            verdict.status,
            verdict.reason,
            verdict.message,
            generation=observed.generation,
            now=now,
        )
    return result


def _of_health(found: HealthVerdict) -> Verdict:
    return Verdict(found.status, Reason(found.reason), found.message)


def _advisory(remarks: tuple[Remark, ...]) -> Verdict:
    """Every remark in one message, the first one's reason for all."""
    if not remarks:
        return Verdict("False", Reason.NOTHING_TO_NOTE, "")
    return Verdict("True", Reason(remarks[0].reason), "; ".join(each.message for each in remarks))


def role_counts(plan: Plan, outcome: Outcome) -> Mapping[Role, Counts]:
    """Replicas of every role that the plan has a Deployment for."""
    desired = plan.desired
    assert desired is not None
    return {
        child.role: _counts(child, outcome, plan.superseded, desired.replicas[child.role])
        for child in desired.children
        if child.resource is DEPLOYMENTS and child.role is not None
    }


def _counts(child: Child, outcome: Outcome, superseded: Iterable[ChildKey], desired: int) -> Counts:
    current = outcome.live.get(child.key)
    older = [
        outcome.live[key] for key in superseded if key in outcome.live and _role_of(outcome.live[key]) == child.role
    ]
    everything = [*older, *([current] if current is not None else [])]
    state = (current or {}).get("status", {})
    of_state = {each["type"]: each for each in state.get("conditions", ())}
    told, failure = of_state.get("Progressing", {}), of_state.get("ReplicaFailure", {})
    generation = int((current or {}).get("metadata", {}).get("generation", 0))
    return Counts(
        desired=desired,
        replicas=_sum(everything, "replicas"),
        ready=_sum(everything, "readyReplicas"),
        updated=int(state.get("updatedReplicas", 0)),
        available=int(state.get("availableReplicas", 0)),
        fresh=current is not None and int(state.get("observedGeneration", 0)) >= generation,
        complete=told.get("reason") == "NewReplicaSetAvailable",
        stalled=told.get("message", "") if told.get("reason") == "ProgressDeadlineExceeded" else "",
        refused=_NAMED_POD.sub("pods are forbidden: ", failure["message"]) if failure.get("status") == "True" else "",
    )


def _sum(deployments: Iterable[Json], field: str) -> int:
    return sum(int(each.get("status", {}).get(field, 0)) for each in deployments)


def _role_of(live: Json) -> str:
    return str(live["metadata"].get("labels", {}).get(names.LABEL_ROLE, ""))


def _role_status(plan: Plan, every: Mapping[Role, Counts], observed: Observed, role: Role) -> RoleStatus:
    assert plan.desired is not None
    counts = every[role]
    return RoleStatus(
        desired_replicas=counts.desired,
        replicas=counts.replicas,
        ready_replicas=counts.ready,
        updated_replicas=counts.updated,
        unschedulable_replicas=_unschedulable_count(observed, role),
        **_why(plan.desired.sizes.get(role), observed, role),
    )


def _why(sizing: Sizing | None, observed: Observed, role: Role) -> dict[str, Any]:
    """Reason, message and time of an autoscaled role's size; what was said before stands until something was read."""
    if sizing is None:
        return {}
    live = (observed.pool.get("status") or {}).get("prefill" if role is Role.PREFILL else "decode") or {}
    if not sizing.read:
        reason, message = live.get("reason", ""), live.get("message", "")
    else:
        reason, message = sizing.reason, sizing.message
    at = live.get("lastScaleTime")
    if sizing.scaled_at is not None:
        at = datetime.fromtimestamp(sizing.scaled_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"reason": reason, "message": message, "last_scale_time": at}


def _unschedulable_count(observed: Observed, role: Role) -> int:
    return sum(1 for pod in _pods(observed, role) if _unschedulable(pod))


# --- Ready and Progressing -----------------------------------------------------------------------------------------


def _verdicts(observed: Observed, plan: Plan, outcome: Outcome) -> tuple[Verdict, Verdict]:
    """Ready and Progressing."""
    if plan.refusal is not None:
        refused = Verdict("False", Reason(plan.refusal.reason), plan.refusal.message)
        return refused, refused
    if outcome.conflicts:
        named = "; ".join(map(str, outcome.conflicts))
        taken = Verdict("False", Reason.NAME_CONFLICT, f"exists and is not the pool's: {named}")
        return taken, taken
    if faults := {**outcome.refused, **outcome.failed}:
        first = _listed(f"{key}: {words}" for key, words in sorted(faults.items()))
        failed = Verdict("False", Reason.APPLY_FAILED, first)
        # What the server refuses for good makes no progress; everything else is tried again.
        return failed, failed if outcome.refused else Verdict("True", Reason.ROLLING_OUT, first)
    return _rollout_verdicts(observed, plan, role_counts(plan, outcome))


def _rollout_verdicts(observed: Observed, plan: Plan, counts: Mapping[Role, Counts]) -> tuple[Verdict, Verdict]:
    engines: dict[Role, Counts] = {role: each for role, each in counts.items() if role is not Role.ROUTER}
    router = counts[Role.ROUTER]
    overdue = [f"{role}: {each.stalled}" for role, each in counts.items() if each.stalled]
    if overdue or _is_stuck(observed, plan, counts):
        words = "; ".join([*(overdue or [_count_words(counts)]), *_unmade(counts), *_pod_reasons(observed)])
        verdict = Verdict("False", Reason.ROLLOUT_STALLED, words)
        serving = not plan.superseded and all(_served(each) for each in engines.values()) and router.ready > 0
        return (_arrived(engines) if serving else verdict), verdict
    arrived = not plan.superseded and all(_updated(each) for each in counts.values())
    surplus = any(each.replicas > each.desired for each in counts.values())
    short = [role for role, each in engines.items() if not _served(each)]
    complete = Verdict("False", Reason.COMPLETE, "")
    if arrived and not short and router.ready > 0:
        leaving = Verdict("True", Reason.ROLLING_OUT, _count_words(counts))
        return _arrived(engines), leaving if surplus else complete
    words = "; ".join([_count_words(counts), *_unmade(counts), *_pod_reasons(observed)])
    missing = _missing(observed)
    # While pods leave, those that wait for their place are on their way.
    unschedulable = any(_unschedulable(pod) for pod in observed.pods) and not any(map(_leaving, observed.pods))
    settled = arrived and all(each.complete for each in counts.values()) and not any(map(_starting, observed.pods))
    if missing:
        reason = Reason.MISSING_REFERENCE
    elif unschedulable:
        reason = Reason.UNSCHEDULABLE
    elif not settled:
        reason = Reason.ROLLING_OUT
    else:
        reason = Reason.REPLICAS_NOT_READY if short else Reason.ROUTER_NOT_READY
    return Verdict("False", reason, words), complete if settled else Verdict("True", Reason.ROLLING_OUT, words)


def _arrived(engines: Mapping[Role, Counts]) -> Verdict:
    if all(each.desired == 0 for each in engines.values()):
        return Verdict("True", Reason.SCALED_TO_ZERO, "every role is wanted at zero")
    return Verdict("True", Reason.AVAILABLE, "")


def _updated(counts: Counts) -> bool:
    """All of the present template, and enough; more of them are leaving, which takes nothing away."""
    enough = counts.updated >= counts.desired if counts.desired else not counts.replicas
    return counts.fresh and enough and counts.replicas == counts.updated


def _served(counts: Counts) -> bool:
    return _updated(counts) and counts.available >= counts.desired


def _count_words(counts: Mapping[Role, Counts]) -> str:
    return ", ".join(
        f"{role} {min(each.updated, each.desired) if each.fresh else 0}/{each.desired} updated"
        f" {each.ready}/{each.desired} ready"
        for role, each in counts.items()
    )


def _unmade(counts: Mapping[Role, Counts]) -> list[str]:
    return [f"{role} {each.refused}" for role, each in counts.items() if each.refused]


# --- what pods say -------------------------------------------------------------------------------------------------


def _pods(observed: Observed, role: Role) -> list[Json]:
    return [pod for pod in observed.pods if _role_of(pod) == role and "deletionTimestamp" not in pod["metadata"]]


def _condition(pod: Json, kind: str) -> Json:
    found: Json = next((each for each in pod["status"].get("conditions", ()) if each["type"] == kind), {})
    return found


def _gpus(pod: Json) -> int:
    """Accelerators that a pod holds on its node, until it has ended."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    amounts = (limits.get(name, "0") for limits in spec.get("limits", ()) for name in accelerator_resources())
    return sum(int(amount) for amount in amounts if str(amount).isdecimal())


def _unschedulable(pod: Json) -> bool:
    scheduled = _condition(pod, "PodScheduled")
    return scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def _starting(pod: Json) -> bool:
    """True for a pod that is on its way for the first time: slow, not broken."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    containers = pod["status"].get("containerStatuses", ())
    return not containers or any(not each.get("started") and not each.get("restartCount", 0) for each in containers)


def _leaving(pod: Json) -> bool:
    metadata = pod["metadata"]
    return "deletionTimestamp" in metadata or names.ANNOTATION_DRAINING in (metadata.get("annotations") or {})


def _is_stuck(observed: Observed, plan: Plan, counts: Mapping[Role, Counts]) -> bool:
    """True when a pod of a rollout that is not complete fails in a way that does not heal by waiting."""
    assert plan.desired is not None
    for role, each in counts.items():
        if each.complete and _updated(each) and not plan.superseded:
            continue
        revision = plan.desired.revision if role is not Role.ROUTER else None
        pods = (pod for pod in _pods(observed, role) if revision in (None, _revision_of(pod)))
        if any(_fault(pod) for pod in pods):
            return True
    return False


def _revision_of(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get(names.LABEL_REVISION, ""))


def _fault(pod: Json) -> str:
    """How a pod fails that only another spec, image or node mends; empty: it does not.

    An image that cannot be pulled, a container that the node refuses, and one that ends again and again. The words
    are the same through all states of a back-off: a pod that is started anew every minute would move them else.
    """
    if _condition(pod, "Ready").get("status") == "True":
        return ""
    for each in (*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())):
        waiting = (each.get("state", {}).get("waiting") or {}).get("reason", "")
        if waiting in _UNPULLED:
            return f"ErrImagePull, ImagePullBackOff: {each.get('image', '')}"
        if waiting in _REFUSED:
            return f"{waiting}: {each['state']['waiting'].get('message', '')}"
        ends = [each.get(state, {}).get("terminated") or {} for state in ("state", "lastState")]
        ended = next((one for one in ends if one), {})
        again = each.get("restartCount", 0) >= _RESTARTS and not each.get("started")
        if waiting == "CrashLoopBackOff" or again or ended.get("reason") == "OOMKilled":
            return f"CrashLoopBackOff: {ended.get('reason') or 'Error'}, exit code {ended.get('exitCode', 'unknown')}"
    return ""


def _waiting(pod: Json) -> list[Json]:
    states = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    return [each["state"]["waiting"] for each in states if each.get("state", {}).get("waiting")]


def _missing(observed: Observed) -> bool:
    """True when a pod refers, or will refer, to an object that does not exist."""
    if observed.missing:
        return True
    for pod in observed.pods:
        if any(each.get("reason") in _MISSING for each in _waiting(pod)):
            return True
        words = _condition(pod, "PodScheduled").get("message", "")
        if _unschedulable(pod) and "persistentvolumeclaim" in words and "not found" in words:
            return True
    return False


def _pod_reasons(observed: Observed) -> list[str]:
    """Everything that is missing, and why pods are not ready: some of their own words, each once."""
    missing = dict.fromkeys(f"{each} is missing" for each in observed.missing)
    found: dict[str, None] = {}
    for pod in sorted(observed.pods, key=lambda each: each["metadata"]["name"]):
        if _unschedulable(pod):
            found[f"{_role_of(pod)} Unschedulable: {_condition(pod, 'PodScheduled').get('message', '')}"] = None
        if fault := _fault(pod):
            found[f"{_role_of(pod)} {fault}"] = None
            continue
        for waiting in _waiting(pod):
            reason = waiting.get("reason", "")
            if reason in ("", "ContainerCreating", "PodInitializing"):
                continue
            # Messages of back-offs count seconds: they would change the status with every reading.
            detail = f": {waiting.get('message', '')}" if reason in _MISSING else ""
            found[f"{_role_of(pod)} {reason}{detail}"] = None
    return [*missing, *list(found)[:_MAX_NAMED]]


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _MAX_NAMED} more" if len(every) > _MAX_NAMED else ""
    return "; ".join(every[:_MAX_NAMED]) + more
