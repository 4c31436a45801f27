"""The InferencePool: models of its spec.

Boundary: shape, limits, schema defaults and CEL rules. The CRD is generated from these models (`make generate`),
and the operator reads stored objects through them. A field stands here only when something acts on it. Defaults that
depend on another field are properties, applied by the operator, so that the stored object holds only what its author
wrote. Its larger parts have files of their own: `served_model`, `role_spec`, `router_spec`, `pool_status`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, ValidationError, model_validator

from pdpool_api.names import NAME_MAX_LENGTH, Role
from pdpool_api.pool_status import InferencePoolStatus, RoleStatus, RouterStatus
from pdpool_api.role_spec import (
    DAY_S,
    MAX_DATA_PARALLEL,
    Argument,
    Arguments,
    Parallelism,
    PodTemplate,
    RoleSpec,
)
from pdpool_api.router_spec import Monitoring, Router
from pdpool_api.scaling_spec import PROMETHEUS_SIGNALS, REFUSED_SIGNALS, Autoscaling, SignalType, Slo
from pdpool_api.scaling_spec import words as signal_words
from pdpool_api.schema import MAX_ITEMS, ApiModel, EnvVars, PullSecrets, Quantity, rule, rules
from pdpool_api.served_model import Model, ModelShape
from pdpool_api.workload_spec import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

RESERVED_FLAGS: Final = ("--host", "--kv-events-config", "--model", "--port", "--served-model-name")
"""Flags of the engine that only the operator sets: probes, Services and the router rest on them."""

_PREFILL_NEEDED_RULE: Final = "prefill is required in mode Disaggregated"
_PREFILL_REFUSED_RULE: Final = "prefill must be absent in mode Aggregated: spec.decode describes the one role"
_TENSOR_RULE: Final = "prefill.parallelism.tensor and decode.parallelism.tensor must divide one another"
_HEADS_RULE: Final = "prefill.parallelism.tensor, where larger than decode's, must not exceed model.shape.kvHeads"
_PIPELINE_RULE: Final = "decode.parallelism.pipeline must be 1: a decode engine cannot take KV in stages"
_ZERO_RULE: Final = "minReplicas 0 is for both roles together: one role alone serves nothing"
_PROMETHEUS_RULE: Final = "signals of GPUs and PrometheusQuery need spec.autoscaling.prometheus"
_SLO_RULE: Final = "signals Ttft and Itl need a target, or the one of spec.slo"

Word = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:/^-]+$")]

__all__ = [
    "MAX_DATA_PARALLEL",
    "RESERVED_FLAGS",
    "InferencePool",
    "InferencePoolSpec",
    "InferencePoolStatus",
    "Model",
    "ModelShape",
    "Parallelism",
    "PodTemplate",
    "PoolError",
    "RoleSpec",
    "RoleStatus",
    "Router",
    "RouterStatus",
]


class PoolError(ValueError):
    """An InferencePool that is refused; the message names each field and the rule it breaks."""


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
    image_pull_secrets: PullSecrets = ()
    """Secrets with which the kubelet pulls images of engines and routers."""
    command: Annotated[tuple[Argument, ...], Field(max_length=MAX_ITEMS)] = ()
    """Replaces the entry point of the engine when set; the generated arguments follow it."""
    args: Arguments = ()
    """Arguments for both roles, appended verbatim, in order, after generated ones; a flag given is not generated."""
    env: EnvVars = ()
    """Environment variables for both roles; a variable given here replaces the generated one of its name."""
    shm_size: Quantity = "16Gi"
    """Most that the processes of one replica may share through /dev/shm; it counts as memory of the pod."""
    startup_timeout_seconds: Annotated[int, Field(ge=10, le=DAY_S, json_schema_extra={"format": "int32"})] = 1800
    """How long an engine may take from its start until it serves the model, before it is restarted."""
    secret_rotation: Literal["Roll", "Ignore"] = "Roll"  # noqa: S105 - a choice
    """Whether a new value of a Secret that engines take a variable from rolls their pods, where it may be read."""


class Network(ApiModel):
    """Which network KV moves over; absent settings are left to UCX."""

    tls: Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_.,:^-]*$")] = ""
    """UCX_TLS: transports that UCX may use, as rc,cuda_copy or tcp. Set only when given."""
    devices: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    """UCX_NET_DEVICES: devices that UCX may use, as mlx5_0:1. Set only when given."""


class Rdma(ApiModel):
    """RDMA devices of the node, as an extended resource of both roles; the containers get the capability IPC_LOCK."""

    resource: Annotated[
        str, Field(min_length=3, max_length=317, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    ]
    """Name of the resource, as rdma/ib or vpc.amazonaws.com/efa."""
    count: Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})] = 1
    """Devices of one replica."""


class Transfer(ApiModel):
    """How KV moves from prefill to decode."""

    connector: Literal["Nixl"] = "Nixl"
    """What moves it."""
    network: Network = Network()
    """Which network KV moves over; absent settings are left to UCX."""
    rdma: Rdma | None = None
    """RDMA devices of the node, asked for by both roles. Absent: none are asked for."""
    bandwidth_gbps: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """What the link between prefill and decode gives, in Gbit/s: TransferHealthy judges the measured speed by it."""
    lease_seconds: Annotated[int, Field(ge=6, le=3600, json_schema_extra={"format": "int32"})] = 30
    """How long prefill keeps KV that no decode has pulled. At least 6: a waiting decode renews it every sixth of it."""
    on_failure: Literal["Fail", "Recompute"] = "Fail"
    """What decode does when KV cannot be pulled: fail the request, or compute the prompt itself."""


def _signals(field: str, condition: str) -> str:
    """CEL: a condition `s` holds for every signal of a role."""
    path = f"self.{field}"
    given = f"!has({path}.autoscaling) || !has({path}.autoscaling.signals)"
    guard = f"!has({path}) || {given}" if field == "prefill" else given
    return f"{guard} || {path}.autoscaling.signals.all(s, {condition})"


def _wrong_role(role: Role) -> str:
    return f"signals {', '.join(REFUSED_SIGNALS[role])} are not for {role}"


def _scaling_rules() -> list[dict[str, str]]:
    at_zero = "(has(self.{0}.autoscaling) && self.{0}.autoscaling.minReplicas == 0)"
    of_prometheus = signal_words(PROMETHEUS_SIGNALS)
    slo = "has(s.target) || (has(self.slo) && (s.type == '{}' ? has(self.slo.ttftMilliseconds) : {}))".format(
        SignalType.TTFT.value, "has(self.slo.itlMilliseconds)"
    )
    found = [
        rule(
            f"!has(self.prefill) || {at_zero.format('prefill')} == {at_zero.format('decode')}",
            _ZERO_RULE,
            fieldPath=".decode.autoscaling",
        ),
        rule(
            _signals("prefill", f"!(s.type in {signal_words(REFUSED_SIGNALS[Role.PREFILL])})"),
            _wrong_role(Role.PREFILL),
            fieldPath=".prefill.autoscaling.signals",
        ),
        rule(
            "self.mode != 'Disaggregated' || "
            + _signals("decode", f"!(s.type in {signal_words(REFUSED_SIGNALS[Role.DECODE])})"),
            _wrong_role(Role.DECODE),
            fieldPath=".decode.autoscaling.signals",
        ),
    ]
    for field in ("prefill", "decode"):
        path = f".{field}.autoscaling.signals"
        has_prometheus = "(has(self.autoscaling) && has(self.autoscaling.prometheus))"
        known = _signals(field, f"!(s.type in {of_prometheus})")
        found.append(rule(f"{has_prometheus} || {known}", _PROMETHEUS_RULE, fieldPath=path))
        found.append(rule(_signals(field, slo), _SLO_RULE, fieldPath=path))
    return found


class InferencePoolSpec(ApiModel):
    """What the pool should be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.mode == 'Disaggregated' ? has(self.prefill) : true",
                _PREFILL_NEEDED_RULE,
                fieldPath=".prefill",
                reason="FieldValueRequired",
            ),
            rule(
                "self.mode == 'Aggregated' ? !has(self.prefill) : true",
                _PREFILL_REFUSED_RULE,
                fieldPath=".prefill",
                reason="FieldValueForbidden",
            ),
            rule(
                "!has(self.prefill) || self.prefill.parallelism.tensor % self.decode.parallelism.tensor == 0"
                " || self.decode.parallelism.tensor % self.prefill.parallelism.tensor == 0",
                _TENSOR_RULE,
                fieldPath=".decode.parallelism.tensor",
            ),
            rule(
                "!has(self.prefill) || self.prefill.parallelism.tensor <= self.decode.parallelism.tensor"
                " || !has(self.model.shape) || !has(self.model.shape.kvHeads)"
                " || self.prefill.parallelism.tensor <= self.model.shape.kvHeads",
                _HEADS_RULE,
                fieldPath=".prefill.parallelism.tensor",
            ),
            rule(
                "!has(self.prefill) || self.decode.parallelism.pipeline == 1",
                _PIPELINE_RULE,
                fieldPath=".decode.parallelism.pipeline",
            ),
            *_scaling_rules(),
        )
    )

    model: Model
    """The model that the pool serves."""
    engine: Engine = Engine()
    """The inference engine of all roles."""
    mode: Literal["Disaggregated", "Aggregated", "Auto"] = "Disaggregated"
    """Whether prefill and decode are two roles (Disaggregated), one (Aggregated), or as the operator decides (Auto)."""
    transfer: Transfer = Transfer()
    """How KV moves from prefill to decode."""
    prefill: RoleSpec | None = None
    """The role that computes prompts. Required in Disaggregated, refused in Aggregated; Auto needs it to choose."""
    decode: RoleSpec
    """The role that makes the tokens; in mode Aggregated the one role that does all."""
    max_gpus: Annotated[int, Field(ge=1, le=100_000, json_schema_extra={"format": "int32"})] | None = None
    """Most accelerators of all engines together, surge included. Absent: no cap."""
    autoscaling: Autoscaling = Autoscaling()
    """Where the signals of autoscaled roles come from, and how often sizes are decided."""
    workload: Workload | None = None
    """What requests are expected: what mode Auto reasons from. What is not told is not guessed."""
    slo: Slo | None = None
    """What users of the pool should see."""
    router: Router = Router()
    """The router in front of the engines: one OpenAI-compatible URL for the pool."""
    monitoring: Monitoring = Monitoring()
    """Who looks at the pool's metrics."""

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        """The rules of the schema again, for files."""
        if self.mode == "Disaggregated" and self.prefill is None:
            raise ValueError(_PREFILL_NEEDED_RULE)
        if self.prefill is None:
            return self
        if self.mode == "Aggregated":
            raise ValueError(_PREFILL_REFUSED_RULE)
        prefill, decode = self.prefill.parallelism, self.decode.parallelism
        if prefill.tensor % decode.tensor and decode.tensor % prefill.tensor:
            raise ValueError(_TENSOR_RULE)
        heads = self.model.shape.kv_heads if self.model.shape is not None else None
        if heads is not None and prefill.tensor > decode.tensor and prefill.tensor > heads:
            raise ValueError(_HEADS_RULE)
        if decode.pipeline != 1:
            raise ValueError(_PIPELINE_RULE)
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        """The rules of the schema again, for files."""
        of_role = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}
        scaled = {role: each.autoscaling for role, each in of_role.items() if each is not None}
        if len({each is not None and each.min_replicas == 0 for each in scaled.values()}) > 1:
            raise ValueError(_ZERO_RULE)
        for role, each in scaled.items():
            types = {signal.type for signal in each.signals} if each is not None else set()
            if types & set(REFUSED_SIGNALS[role]) and (role is Role.PREFILL or self.mode == "Disaggregated"):
                raise ValueError(_wrong_role(role))
            if types & set(PROMETHEUS_SIGNALS) and self.autoscaling.prometheus is None:
                raise ValueError(_PROMETHEUS_RULE)
            for signal in each.signals if each is not None else ():
                if signal.target is None and self.slo_of(signal.type) is None:
                    raise ValueError(_SLO_RULE)
        return self

    def slo_of(self, signal: SignalType) -> float | None:
        """What spec.slo says about a latency, in milliseconds."""
        if self.slo is None:
            return None
        return self.slo.ttft_milliseconds if signal is SignalType.TTFT else self.slo.itl_milliseconds

    def role(self, role: Role) -> RoleSpec:
        """The spec of an engine role; `aggregated` is described by spec.decode.

        Raises:
            KeyError: the pool has no such role.
        """
        found = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.AGGREGATED: self.decode}[role]
        if found is None:
            raise KeyError(role)
        return found

    @staticmethod
    def field_of(role: Role) -> str:
        """Path of an engine role's spec, for messages."""
        return "spec.prefill" if role is Role.PREFILL else "spec.decode"

    def with_images(self, *, engine: str, router: str) -> Self:
        """The spec with absent images filled in by the operator's own defaults."""
        return self.model_copy(
            update={
                "engine": self.engine.model_copy(update={"image": self.engine.image or engine}),
                "router": self.router.model_copy(update={"image": self.router.image or router}),
            }
        )

    def with_sizes(self, sizes: Mapping[Role, int]) -> Self:
        """The spec with the sizes that demand asks for in the place of what it says itself; absent roles stay."""
        decode = Role.DECODE if self.disaggregated else Role.AGGREGATED
        fields = {"prefill": Role.PREFILL, "decode": decode, "router": Role.ROUTER}
        update = {
            field: getattr(self, field).model_copy(update={"replicas": sizes[role]})
            for field, role in fields.items()
            if role in sizes and getattr(self, field) is not None
        }
        return self.model_copy(update=update)

    def in_mode(self, mode: Literal["Disaggregated", "Aggregated"]) -> Self:
        """The spec with mode Auto replaced by what was decided; the role that is not used is left out."""
        unused = {"prefill": None} if mode == "Aggregated" else {}
        return self.model_copy(update={"mode": mode, **unused})

    @property
    def disaggregated(self) -> bool:
        """True when prefill and decode are roles of their own. Mode Auto counts as what its prefill allows."""
        return self.mode != "Aggregated" and self.prefill is not None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The engine roles that this pool runs; mode Auto should be decided before (`in_mode`)."""
        return (Role.PREFILL, Role.DECODE) if self.disaggregated else (Role.AGGREGATED,)


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

    @classmethod
    def parse_exactly(cls, raw: Mapping[str, Any]) -> Self:
        """Reads an object as strictly as the API server: neither an unknown field nor a value of another type passes.

        Raises:
            PoolError: a field breaks a rule, or a value is none of JSON; every fault is in the message.
        """
        try:
            return cls.model_validate_json(json.dumps(raw, allow_nan=False), strict=True, extra="forbid")
        except ValidationError as fault:
            raise PoolError("; ".join(_line(error) for error in fault.errors())) from fault
        except (TypeError, ValueError) as fault:
            raise PoolError(str(fault)) from fault


def _line(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    return f"{path or 'object'}: {error['msg']}"
