"""The part of an InferencePool's spec that describes one role: its size, its hardware, its pods.

Boundary: shape, limits and CEL rules; see `pool.py`. The names of hardware profiles are those of the shipped files; a
test compares them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from pdpool_api.names import GROUP
from pdpool_api.scaling_spec import RoleAutoscaling
from pdpool_api.schema import (
    MAX_ITEMS,
    Affinity,
    ApiModel,
    EnvVars,
    PodSecurityContext,
    ResourceClaims,
    Resources,
    SecurityContext,
    SpreadConstraints,
    Tolerations,
    VolumeMounts,
    Volumes,
    rule,
    rules,
)

MAX_DATA_PARALLEL: Final = 32
"""Ranks of one pod: rank ports count up from 5557, 5600 and 5657, and the three ranges must not meet."""

DAY_S: Final = 86_400

_ROLLOUT_RULE: Final = "maxSurge and maxUnavailable must not both be 0: no replica could ever be replaced"
_SIZE_RULE: Final = "replicas and autoscaling exclude one another: a size is fixed, or follows demand"
_RESERVED_LABELS: Final = [
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")
]

Argument = Annotated[str, StringConstraints(max_length=65_536)]
Count = Annotated[int, Field(ge=0, le=4096, json_schema_extra={"format": "int32"})]
Degree = Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})]
Hardware = Literal["h100-sxm", "h200", "b200", "a100-80g", "l40s", "l40", "l4", "rtx-4090", "rtx-pro-6000", "cpu"]


Arguments = Annotated[tuple[Argument, ...], Field(max_length=MAX_ITEMS)]
"""Reserved flags are refused by a condition, not here: only the engine's package knows every spelling."""


class Parallelism(ApiModel):
    """How one replica is spread over the accelerators of its node: tensor x pipeline x data of them."""

    tensor: Degree = 1
    """Shards of each layer. Prefill's and decode's sizes must divide one another."""
    pipeline: Degree = 1
    """Stages of consecutive layers; decode supports 1 only."""
    data: Annotated[int, Field(ge=1, le=MAX_DATA_PARALLEL, json_schema_extra={"format": "int32"})] = 1
    """Copies of the model inside one replica (data-parallel ranks)."""

    @property
    def accelerators(self) -> int:
        """Accelerators of one replica."""
        return self.tensor * self.pipeline * self.data


VALID_KEYS: Final = rule(
    "self.all(k, !format.qualifiedName().validate(k).hasValue())",
    "a key must be a name of at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix and '/'",
)
_LABEL = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL)]


class TemplateMetadata(ApiModel):
    """Labels and annotations of the pods; nothing of the pool's own metadata is copied to them."""

    labels: Annotated[
        dict[str, LabelValue],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(k, !k.startsWith('{GROUP}/') && !(k in {_RESERVED_LABELS}))",
                    f"labels of {GROUP}/ and the five of app.kubernetes.io on every child are set by the operator",
                ),
                VALID_KEYS,
            ),
        ),
    ] = Field(default_factory=dict)
    """Labels added to the pods of the role."""
    annotations: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=65_536)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(k, !k.startsWith('{GROUP}/'))",
                    f"annotations of {GROUP}/ are set by the operator",
                ),
                VALID_KEYS,
            ),
        ),
    ] = Field(default_factory=dict)
    """Annotations added to the pods of the role."""


class PodTemplate(ApiModel):
    """What the pods of a role carry besides what the operator generates."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the pods; nothing of the pool's own metadata is copied to them."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64, json_schema_extra=rules(VALID_KEYS))] = Field(
        default_factory=dict
    )
    """Labels that a node must have; a key given here wins over that of the hardware profile."""
    tolerations: Tolerations = ()
    """Taints that the pods bear, besides those of the hardware profile."""
    affinity: Affinity | None = None
    """Affinity of the pods. Absent: engines prefer the zone in which the pool's other engines are."""
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the pods."""
    service_account_name: Annotated[str, Field(max_length=253)] = ""
    """ServiceAccount of the pods. Engines get no token of it; that of the router is given the right to read pods."""
    runtime_class_name: Annotated[str, Field(max_length=253)] = ""
    """RuntimeClass of the pods."""
    scheduler_name: Annotated[str, Field(max_length=253)] = ""
    """Scheduler of the pods. Default: the cluster's."""
    host_network: bool = False
    """The pods use the node's network. Ports of decode are then those of prefill + 1000, as both may share a node."""
    topology_spread_constraints: SpreadConstraints = ()
    """How the pods are spread. Absent: replicas of a role prefer different nodes."""
    volumes: Volumes = ()
    """Volumes added to the pod."""
    volume_mounts: VolumeMounts = ()
    """Mounts added to the container."""
    pod_security_context: PodSecurityContext | None = None
    """Security context of the pod; its fields win over the generated ones."""
    security_context: SecurityContext | None = None
    """Security context of the container; its fields win over the generated ones."""
    resource_claims: ResourceClaims = ()
    """Dynamic resource claims, for the operator's container; no extended resource is asked for beside them."""


class Rollout(ApiModel):
    """How many replicas may be added to, and missing from, the desired ones while they are replaced."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("self.maxSurge > 0 || self.maxUnavailable > 0", _ROLLOUT_RULE))
    )

    max_surge: Count = 0
    """Replicas beyond the desired number; each needs accelerators of its own."""
    max_unavailable: Count = 1
    """Replicas that may be missing."""

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if not self.max_surge and not self.max_unavailable:
            raise ValueError(_ROLLOUT_RULE)
        return self


class DisruptionBudget(ApiModel):
    """How many replicas a voluntary disruption (`kubectl drain`, an autoscaler of nodes) may take at once."""

    max_unavailable: Count = 1
    """Replicas that may be evicted at once."""


class RoleSpec(ApiModel):
    """One role: how many replicas, on what, and how their engine is started."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.replicas) || !has(self.autoscaling)",
                _SIZE_RULE,
                fieldPath=".autoscaling",
                reason="FieldValueForbidden",
            )
        )
    )

    replicas: Count | None = None
    """Fixed number of replicas. Default: 1."""
    autoscaling: RoleAutoscaling | None = None
    """The size follows demand instead of being fixed."""
    hardware: Hardware | None = None
    """Hardware profile. Absent: accelerators of the resource nvidia.com/gpu."""
    parallelism: Parallelism = Parallelism()
    """How one replica is spread over the accelerators of its node."""
    resources: Resources | None = None
    """Requests and limits of the engine's container; what is given overrides what profile and parallelism imply."""
    args: Arguments = ()
    """Arguments for this role, appended verbatim, in order, after engine.args; a flag given is not generated."""
    env: EnvVars = ()
    """Environment variables for this role; they win over those of spec.engine.env."""
    template: PodTemplate = PodTemplate()
    """What the pods carry besides what the operator generates."""
    rollout: Rollout = Rollout()
    """How replicas are replaced."""
    drain_seconds: Annotated[int, Field(ge=0, le=DAY_S, json_schema_extra={"format": "int32"})] = 300
    """How long a leaving pod may finish its requests; it always stays 5 s, until routers have seen it leave."""
    disruption_budget: DisruptionBudget = DisruptionBudget()
    """What a voluntary disruption may take."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        """The rule of the schema again, for files."""
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError(_SIZE_RULE)
        return self

    @property
    def desired_replicas(self) -> int:
        """Replicas, the default applied; what demand asks for is put in with `InferencePoolSpec.with_sizes`."""
        if self.replicas is not None:
            return self.replicas
        return 1 if self.autoscaling is None else self.autoscaling.min_replicas

    @property
    def fewest_replicas(self) -> int:
        """Replicas that must have room: the fixed size, or the least that serves."""
        return self.desired_replicas if self.autoscaling is None else max(1, self.autoscaling.min_replicas)

    @property
    def most_replicas(self) -> int:
        """Replicas that there may be."""
        return self.desired_replicas if self.autoscaling is None else self.autoscaling.max_replicas
