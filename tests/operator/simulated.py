"""A small simulated cluster that carries out the planner's steps: Deployments, their pods, and time.

Boundary: a stand-in for Kubernetes, for properties over many states; the same steps run on a real API server in
`test_rollout_api.py`. The Deployment controller follows Kubernetes' rules for a rolling update, for scaling several
ReplicaSets in proportion, and for which pod a ReplicaSet removes first.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pdpool_api import names
from pdpool_operator.observe.cluster import left_s
from pdpool_operator.records import DEPLOYMENTS, Child, ChildKey, Desired, Load, Observed, Pace, Plan, PoolRef

if TYPE_CHECKING:
    from pdpool_api.names import Role

Json = dict[str, Any]
POOL = "tiny"
REF = PoolRef("serving", POOL)
RAW: Json = {"metadata": {"name": POOL, "namespace": "serving", "uid": "u", "generation": 1}, "spec": {}}


def desired(
    revision: str,
    sizes: dict[Role, int],
    paces: dict[Role, Pace],
    *,
    template: str | dict[Role, str] = "t",
    alone: bool = True,
    max_gpus: int | None = None,
) -> Desired:
    """What a spec asks for, with just enough of each Deployment for a step."""
    templates = template if isinstance(template, dict) else dict.fromkeys(sizes, template)
    return Desired(
        revision=revision,
        children=tuple(_engine(revision, role, size, templates[role]) for role, size in sizes.items()),
        replicas=sizes,
        paces=paces,
        serves_alone=alone,
        max_gpus=max_gpus,
    )


def _engine(revision: str, role: Role, size: int, template: str) -> Child:
    labels = {names.LABEL_ROLE: role.value, names.LABEL_REVISION: revision}
    metadata = {"name": names.child_name(POOL, role.value, revision), "labels": labels}
    body = {"metadata": metadata, "spec": {"replicas": size, "paused": False, "template": template}}
    return Child(DEPLOYMENTS, body, revision=revision, role=role)


@dataclass
class Pod:
    name: str
    template: str
    gpus: int
    born: int
    ready: bool = False
    started: bool = False
    scheduled: bool = False
    ending: bool = False
    lost_s: float | None = None
    """Since when its node is lost: nobody ends it, and it was to have ended then."""
    requests: int = 0
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def aside(self) -> bool:
        return names.ANNOTATION_DRAINING in self.annotations

    @property
    def serves(self) -> bool:
        return self.ready and not self.aside and not self.ending


@dataclass
class Deployment:
    role: Role
    revision: str
    gpus: int
    template: str = ""
    hash: str = ""
    replicas: int = 0
    surge: int = 0
    unavailable: int = 1
    paused: bool = False
    generation: int = 0
    undone: int = 0
    """The generation at which a change was taken back."""
    seen: int = 0
    sets: dict[str, int] = field(default_factory=dict)
    """Size of each ReplicaSet, by template, the oldest first."""
    scaled: int = 0
    """Size that the ReplicaSets were last scaled to."""
    before: int = 0
    """The same with the surge of that time."""
    status: Json = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    @property
    def live(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.ending]

    def of(self, template: str) -> list[Pod]:
        return [pod for pod in self.live if pod.template == template]


class SimulatedCluster:
    """Everything, and the moves that change it."""

    def __init__(self, gpus: int | None = None) -> None:
        self.gpus = gpus
        """Accelerators of the nodes; None: there is no end of them."""
        self.deployments: dict[ChildKey, Deployment] = {}
        self.now_s = 1_000_000
        self.bad: set[tuple[str, str]] = set()
        """Revision and template whose pods never become ready."""
        self._numbers = itertools.count()

    # --- what the operator sees, and does --------------------------------------------------------------------------

    def observed(self) -> Observed:
        pods = [(each, pod) for each in self.deployments.values() for pod in each.pods]
        raw = (self._pod(each, pod) for each, pod in pods)
        return Observed(
            REF,
            RAW,
            {key: self._deployment(key, each) for key, each in self.deployments.items()},
            tuple(pod for pod in raw if left_s(pod, self.now_s) > 0),
            loads={pod.name: Load(pod.requests, holds_kv=pod.requests > 0) for _, pod in pods},
        )

    def _deployment(self, key: ChildKey, each: Deployment) -> Json:
        labels = {names.LABEL_ROLE: each.role.value, names.LABEL_REVISION: each.revision}
        annotations = {names.ANNOTATION_TEMPLATE: each.hash, names.ANNOTATION_UNDONE: str(each.undone)}
        limits = [{"nvidia.com/gpu": str(each.gpus)}] if each.gpus else []
        return {
            "metadata": {
                "name": key.name,
                "generation": each.generation,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {"replicas": each.replicas, "paused": each.paused, "limits": limits},
            "status": {**each.status, "observedGeneration": each.seen},
        }

    def _pod(self, each: Deployment, pod: Pod) -> Json:
        deployment = names.child_name(POOL, each.role.value, each.revision)
        labels = {
            names.LABEL_ROLE: each.role.value,
            names.LABEL_REVISION: each.revision,
            "pod-template-hash": pod.template,
        }
        owner = {"controller": True, "kind": "ReplicaSet", "name": f"{deployment}-{pod.template}"}
        metadata: Json = {
            "name": pod.name,
            "uid": pod.name,
            "labels": labels,
            "annotations": dict(pod.annotations),
            "ownerReferences": [owner],
            "creationTimestamp": f"{pod.born:012d}",
        }
        if pod.ending:
            metadata["deletionTimestamp"] = "now" if pod.lost_s is None else stamp(pod.lost_s)
        conditions = [{"type": "Ready", "status": str(pod.ready)}]
        if not pod.scheduled:
            conditions.append({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"})
        limits = [{"nvidia.com/gpu": str(pod.gpus)}] if pod.gpus else []
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"started": pod.started}]}
        return {"metadata": metadata, "spec": {"limits": limits}, "status": status}

    def execute(self, plan: Plan) -> None:
        assert plan.desired is not None
        for child in plan.apply:
            assert child.role is not None
            gpus = plan.desired.paces[child.role].accelerators
            each = self.deployments.setdefault(child.key, Deployment(child.role, child.revision, gpus))
            spec, rolling = child.body["spec"], child.body["spec"]["strategy"]["rollingUpdate"]
            self._set(
                each,
                template=spec["template"],
                hash=child.body["metadata"]["annotations"][names.ANNOTATION_TEMPLATE],
                replicas=spec["replicas"],
                paused=spec["paused"],
                surge=rolling["maxSurge"],
                unavailable=rolling["maxUnavailable"],
            )
        for key, fields in plan.adjust.items():
            rolling = fields.get("strategy", {}).get("rollingUpdate")
            more = {"surge": rolling["maxSurge"], "unavailable": rolling["maxUnavailable"]} if rolling else {}
            plain = {name: value for name, value in fields.items() if name != "strategy"}
            self._set(self.deployments[key], **plain, **more)
        for key, template in plan.undo.items():
            each = self.deployments[key]
            self._set(each, template=template, paused=False, surge=0, unavailable=1)
            each.undone = each.generation
        by_name = {pod.name: pod for each in self.deployments.values() for pod in each.pods}
        for note in plan.notes:
            for name, value in note.annotations.items():
                by_name[note.name].annotations.pop(name, None)
                if value is not None:
                    by_name[note.name].annotations[name] = value
        for key in plan.delete:
            assert not self.deployments[key].live
            del self.deployments[key]

    @staticmethod
    def _set(each: Deployment, **fields: Any) -> None:
        changed = [name for name, value in fields.items() if getattr(each, name) != value]
        for name in changed:
            setattr(each, name, fields[name])
        each.generation += bool(changed) or not each.generation

    # --- what Kubernetes does --------------------------------------------------------------------------------------

    def control(self, each: Deployment) -> None:
        """One look of the Deployment's controller and of those of its ReplicaSets."""
        each.seen = each.generation
        is_first = not each.sets
        if not each.paused:
            each.sets.setdefault(each.template, 0)
        active = [name for name, size in each.sets.items() if size]
        if is_first or each.scaled != each.replicas or each.paused:
            self._scale(each, active)
        else:
            self._roll(each)
        each.before = each.replicas + each.surge
        self._fill(each)
        ready = [pod for pod in each.live if pod.ready]
        each.status = {
            "replicas": len(each.live),
            "readyReplicas": len(ready),
            "updatedReplicas": len(each.of(each.template)),
        }

    @staticmethod
    def _scale(each: Deployment, active: list[str]) -> None:
        limit = each.replicas + each.surge if each.replicas else 0
        if len(active) <= 1:
            only = active[0] if active else next(reversed(each.sets), None)
            if only is not None:
                each.sets[only] = each.replicas
        else:
            left = limit - sum(each.sets.values())
            order = sorted(active, key=lambda name: -each.sets[name])
            added = 0
            sizes = dict(each.sets)
            for name in order if left else ():
                share = round(sizes[name] * limit / each.before) - sizes[name] if limit else -sizes[name]
                part = min(share, left - added) if left > 0 else max(share, left - added)
                each.sets[name] += part
                added += part
            each.sets[order[0]] = max(0, each.sets[order[0]] + left - added)
        each.scaled = each.replicas

    def _roll(self, each: Deployment) -> None:
        new, total = each.template, sum(each.sets.values())
        if each.sets[new] > each.replicas:
            each.sets[new] = each.replicas
            return
        room = each.replicas + each.surge - total
        if each.sets[new] < each.replicas and room > 0:
            each.sets[new] += min(room, each.replicas - each.sets[new])
            return
        fewest = each.replicas - each.unavailable
        ready = {name: sum(pod.ready for pod in each.of(name)) for name in each.sets}
        spare = total - fewest - (each.sets[new] - ready[new])
        old = [name for name in each.sets if name != new and each.sets[name]]
        for name in old:
            part = max(0, min(spare, each.sets[name] - ready[name]))
            each.sets[name] -= part
            spare -= part
        spare = sum(ready.values()) - fewest
        for name in old:
            part = max(0, min(spare, each.sets[name]))
            each.sets[name] -= part
            spare -= part

    def _fill(self, each: Deployment) -> None:
        for template, size in each.sets.items():
            live = each.of(template)
            for _ in range(size - len(live)):
                number = next(self._numbers)
                each.pods.append(Pod(f"{each.role}-{each.revision}-{number}", template, each.gpus, number))
            for pod in sorted(live, key=_removal_order)[: max(0, len(live) - size)]:
                pod.ending = True

    def schedule(self) -> None:
        """Places what fits on the nodes."""
        pods = [pod for each in self.deployments.values() for pod in each.pods]
        used = sum(pod.gpus for pod in pods if pod.scheduled)
        for pod in pods:
            if not pod.scheduled and not pod.ending and (self.gpus is None or used + pod.gpus <= self.gpus):
                pod.scheduled = True
                used += pod.gpus

    def start(self, each: Deployment, pod: Pod) -> None:
        """A pod that can becomes ready."""
        if pod.scheduled and not pod.ending and (each.revision, pod.template) not in self.bad:
            pod.ready = pod.started = True

    def end(self, each: Deployment) -> None:
        """Terminating pods are gone, but for those that nobody can end."""
        each.pods = [pod for pod in each.pods if not pod.ending or pod.lost_s is not None]

    def calm(self, step: Any, looks: int = 200) -> None:
        """Everything moves until nothing does any more; `step` is the operator's."""
        quiet = 0
        for _ in range(looks):
            before = self.picture()
            step()
            for each in list(self.deployments.values()):
                self.control(each)
                self.end(each)
            self.schedule()
            for each in self.deployments.values():
                for pod in each.live:
                    self.start(each, pod)
                    pod.requests = 0 if pod.aside else pod.requests
            self.now_s += 5
            # Twice: a pod that was marked just now waits for the clock alone.
            quiet = quiet + 1 if self.picture() == before else 0
            if quiet > 1:
                return
        raise AssertionError(f"does not come to rest: {self.picture()}")

    # --- what is measured ------------------------------------------------------------------------------------------

    def picture(self) -> str:
        """Everything that a look could find changed."""
        return repr(self.deployments)

    def serving(self) -> list[tuple[str, Role, int]]:
        return [(each.revision, each.role, sum(pod.serves for pod in each.live)) for each in self.deployments.values()]

    def decided(self, roles: tuple[Role, ...]) -> int:
        """Replicas that were asked for, or are there because they were."""
        return sum(max(each.replicas, len(each.live)) for each in self.deployments.values() if each.role in roles)

    def decided_gpus(self) -> int:
        return sum(max(each.replicas, len(each.live)) * each.gpus for each in self.deployments.values())


def _removal_order(pod: Pod) -> tuple[Any, ...]:
    cost = int(pod.annotations.get(names.ANNOTATION_DELETION_COST, 0))
    return pod.scheduled, pod.ready, cost, -pod.born


def stamp(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
