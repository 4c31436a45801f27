"""Every version of pools, Deployments and pods in the order in which the store took them; pure.

Boundary: resourceVersions of one store are one sequence over all kinds, so events of several watches, sorted by them,
are the exact states that ever were, whenever they arrived here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdpool_api.names import (
    ANNOTATION_DRAINING,
    GROUP,
    LABEL_POOL,
    LABEL_REVISION,
    LABEL_ROLE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]
ROUTER: Final = "router"
REFUSED: Final = "chaos.pdpool.io/refused"
"""Annotation of a pool whose present spec is one that is refused."""
_GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True)
class PoolState:
    """One version of a pool."""

    uid: str
    name: str
    generation: int
    observed: int
    """The generation that its status speaks of."""
    refused: bool
    """Its present spec is one that the operator has to refuse."""
    stalled: bool
    """Its status says so."""
    deleting: bool
    born: str
    spec: Json


@dataclass(frozen=True)
class DeploymentState:
    """One version of an engine role's Deployment."""

    uid: str
    name: str
    owner: str
    """Uid of its pool."""
    role: str
    revision: str
    replicas: int
    deleting: bool
    gpus: int
    """Of one pod."""
    generation: int


@dataclass(frozen=True)
class PodState:
    """One version of an engine's pod."""

    uid: str
    name: str
    pool: str
    """Name of its pool."""
    role: str
    revision: str
    ready: bool
    marked: bool
    """It has the mark of a pod that leaves."""
    deleting: bool
    ended: bool
    """It failed or succeeded, and holds nothing."""
    born: str
    """When it was made, in whole seconds: pods of an earlier pool of the name are older than the pool."""

    @property
    def serves(self) -> bool:
        """Whether a router would choose it."""
        return self.ready and not self.marked and not self.deleting and not self.ended


State = PoolState | DeploymentState | PodState


@dataclass(frozen=True)
class Event:
    """One version of one object; no state: it is gone from here on."""

    version: int
    kind: str
    uid: str
    at_s: float
    """When it arrived here, by the monotonic clock."""
    state: State | None


@dataclass
class World:
    """What is there at one version of the store."""

    pools: dict[str, PoolState] = field(default_factory=dict)
    deployments: dict[str, DeploymentState] = field(default_factory=dict)
    pods: dict[str, PodState] = field(default_factory=dict)

    def take(self, event: Event) -> State | None:
        """Goes on to an event; what its object was before."""
        shelves: dict[str, dict[str, Any]] = {"pools": self.pools, "deployments": self.deployments, "pods": self.pods}
        shelf = shelves[event.kind]
        before: State | None = shelf.pop(event.uid, None)
        if event.state is not None:
            shelf[event.uid] = event.state
        return before

    def pool_named(self, name: str) -> PoolState | None:
        """The pool of a name that is there now."""
        return next((each for each in self.pools.values() if each.name == name), None)

    def pods_of(self, pool: PoolState, role: str = "") -> list[PodState]:
        """Its engines' pods that run or may yet run, of one role or of all."""
        return [
            each
            for each in self.pods.values()
            if each.pool == pool.name
            and each.born >= pool.born
            and role in ("", each.role)
            and not each.deleting
            and not each.ended
        ]


def pool_state(raw: Json) -> PoolState:
    """What counts of a pool."""
    metadata, status = raw["metadata"], raw.get("status", {})
    said = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return PoolState(
        uid=metadata["uid"],
        name=metadata["name"],
        generation=int(metadata["generation"]),
        observed=int(status.get("observedGeneration", 0)),
        refused=REFUSED in (metadata.get("annotations") or {}),
        stalled=said.get("Stalled") == "True",
        deleting="deletionTimestamp" in metadata,
        born=metadata["creationTimestamp"],
        spec=raw["spec"],
    )


def deployment_state(raw: Json) -> DeploymentState | None:
    """What counts of an engine role's Deployment; None of every other."""
    metadata = raw["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    owner: Json = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), {})
    if labels.get(LABEL_ROLE, ROUTER) == ROUTER or not owner.get("apiVersion", "").startswith(f"{GROUP}/"):
        return None
    containers = raw["spec"]["template"]["spec"]["containers"]
    gpus = sum(int((each.get("resources", {}).get("limits") or {}).get(_GPU, 0)) for each in containers)
    return DeploymentState(
        uid=metadata["uid"],
        name=metadata["name"],
        owner=owner["uid"],
        role=labels[LABEL_ROLE],
        revision=labels.get(LABEL_REVISION, ""),
        replicas=int(raw["spec"].get("replicas", 1)),
        deleting="deletionTimestamp" in metadata,
        gpus=gpus,
        generation=int(metadata.get("generation", 0)),
    )


def pod_state(raw: Json) -> PodState | None:
    """What counts of an engine's pod; None of every other."""
    metadata, status = raw["metadata"], raw.get("status", {})
    labels: Mapping[str, str] = metadata.get("labels") or {}
    if labels.get(LABEL_ROLE, ROUTER) == ROUTER:
        return None
    said = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return PodState(
        uid=metadata["uid"],
        name=metadata["name"],
        pool=labels.get(LABEL_POOL, ""),
        role=labels[LABEL_ROLE],
        revision=labels.get(LABEL_REVISION, ""),
        ready=said.get("Ready") == "True",
        marked=ANNOTATION_DRAINING in (metadata.get("annotations") or {}),
        deleting="deletionTimestamp" in metadata,
        ended=status.get("phase") in ("Failed", "Succeeded"),
        born=metadata["creationTimestamp"],
    )
