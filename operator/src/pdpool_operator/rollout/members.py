"""Engine Deployments and their pods, as the planner counts them.

Boundary: pure; reads raw objects into frozen records. A pod that terminates or has ended serves nobody; what it still
holds on its node is counted apart. Readiness is taken from pods and from the Deployment's own count, whichever is
less: the two are watched apart, and either may be older.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.hardware import accelerator_resources
from pdpool_api.names import Role
from pdpool_operator.records import DEPLOYMENTS, ChildKey, Json, Load, Observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COST_MARKED: Final = "-1000000"
"""Deletion cost of a pod that is to leave."""
COST_SPENT: Final = "-2000000"
"""Deletion cost of a pod that has finished: it goes before those that only were marked."""
_ENDED: Final = ("Succeeded", "Failed")
_HASH_LABEL: Final = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod that is not terminating."""

    name: str
    uid: str
    ready: bool
    started: bool
    """Its engine has started once in this life of the container: when it is not ready, it may be so again."""
    unschedulable: bool
    aside: bool
    """Routers do not choose it any more."""
    marked_s: float | None
    """Since when, in seconds of the Unix epoch; None: it is not marked, or nobody can read the mark."""
    ours: bool
    """The operator itself marked it."""
    spent: bool
    """It was marked as having finished."""
    born: str
    load: Load
    template: str = ""
    """Hash of the template that its ReplicaSet has."""

    @property
    def serves(self) -> bool:
        """It gets requests."""
        return self.ready and not self.aside


@dataclass(frozen=True, slots=True)
class Member:
    """The replicas of one role at one revision: a Deployment, or one that is not made yet."""

    key: ChildKey
    role: Role
    revision: str
    asked: int = 0
    """`spec.replicas`."""
    paused: bool = False
    accelerators: int = 0
    """Of one replica."""
    replicas: tuple[Replica, ...] = ()
    ready_count: int = 0
    """What the Deployment's controller counts."""
    terminating: int = 0
    seen: bool = True
    """The Deployment's controller has seen the last change of it."""
    mixed: bool = False
    """Pods of several templates: a change within the revision is under way, or was stopped half-way. Which pod a
    smaller size takes is not known then."""
    template: str = ""
    """Hash of the template that was last applied."""
    undoing: bool = False
    """It goes back to an earlier template, by itself."""
    alive: bool = True
    """False: there is no such Deployment (yet, or any more)."""

    @property
    def live(self) -> int:
        """Pods that are not terminating."""
        return len(self.replicas)


def members(observed: Observed) -> tuple[Member, ...]:
    """Every engine Deployment of the pool with its pods, and pods whose Deployment is gone; in a fixed order."""
    pods: dict[tuple[str, str], list[Json]] = {}
    for pod in observed.pods:
        key = _label(pod, names.LABEL_ROLE), _label(pod, names.LABEL_REVISION)
        if key[0] in names.ENGINE_ROLES:
            pods.setdefault(key, []).append(pod)
    found = [
        _member(key, live, pods.pop((_label(live, names.LABEL_ROLE), _label(live, names.LABEL_REVISION)), ()), observed)
        for key, live in sorted(observed.children.items())
        if is_engine(key, live)
    ]
    orphans = [
        Member(ChildKey(DEPLOYMENTS.kind, ""), Role(role), revision, **_of_pods(left, observed), alive=False)
        for (role, revision), left in sorted(pods.items())
    ]
    return (*found, *orphans)


def is_engine(key: ChildKey, live: Json) -> bool:
    """True for a Deployment of an engine role."""
    return key.kind == DEPLOYMENTS.kind and _label(live, names.LABEL_ROLE) in names.ENGINE_ROLES


def accelerators(limits: Iterable[Json]) -> int:
    """Accelerators in the limits of a pod's containers."""
    amounts = (each.get(name, "0") for each in limits for name in accelerator_resources())
    return sum(int(amount) for amount in amounts if str(amount).isdecimal())


def _member(key: ChildKey, live: Json, pods: Sequence[Json], observed: Observed) -> Member:
    spec, status = live.get("spec", {}), live.get("status", {})
    of_pods = _of_pods(pods, observed)
    templates = {_label(pod, _HASH_LABEL) for pod in pods}
    is_seen = int(status.get("observedGeneration", 0)) >= int(live["metadata"].get("generation", 0))
    is_updated = int(status.get("updatedReplicas", 0)) >= int(status.get("replicas", 0))
    is_mixed = len(templates) > 1 or not is_updated
    annotations = live["metadata"].get("annotations") or {}
    return Member(
        key=key,
        role=Role(_label(live, names.LABEL_ROLE)),
        revision=_label(live, names.LABEL_REVISION),
        asked=int(spec.get("replicas") or 0),
        paused=bool(spec.get("paused")),
        **{**of_pods, "accelerators": accelerators(spec.get("limits", ())) or of_pods["accelerators"]},
        ready_count=int(status.get("readyReplicas", 0)),
        seen=is_seen,
        mixed=is_mixed,
        undoing=is_mixed and annotations.get(names.ANNOTATION_UNDONE) == str(live["metadata"].get("generation", 0)),
        template=str(annotations.get(names.ANNOTATION_TEMPLATE, "")),
    )


def _of_pods(pods: Iterable[Json], observed: Observed) -> Json:
    running = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    staying = [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]
    return {
        "replicas": tuple(sorted((_replica(pod, observed) for pod in staying), key=lambda each: each.name)),
        "terminating": len(running) - len(staying),
        "accelerators": max((accelerators(pod.get("spec", {}).get("limits", ())) for pod in running), default=0),
    }


def _replica(pod: Json, observed: Observed) -> Replica:
    metadata, status = pod["metadata"], pod.get("status", {})
    annotations = metadata.get("annotations") or {}
    cost = annotations.get(names.ANNOTATION_DELETION_COST)
    aside = names.ANNOTATION_DRAINING in annotations
    said = {each["type"]: each for each in status.get("conditions", ())}
    scheduled = said.get("PodScheduled", {})
    states = status.get("containerStatuses", ())
    return Replica(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        ready=said.get("Ready", {}).get("status") == "True",
        started=bool(states) and all(each.get("started") for each in states),
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        aside=aside,
        marked_s=_seconds(annotations[names.ANNOTATION_DRAINING]) if aside else None,
        ours=aside and cost in (COST_MARKED, COST_SPENT),
        spent=aside and cost == COST_SPENT,
        born=str(metadata.get("creationTimestamp", "")),
        load=observed.loads.get(str(metadata.get("uid", "")), Load()),
        template=_label(pod, _HASH_LABEL),
    )


def _seconds(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None


def _label(live: Json, name: str) -> str:
    return str((live["metadata"].get("labels") or {}).get(name, ""))
