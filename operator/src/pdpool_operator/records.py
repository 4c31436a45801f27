"""What one reconcile passes along: observed, desired, plan, outcome (frozen), and the kinds of objects they speak of.

Boundary: shapes only; nothing here reads, decides or writes. Objects of the API server are raw JSON mappings, because
what counts is what the server said, not what a client library's model keeps of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_api.pool import InferencePoolSpec
    from pdpool_operator.sizes import Sizes

Json = dict[str, Any]
"""A JSON object of the Kubernetes API; treated as immutable."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API server keeps it."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` that objects of this kind carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


POOLS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES: Final = Resource("", "v1", "services", "Service")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet")
CONTROLLER_REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
POD_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")

OPTIONAL_RESOURCES: Final = (HTTP_ROUTES, POD_MONITORS)
"""Kinds of children that a cluster may lack: other projects define them."""

CHILD_RESOURCES: Final = (
    CONTROLLER_REVISIONS,
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    BUDGETS,
    SERVICES,
    DEPLOYMENTS,
    *OPTIONAL_RESOURCES,
)
"""Kinds of children in the order in which they are applied: what pods need stands before the pods."""

REQUIRED: Final = (POOLS, *(each for each in CHILD_RESOURCES if each not in OPTIONAL_RESOURCES), PODS)
"""Kinds without which nothing can be done."""
WATCHED: Final = (*REQUIRED, *OPTIONAL_RESOURCES)


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a list, taken apart only by who needs more of it than whether it is new."""

    namespace: str
    name: str
    version: int
    """Its resourceVersion."""
    read: Callable[[], Json]
    """The whole object."""


@dataclass(frozen=True, slots=True, order=True)
class PoolRef:
    """Which pool: the key of its task, its wake flag and its log lines."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class ChildKey:
    """Which child, inside the namespace of its pool."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Child:
    """One object that should exist, with every field that the operator owns."""

    resource: Resource
    body: Json
    revision: str = ""
    """The pool revision that it serves; empty for what all revisions share."""
    role: names.Role | None = None

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.body["metadata"]["name"])

    @property
    def key(self) -> ChildKey:
        """Its kind and name."""
        return ChildKey(self.resource.kind, self.name)


@dataclass(frozen=True, slots=True, order=True)
class SecretEntry:
    """One entry of a Secret of the pool's namespace."""

    name: str
    key: str
    """Empty: the whole Secret, as a volume."""
    optional: bool = False
    """Pods start without it."""

    @property
    def reference(self) -> Reference:
        """As conditions call it."""
        return Reference(SECRETS.kind, self.name, self.key)


@dataclass(frozen=True, slots=True)
class SecretsSeen:
    """What is known of the Secrets that a pool's engines take variables from; never a value."""

    key_id: str = ""
    """Which key the digests were made with."""
    digests: Mapping[SecretEntry, str] = field(default_factory=dict)
    """Keyed digests of the entries that could be read."""
    missing: tuple[str, ...] = ()
    """What is not there, as `Secret hf`."""
    unwatched: str = ""
    """Why a change of them is not seen, for a person."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a pod still has to do; None: it could not be asked of everybody who knows."""

    requests: int | None = None
    """Requests in flight, summed over the pool's routers."""
    holds_kv: bool | None = None
    """The engine keeps KV, also such as nobody has pulled yet."""
    idle_s: float = 0.0
    """For how long no request has been in flight, as far as this process has seen."""


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """One condition of a pool's health, decided from readings."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """What readings of engines and routers say."""

    transfer: HealthVerdict | None
    """None: one role does it all, and nothing is handed over."""
    routing: HealthVerdict


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """An object of the pool's namespace, or one entry of it, without which a pod does not start."""

    kind: str
    name: str
    key: str = ""
    """Empty: the whole object."""

    @property
    def object_words(self) -> str:
        """The object, as a condition calls it."""
        return f"{self.kind} {self.name}"

    @property
    def words(self) -> str:
        """What is referred to, as a condition calls it."""
        return f"key {self.key} of {self.object_words}" if self.key else self.object_words


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything known about one pool at one moment."""

    ref: PoolRef
    pool: Json
    children: Mapping[ChildKey, Json]
    """Live children: owned by this pool's uid (trimmed, see `observe.cluster`)."""
    pods: tuple[Json, ...] = ()
    """Live pods of the pool, by its labels, and of its Deployments."""
    optional: frozenset[Resource] = frozenset()
    """Optional kinds that the API server has."""
    secrets: SecretsSeen | None = None
    """None: the pool's engines use none, or nobody looked."""
    missing_objects: tuple[str, ...] = ()
    """What else the spec refers to and is not there, as `ConfigMap ca`."""
    loads: Mapping[str, Load] = field(default_factory=dict)
    """By uid of a pod, where it was asked (`observe.loads`)."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What the pods refer to and is known not to be there, as `Secret hf`."""
        return (*(self.secrets.missing if self.secrets is not None else ()), *self.missing_objects)

    @property
    def uid(self) -> str:
        """Identity of this life of the pool."""
        return str(self.pool["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Counts the edits of the spec."""
        return int(self.pool["metadata"].get("generation", 0))

    @property
    def deleting(self) -> bool:
        """True once the pool was asked to go; nothing of it is created or changed any more."""
        return "deletionTimestamp" in self.pool["metadata"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a spec is not carried out: the reason and message of its condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something worth knowing that blocks nothing: a reason of condition Advisory, and its message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How replicas of one engine role are replaced, what one of them holds, and how long it may take to leave."""

    max_surge: int = 0
    """Replicas beyond the desired ones."""
    max_unavailable: int = 1
    """Desired replicas that may be missing."""
    accelerators: int = 0
    """Accelerators of one replica."""
    drain_s: int = 300
    """Longest time between the mark of a leaving pod and its removal."""


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """What the pods of one engine role are made from."""

    operator: str
    """Version of the operator that made it."""
    template: Json
    """The pod template, without what is stamped on it from outside the spec (`rotation`)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was accepted of a pool, and what its engine pods have been made from since the last edit that rolls them."""

    spec: Json
    """As its author wrote it."""
    engine_image: str
    """What a spec that names none got; the operator may have another default now."""
    mode: str
    revision: str
    roles: Mapping[names.Role, EngineRecipe]


@dataclass(frozen=True, slots=True)
class Desired:
    """The children that the spec asks for, at one revision."""

    revision: str
    children: tuple[Child, ...]
    replicas: Mapping[names.Role, int]
    """Desired number of replicas of every role, the router's included."""
    sizes: Sizes = field(default_factory=dict)
    """What the last tick said of the autoscaled roles."""
    paces: Mapping[names.Role, Pace] = field(default_factory=dict)
    """How each engine role is replaced."""
    serves_alone: bool = True
    """Decode without a prefill of its revision serves (`onPrefillUnavailable: Local`)."""
    lease_s: int = 0
    """How long prefill keeps KV that nobody has pulled."""
    mode: str = "Disaggregated"
    """How requests are served."""
    mode_inputs: str = ""
    """What mode Auto decided from, as a hash."""
    max_gpus: int | None = None
    remarks: tuple[Remark, ...] = ()
    """What is worth knowing, for condition Advisory."""
    recipe: Recipe | None = None
    """What to remember of it; None: nobody asked for it to be kept."""
    spec: InferencePoolSpec | None = None
    """What the children were built from: images resolved, mode decided; None: nobody asked for it to be kept."""
    health: PoolHealth | None = None
    """What readings say; None: nobody reads."""
    unchecked: str = ""
    """What could not be checked, for condition SpecValid."""


@dataclass(frozen=True, slots=True)
class Note:
    """Annotations that one pod gets or (None) loses."""

    name: str
    uid: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What this reconcile does: a step towards the desired state."""

    desired: Desired | None
    refusal: Refusal | None = None
    apply: tuple[Child, ...] = ()
    adjust: Mapping[ChildKey, Json] = field(default_factory=dict)
    """Fields of `spec` to set in live Deployments that are not applied: those of older revisions."""
    undo: Mapping[ChildKey, str] = field(default_factory=dict)
    """Deployments of older revisions that go back to an earlier template of theirs, by `pod-template-hash`."""
    notes: tuple[Note, ...] = ()
    """Marks of pods that leave, or stay after all."""
    delete: tuple[ChildKey, ...] = ()
    superseded: frozenset[ChildKey] = frozenset()
    """Deployments of older revisions that are still there."""
    leaving: tuple[str, ...] = ()
    """Uids of pods that wait for the end of their work, or among which one that leaves was chosen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the plan."""

    live: Mapping[ChildKey, Json] = field(default_factory=dict)
    """Children after the writes, as the API server returned them."""
    written: tuple[ChildKey, ...] = ()
    conflicts: tuple[ChildKey, ...] = ()
    """Objects of a desired name that the pool does not own; they were left alone."""
    refused: Mapping[ChildKey, str] = field(default_factory=dict)
    """Writes that the API server will never take as they are, with its words."""
    failed: Mapping[ChildKey, str] = field(default_factory=dict)
    """Writes that failed for now."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What children depend on besides the pool: where the operator runs, and what the API server has."""

    operator_namespace: str | None = None
    """None: it runs outside the cluster, or does not know."""
    optional: frozenset[Resource] = frozenset()
    """Optional kinds that can be made."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images that a pool gets when its spec names none."""

    engine: str
    router: str
