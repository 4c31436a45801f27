"""The part of an InferencePool's spec that says how the sizes of roles follow demand.

Boundary: shape, limits and CEL rules of what one object can decide; see `pool.py`. What the signals mean, and how sizes
are made of them, is the operator's room `autoscale`.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pdpool_api.names import Role
from pdpool_api.schema import ApiModel, rule, rules
from pdpool_api.served_model import ObjectName, SecretKey

MAX_REPLICAS: Final = 4096
MAX_SIGNALS: Final = 16

_BOUNDS_RULE: Final = "minReplicas must not be greater than maxReplicas"
_TARGET_RULE: Final = "target is required (only Ttft and Itl can take it from spec.slo)"
_RATIO_TARGET_RULE: Final = "target of a ratio must be at most 1"
_QUERY_RULE: Final = "query is required with PrometheusQuery, and has no meaning with another type"
_AUTH_RULE: Final = "at most one of bearerTokenSecretRef and basicAuthSecretRef may be given"
_SOURCE_RULE: Final = "prometheus is required with source Prometheus"
_RATIO_RULE: Final = "minPrefillPerDecode must not be greater than maxPrefillPerDecode"
_TYPES_RULE: Final = "signals must not repeat a type"

Seconds = Annotated[int, Field(ge=0, le=86_400, json_schema_extra={"format": "int32"})]
Size = Annotated[int, Field(ge=0, le=MAX_REPLICAS, json_schema_extra={"format": "int32"})]


class SignalType(StrEnum):
    """What a size can follow."""

    QUEUE_DEPTH = "QueueDepth"
    QUEUED_PROMPT_TOKENS = "QueuedPromptTokens"
    KV_CACHE_USAGE = "KvCacheUsage"
    RUNNING_REQUESTS = "RunningRequests"
    TTFT = "Ttft"
    ITL = "Itl"
    GPU_TENSOR_ACTIVE = "GpuTensorActive"
    GPU_DRAM_ACTIVE = "GpuDramActive"
    GPU_UTILIZATION = "GpuUtilization"
    PROMETHEUS_QUERY = "PrometheusQuery"


GPU_SIGNALS: Final = (SignalType.GPU_TENSOR_ACTIVE, SignalType.GPU_DRAM_ACTIVE, SignalType.GPU_UTILIZATION)
RATIO_SIGNALS: Final = (SignalType.KV_CACHE_USAGE, *GPU_SIGNALS)
SLO_SIGNALS: Final = (SignalType.TTFT, SignalType.ITL)
PROMETHEUS_SIGNALS: Final = (*GPU_SIGNALS, SignalType.PROMETHEUS_QUERY)
"""Signals that only Prometheus can tell."""
REFUSED_SIGNALS: Final = {
    Role.PREFILL: (SignalType.KV_CACHE_USAGE, SignalType.RUNNING_REQUESTS, SignalType.ITL),
    Role.DECODE: (SignalType.QUEUED_PROMPT_TOKENS, SignalType.TTFT),
    Role.AGGREGATED: (),
}
"""Signals that say nothing about a role: KV on prefill waits for decode to pull it, prompts wait at prefill."""


def words(types: tuple[SignalType, ...]) -> str:
    """The types as a CEL list."""
    return "[" + ", ".join(f"'{each.value}'" for each in types) + "]"


class Signal(ApiModel):
    """One quantity that a role's size follows."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"has(self.target) || self.type in {words(SLO_SIGNALS)}",
                _TARGET_RULE,
                fieldPath=".target",
                reason="FieldValueRequired",
            ),
            rule(
                f"!has(self.target) || !(self.type in {words(RATIO_SIGNALS)}) || self.target <= 1.0",
                _RATIO_TARGET_RULE,
                fieldPath=".target",
            ),
            rule(
                f"(self.type == '{SignalType.PROMETHEUS_QUERY.value}') == (has(self.query) && self.query.size() > 0)",
                _QUERY_RULE,
                fieldPath=".query",
            ),
        )
    )

    type: SignalType
    """What is measured. KvCacheUsage, RunningRequests, Itl: decode only; QueuedPromptTokens, Ttft: prefill only."""
    target: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """What one ready replica should have: requests, tokens, milliseconds, or a ratio from 0 to 1."""
    query: Annotated[str, Field(max_length=4096)] = ""
    """PromQL whose scalar is the total over all replicas; {namespace}, {pool} and {role} are filled in."""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        """The rules of the schema again, for files."""
        if self.target is None and self.type not in SLO_SIGNALS:
            raise ValueError(_TARGET_RULE)
        if self.target is not None and self.type in RATIO_SIGNALS and self.target > 1:
            raise ValueError(_RATIO_TARGET_RULE)
        if (self.type is SignalType.PROMETHEUS_QUERY) is not bool(self.query):
            raise ValueError(_QUERY_RULE)
        return self


class ScaleUp(ApiModel):
    """How a role grows."""

    stabilization_seconds: Seconds = 0
    """How long a larger size must have been asked for, before the smallest of what was asked for is taken."""
    max_step: Size = 4
    """Replicas added per interval at most; 0: no limit."""
    lookahead_seconds: Annotated[int, Field(ge=-1, le=3600, json_schema_extra={"format": "int32"})] = 0
    """Growth is sized for the load expected so far ahead, if 4 readings rise. 0: not; -1: the pool's own start time."""


class ScaleDown(ApiModel):
    """How a role shrinks."""

    stabilization_seconds: Seconds = 300
    """How long a smaller size must have been enough, before the largest of what was asked for is taken."""
    max_step: Size = 0
    """Replicas removed per interval at most; 0: no limit."""


class RoleAutoscaling(ApiModel):
    """How the size of a role follows demand."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("self.minReplicas <= self.maxReplicas", _BOUNDS_RULE, fieldPath=".minReplicas"))
    )

    min_replicas: Size = 1
    """Fewest replicas. 0: the pool may go to zero when idle, both roles together."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS, json_schema_extra={"format": "int32"})] = 8
    """Most replicas."""
    paused: bool = False
    """Holds the size."""
    dry_run: bool = False
    """Decides and reports in status, and changes nothing."""
    signals: Annotated[
        tuple[Signal, ...],
        Field(
            max_length=MAX_SIGNALS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """What the size follows: the largest demand counts. Default: QueueDepth 4, and on decode KvCacheUsage 0.8 too."""
    scale_up: ScaleUp = ScaleUp()
    """How the role grows."""
    scale_down: ScaleDown = ScaleDown()
    """How the role shrinks."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        """The rules of the schema again, for files."""
        if self.min_replicas > self.max_replicas:
            raise ValueError(_BOUNDS_RULE)
        if any(count > 1 for count in Counter(each.type for each in self.signals).values()):
            raise ValueError(_TYPES_RULE)
        return self


class BasicAuthSecret(ApiModel):
    """A Secret of the pool's namespace with the keys `username` and `password`."""

    name: ObjectName
    """Name of the Secret."""


class PrometheusTls(ApiModel):
    """How the certificate of Prometheus is checked."""

    ca_secret_ref: SecretKey | None = None
    """Certificates of the authorities that are trusted (PEM). Absent: the public ones."""
    insecure_skip_verify: bool = False
    """Takes any certificate."""


class Prometheus(ApiModel):
    """A Prometheus that can be asked."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!has(self.bearerTokenSecretRef) || !has(self.basicAuthSecretRef)", _AUTH_RULE),
        )
    )

    url: Annotated[str, Field(max_length=2048, pattern=r"^https?://[^\s@/?#]+(/[^\s?#]*)?$")]
    """Its address, as http://prometheus.monitoring:9090; credentials stand in a Secret, never here."""
    bearer_token_secret_ref: SecretKey | None = None
    """A token to show, from a Secret of the pool's namespace."""
    basic_auth_secret_ref: BasicAuthSecret | None = None
    """A user name and a password to show, from a Secret of the pool's namespace."""
    tls: PrometheusTls = PrometheusTls()
    """How its certificate is checked."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60, json_schema_extra={"format": "int32"})] = 5
    """How long an answer may take."""

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        """The rule of the schema again, for files."""
        if self.bearer_token_secret_ref is not None and self.basic_auth_secret_ref is not None:
            raise ValueError(_AUTH_RULE)
        return self


class Ratio(ApiModel):
    """Prefill replicas per decode replica."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.maxPrefillPerDecode == 0.0 || self.minPrefillPerDecode <= self.maxPrefillPerDecode",
                _RATIO_RULE,
                fieldPath=".minPrefillPerDecode",
            )
        )
    )

    min_prefill_per_decode: Annotated[float, Field(ge=0, le=MAX_REPLICAS)] = 0
    """At least so many; 0: no bound."""
    max_prefill_per_decode: Annotated[float, Field(ge=0, le=MAX_REPLICAS)] = 0
    """At most so many; 0: no bound."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        """The rule of the schema again, for files."""
        if self.max_prefill_per_decode and self.min_prefill_per_decode > self.max_prefill_per_decode:
            raise ValueError(_RATIO_RULE)
        return self


class Autoscaling(ApiModel):
    """Where the pool's signals come from, and how often sizes are decided."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.source == 'Direct' || has(self.prometheus)",
                _SOURCE_RULE,
                fieldPath=".prometheus",
                reason="FieldValueRequired",
            )
        )
    )

    source: Literal["Direct", "Prometheus"] = "Direct"
    """Who is asked for the metrics of engines and routers: these themselves (Direct), or Prometheus."""
    prometheus: Prometheus | None = None
    """Needed by source Prometheus, and by signals that only Prometheus has (those of GPUs, PrometheusQuery)."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600, json_schema_extra={"format": "int32"})] = 15
    """How often sizes are decided."""
    ratio: Ratio = Ratio()
    """Bounds of the two roles' sizes against each other."""

    @model_validator(mode="after")
    def _source_is_there(self) -> Self:
        """The rule of the schema again, for files."""
        if self.source == "Prometheus" and self.prometheus is None:
            raise ValueError(_SOURCE_RULE)
        return self


class Slo(ApiModel):
    """What users of the pool should see."""

    ttft_milliseconds: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Time to the first token; the target of signal Ttft where that has none."""
    itl_milliseconds: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Gap between two tokens; the target of signal Itl where that has none."""
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95
    """Share of requests, or of gaps, in percent, that should be at least as fast."""


class RouterAutoscaling(ApiModel):
    """How the number of routers follows the requests in flight."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas", _BOUNDS_RULE, fieldPath=".minReplicas"
            )
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] = 2
    """Fewest routers."""
    max_replicas: Annotated[int, Field(ge=0, le=256, json_schema_extra={"format": "int32"})] = 0
    """Most routers; 0: their number is fixed."""
    target_inflight: Annotated[int, Field(ge=1, le=1_000_000, json_schema_extra={"format": "int32"})] = 500
    """Requests in flight that one router should have."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        """The rule of the schema again, for files."""
        if self.max_replicas and self.min_replicas > self.max_replicas:
            raise ValueError(_BOUNDS_RULE)
        return self
