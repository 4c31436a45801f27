"""A pool's live workload as a tick reads it: sizes of roles, and pods with their states.

Boundary: no I/O; from what the store knows.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.autoscale import PodReading
from pdpool_operator.records import DEPLOYMENTS
from pdpool_operator.rollout.members import COST_MARKED, COST_SPENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_operator.autoscale import Measure
    from pdpool_operator.records import Json, Observed

_OVER = ("Succeeded", "Failed")


def pods(observed: Observed, role: Role) -> list[Json]:
    """Pods of a role that have not ended."""
    return [
        pod
        for pod in observed.pods
        if _label(pod, names.LABEL_ROLE) == role and pod.get("status", {}).get("phase") not in _OVER
    ]


def serving(observed: Observed, role: Role) -> list[Json]:
    """Pods of a role that are ready and not being deleted."""
    return [pod for pod in pods(observed, role) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def draining(observed: Observed, role: Role) -> list[Json]:
    """Pods of a role that are being deleted and still run: what they were given they finish."""
    return [
        pod
        for pod in pods(observed, role)
        if "deletionTimestamp" in pod["metadata"]
        and address(pod, 0) is not None
        and any("running" in each.get("state", {}) for each in pod["status"].get("containerStatuses", ()))
    ]


def size(observed: Observed, role: Role) -> int | None:
    """Replicas that the role is wanted at, as its workload shows; None: there is none.

    A replica that was marked to leave is wanted no more, although its Deployment asks for it until it has finished.
    While two revisions stand side by side neither says it: what was reported last does.
    """
    found = {
        key: int(live["spec"]["replicas"])
        for key, live in observed.children.items()
        if key.kind == DEPLOYMENTS.kind
        and _label(live, names.LABEL_ROLE) == role
        and (live.get("spec") or {}).get("replicas") is not None
    }
    if len(found) > 1:
        said = (observed.pool.get("status") or {}).get("prefill" if role is Role.PREFILL else "decode") or {}
        return int(said["desiredReplicas"]) if "desiredReplicas" in said else max(found.values())
    if not found:
        return None
    (asked,) = found.values()
    staying = [pod for pod in pods(observed, role) if "deletionTimestamp" not in pod["metadata"]]
    # Those that the Deployment does not ask for any more are about to go: they are among the marked ones.
    going = max(0, len(staying) - asked)
    return max(0, asked - max(0, sum(map(is_marked, staying)) - going))


def reading(pod: Json, values: Mapping[Measure, float]) -> PodReading:
    """One pod, with what was read of it."""
    return PodReading(
        name=str(pod["metadata"]["name"]),
        ready=is_ready(pod),
        leaving=is_leaving(pod),
        unschedulable=_condition(pod, "PodScheduled").get("reason") == "Unschedulable",
        start_s=_start_s(pod),
        values=values,
    )


def is_ready(pod: Json) -> bool:
    """True for a pod that serves."""
    return _condition(pod, "Ready").get("status") == "True"


def is_leaving(pod: Json) -> bool:
    """True for a pod that is being deleted, or that drains before it is."""
    metadata = pod["metadata"]
    return "deletionTimestamp" in metadata or names.ANNOTATION_DRAINING in (metadata.get("annotations") or {})


def is_marked(pod: Json) -> bool:
    """True for a pod that the operator marked to leave; a mark that somebody set by hand changes no size."""
    annotations = pod["metadata"].get("annotations") or {}
    by_us = annotations.get(names.ANNOTATION_DELETION_COST) in (COST_MARKED, COST_SPENT)
    return by_us and names.ANNOTATION_DRAINING in annotations


def address(pod: Json, port: int) -> str | None:
    """`host:port` of a pod, IPv6 in brackets; None: it has no address yet."""
    ip = pod.get("status", {}).get("podIP")
    if not ip:
        return None
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _start_s(pod: Json) -> float | None:
    """From creation to ready, of a pod that became ready once and was never restarted."""
    restarts = sum(int(each.get("restartCount", 0)) for each in pod.get("status", {}).get("containerStatuses", ()))
    began, ended = pod["metadata"].get("creationTimestamp"), _condition(pod, "Ready").get("lastTransitionTime")
    if restarts or not began or not ended or not is_ready(pod):
        return None
    took_s = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    return took_s if took_s >= 0 else None


def _condition(pod: Json, kind: str) -> Json:
    each: Json = next((one for one in pod.get("status", {}).get("conditions", ()) if one["type"] == kind), {})
    return each


def _label(live: Json, name: str) -> str:
    return str(live["metadata"].get("labels", {}).get(name, ""))
