"""The InferencePool: models of its spec and status.

Boundary: shape, limits, schema defaults and CEL rules. The CRD is generated from these models (`make generate`),
and the operator reads stored objects through them. A field stands here only when something acts on it. Defaults that
depend on another field are properties, applied by the operator, so that the stored object holds only what its author
wrote.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, ValidationError, computed_field, model_validator

from pdpool_api.conditions import Condition
from pdpool_api.names import GROUP, NAME_MAX_LENGTH, Role
from pdpool_api.schema import (
    MAX_ITEMS,
    ApiModel,
    EnvVars,
    Resources,
    SecurityContext,
    VolumeMounts,
    Volumes,
    rule,
    rules,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DATA_PARALLEL: Final = 32
"""Ranks of one pod: rank ports count up from 5557, 5600 and 5657, and the three ranges must not meet."""

DAY_S: Final = 86_400

RESERVED_FLAGS: Final = ("--host", "--kv-events-config", "--model", "--port", "--served-model-name")
"""Flags of the engine that only the operator sets: probes, Services and the router rest on them."""

_ID_RULE: Final = "id must be a hub id or an absolute path: no white space, and no '-' at its start"
_NAMES_RULE: Final = "a name in servedNames must have no white space and no '-' at its start"
_NAMES_UNIQUE_RULE: Final = "servedNames must not repeat a name"
_TENSOR_RULE: Final = "prefill.parallelism.tensor and decode.parallelism.tensor must divide one another"
_PIPELINE_RULE: Final = "decode.parallelism.pipeline must be 1: a decode engine cannot take KV in stages"

_ARGUMENT_WORD: Final = re.compile(r"[^\s-]\S*\Z")
"""What the engine's parser takes for a value, and nothing else."""

_RESERVED_LABELS: Final = [
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")
]

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Argument = Annotated[str, StringConstraints(max_length=65_536)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:/^-]+$")]
Count = Annotated[int, Field(ge=0, le=4096, json_schema_extra={"format": "int32"})]
Degree = Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})]


Arguments = Annotated[tuple[Argument, ...], Field(max_length=MAX_ITEMS)]
"""Flags in `RESERVED_FLAGS` are refused by a condition, not here: only the engine's package knows every spelling."""


class PoolError(ValueError):
    """An InferencePool that is refused; the message names each field and the rule it breaks."""


class Model(ApiModel):
    """The model that the pool serves."""

    id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=512,
            # minLength speaks for the empty one.
            json_schema_extra=rules(rule(r"self == '' || self.matches('^[^\\s-]\\S*$')", _ID_RULE)),
        ),
    ]
    """Id on the hub (as meta-llama/Llama-3.1-8B-Instruct), or an absolute path inside the container."""
    revision: Annotated[str, Field(max_length=255, pattern=r"^([^\s-]\S*)?$")] = ""
    """Branch, tag or commit on the hub; empty: the hub's default branch."""
    served_names: Annotated[
        tuple[Name, ...],
        Field(
            max_length=32,
            json_schema_extra=rules(
                rule("self.all(n, self.exists_one(m, m == n))", _NAMES_UNIQUE_RULE),
                rule(r"self.all(n, n.matches('^[^\\s-]\\S*$'))", _NAMES_RULE),
            ),
        ),
    ] = ()
    """Names that clients ask for; the first is the primary. Default: the id."""
    max_model_len: Annotated[int, Field(ge=1, le=2**31 - 1, json_schema_extra={"format": "int64"})] | None = None
    """Longest sequence in tokens, prompt and answer together. Default: what the model's own configuration says."""

    @model_validator(mode="after")
    def _readable_as_arguments(self) -> Self:
        """The rules of the schema again, for files."""
        if not _ARGUMENT_WORD.match(self.id):
            raise ValueError(_ID_RULE)
        if not all(_ARGUMENT_WORD.match(name) for name in self.served_names):
            raise ValueError(_NAMES_RULE)
        if len(set(self.served_names)) < len(self.served_names):
            raise ValueError(_NAMES_UNIQUE_RULE)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names that clients ask for, the default applied; never empty."""
        return self.served_names or (self.id,)


class Engine(ApiModel):
    """The inference engine that prefill and decode run."""

    name: Literal["VLLM"] = "VLLM"
    """Which engine."""
    image: Annotated[str, Field(max_length=512, pattern=r"^\S*$")] = ""
    """Image of the engine's container. Default: the operator's --engine-image."""
    version: Annotated[str, Field(max_length=64, pattern=r"^(v?[0-9]+\.[0-9]+.*)?$")] = ""
    """Version of the engine, as 0.32.0, where the image's tag does not tell it. Unknown counts as the newest."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the kubelet pulls the image."""
    command: Annotated[tuple[Argument, ...], Field(max_length=MAX_ITEMS)] = ()
    """Replaces the entry point of the engine when set; the generated arguments follow it."""
    args: Arguments = ()
    """Arguments for both roles, appended verbatim, in order, after generated ones; a flag given is not generated."""
    env: EnvVars = ()
    """Environment variables for both roles; a variable given here replaces the generated one of its name."""
    startup_timeout_seconds: Annotated[int, Field(ge=10, le=DAY_S, json_schema_extra={"format": "int32"})] = 1800
    """How long an engine may take from its start until it serves the model, before it is restarted."""


class Network(ApiModel):
    """Which network KV moves over; absent settings are left to UCX."""

    tls: Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_.,:^-]*$")] = ""
    """UCX_TLS: transports that UCX may use, as rc,cuda_copy or tcp. Set only when given."""
    devices: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    """UCX_NET_DEVICES: devices that UCX may use, as mlx5_0:1. Set only when given."""


class Transfer(ApiModel):
    """How KV moves from prefill to decode."""

    network: Network = Network()
    """Which network KV moves over; absent settings are left to UCX."""
    lease_seconds: Annotated[int, Field(ge=6, le=3600, json_schema_extra={"format": "int32"})] = 30
    """How long prefill keeps KV that no decode has pulled. At least 6: a waiting decode renews it every sixth of it."""
    on_failure: Literal["Fail", "Recompute"] = "Fail"
    """What decode does when KV cannot be pulled: fail the request, or compute the prompt itself."""


class Parallelism(ApiModel):
    """How one replica is spread over the accelerators of its node: tensor x pipeline x data of them."""

    tensor: Degree = 1
    """Shards of each layer. Prefill's and decode's sizes must divide one another."""
    pipeline: Degree = 1
    """Stages of consecutive layers; decode supports 1 only."""
    data: Annotated[int, Field(ge=1, le=MAX_DATA_PARALLEL, json_schema_extra={"format": "int32"})] = 1
    """Copies of the model inside one replica (data-parallel ranks)."""


_VALID_KEYS: Final = rule(
    "self.all(k, !format.qualifiedName().validate(k).hasValue())",
    "a key must be a name of at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix and '/'",
)
_LABEL = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"


class TemplateMetadata(ApiModel):
    """Labels and annotations of the pods; nothing of the pool's own metadata is copied to them."""

    labels: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=63, pattern=_LABEL)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    f"self.all(k, !k.startsWith('{GROUP}/') && !(k in {_RESERVED_LABELS}))",
                    f"labels of {GROUP}/ and the five of app.kubernetes.io on every child are set by the operator",
                ),
                _VALID_KEYS,
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
                _VALID_KEYS,
            ),
        ),
    ] = Field(default_factory=dict)
    """Annotations added to the pods of the role."""


class PodTemplate(ApiModel):
    """What the pods of a role carry besides what the operator generates."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the pods; nothing of the pool's own metadata is copied to them."""
    volumes: Volumes = ()
    """Volumes added to the pod."""
    volume_mounts: VolumeMounts = ()
    """Mounts added to the engine's container."""
    security_context: SecurityContext | None = None
    """Security context of the engine's container."""


class RoleSpec(ApiModel):
    """One role: how many replicas, on what, and how their engine is started."""

    replicas: Count | None = None
    """Fixed number of replicas. Default: 1."""
    hardware: Literal["cpu"] | None = None
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
    drain_seconds: Annotated[int, Field(ge=0, le=DAY_S, json_schema_extra={"format": "int32"})] = 300
    """How long a leaving pod may finish its requests; it always stays 5 s, until routers have seen it leave."""

    @property
    def desired_replicas(self) -> int:
        """Replicas, the default applied."""
        return 1 if self.replicas is None else self.replicas


class Router(ApiModel):
    """The router in front of the engines: one OpenAI-compatible URL for the pool."""

    replicas: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] | None = None
    """Number of replicas. Default: 1."""
    image: Annotated[str, Field(max_length=512, pattern=r"^\S*$")] = ""
    """Image of the router. Default: the operator's --router-image."""
    resources: Resources | None = None
    """Requests and limits of the router's container."""
    drain_seconds: Annotated[int, Field(ge=0, le=DAY_S, json_schema_extra={"format": "int32"})] = 600
    """How long a leaving router may finish its requests."""

    @property
    def desired_replicas(self) -> int:
        """Replicas, the default applied."""
        return 1 if self.replicas is None else self.replicas


class InferencePoolSpec(ApiModel):
    """What the pool should be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.prefill.parallelism.tensor % self.decode.parallelism.tensor == 0"
                " || self.decode.parallelism.tensor % self.prefill.parallelism.tensor == 0",
                _TENSOR_RULE,
                fieldPath=".decode.parallelism.tensor",
            ),
            rule(
                "self.decode.parallelism.pipeline == 1",
                _PIPELINE_RULE,
                fieldPath=".decode.parallelism.pipeline",
            ),
        )
    )

    model: Model
    """The model that the pool serves."""
    engine: Engine = Engine()
    """The inference engine that prefill and decode run."""
    mode: Literal["Disaggregated"] = "Disaggregated"
    """How requests are served. Disaggregated: prefill computes the prompt, decode takes its KV and makes the tokens."""
    transfer: Transfer = Transfer()
    """How KV moves from prefill to decode."""
    prefill: RoleSpec
    """The role that computes prompts."""
    decode: RoleSpec
    """The role that makes the tokens."""
    router: Router = Router()
    """The router in front of the engines: one OpenAI-compatible URL for the pool."""

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        """The rules of the schema again, for files."""
        prefill, decode = self.prefill.parallelism, self.decode.parallelism
        if prefill.tensor % decode.tensor and decode.tensor % prefill.tensor:
            raise ValueError(_TENSOR_RULE)
        if decode.pipeline != 1:
            raise ValueError(_PIPELINE_RULE)
        return self

    def role(self, role: Role) -> RoleSpec:
        """The spec of an engine role.

        Raises:
            KeyError: the pool has no such role.
        """
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode}[role]

    def with_images(self, *, engine: str, router: str) -> Self:
        """The spec with absent images filled in by the operator's own defaults."""
        return self.model_copy(
            update={
                "engine": self.engine.model_copy(update={"image": self.engine.image or engine}),
                "router": self.router.model_copy(update={"image": self.router.image or router}),
            }
        )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The engine roles that this pool runs."""
        return (Role.PREFILL, Role.DECODE)


class RoleStatus(ApiModel):
    """One role as it is."""

    desired_replicas: Count = 0
    """Replicas that should run."""
    replicas: Count = 0
    """Pods that exist and are not leaving."""
    ready_replicas: Count = 0
    """Pods that are ready."""
    updated_replicas: Count = 0
    """Pods of the current template."""
    unschedulable_replicas: Count = 0
    """Pods that no node can take."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why the size is what it is, in CamelCase."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """The same, for a person."""

    @computed_field(  # type: ignore[prop-decorator]
        description="Ready and desired replicas in one word, as 2/3, for `kubectl get`.",
        json_schema_extra={"maxLength": 16},
    )
    @property
    def ready(self) -> str:
        """Ready and desired replicas in one word, as `2/3`: a printer column shows one field only."""
        return f"{self.ready_replicas}/{self.desired_replicas}"


class RouterStatus(ApiModel):
    """The router as it is."""

    replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods that are ready."""


class InferencePoolStatus(ApiModel):
    """What the pool is, as the operator last saw it."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """metadata.generation that was acted on."""
    mode: Annotated[str, Field(max_length=64)] = ""
    """How requests are served."""
    revision: Annotated[str, Field(max_length=63)] = ""
    """Hash of what prefill and decode must share; requests are served only by pods of one revision."""
    url: Annotated[str, Field(max_length=512)] = ""
    """OpenAI-compatible address of the pool inside the cluster."""
    prefill: RoleStatus | None = None
    """The role that computes prompts."""
    decode: RoleStatus | None = None
    """The role that makes the tokens."""
    router: RouterStatus | None = None
    """The router."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """The state by aspect; Ready sums it up."""

    def to_json(self) -> dict[str, Any]:
        """The object as it is written to the API: camelCase, absent values left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class InferencePool(ApiModel):
    """One model served by a set of prefill and decode replicas behind a router.

    It becomes prefill and decode workloads joined by a transfer of KV cache, and a KV-aware router in front of them.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.metadata.name.size() <= {NAME_MAX_LENGTH}",
                f"metadata.name must be at most {NAME_MAX_LENGTH} characters",
            )
        )
    )

    api_version: Literal["pdpool.io/v1alpha1"] = "pdpool.io/v1alpha1"
    kind: Literal["InferencePool"] = "InferencePool"
    metadata: dict[str, Any]
    spec: InferencePoolSpec
    """What the pool should be."""
    status: InferencePoolStatus = InferencePoolStatus()
    """What the pool is, as the operator last saw it."""

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        """metadata.namespace; `default` in a file that names none."""
        return str(self.metadata.get("namespace", "default"))

    @property
    def uid(self) -> str:
        """metadata.uid; empty before the object is stored."""
        return str(self.metadata.get("uid", ""))

    @property
    def generation(self) -> int:
        """metadata.generation; 0 before the object is stored."""
        return int(self.metadata.get("generation", 0))

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, strict: bool = False) -> Self:
        """Reads an object of the API, or (strict: unknown fields are refused) of a file.

        Raises:
            PoolError: a field breaks a rule; every fault is in the message.
        """
        try:
            return cls.model_validate(raw, extra="forbid" if strict else "ignore")
        except ValidationError as fault:
            raise PoolError("; ".join(_line(error) for error in fault.errors())) from fault


def _line(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    return f"{path or 'object'}: {error['msg']}"
