"""Conditions of an InferencePool: types, the closed list of reasons, and how one is set.

Boundary: pure; the time is an argument. What each condition says about a pool is decided by the operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from pdpool_api.schema import ApiModel

if TYPE_CHECKING:
    from collections.abc import Iterable

MESSAGE_MAX_LENGTH: Final = 32_768
"""Limit of metav1.Condition; a longer message would make the whole status be refused."""

Status = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """Every condition a pool may carry, in the order in which status lists them."""

    READY = "Ready"
    """Every role has its desired replicas, of this generation and available, and the router has a ready replica."""
    PROGRESSING = "Progressing"
    """The workloads are on their way to this generation; False when they arrived, or when they are stuck."""
    SPEC_VALID = "SpecValid"
    """The spec can be acted on."""
    SCALING_ACTIVE = "ScalingActive"
    """Every autoscaled role has a signal to act on."""
    TRANSFER_HEALTHY = "TransferHealthy"
    """KV moves from prefill to decode, and as fast as the link allows."""
    ROUTING_HEALTHY = "RoutingHealthy"
    """The router sees what it needs in order to choose well."""
    ADVISORY = "Advisory"
    """Worth knowing, blocks nothing."""
    STALLED = "Stalled"
    """Nothing will go on without a change of the spec or of the cluster (kstatus reads the pool as failed)."""


class Reason(StrEnum):
    """Every reason of every condition. CamelCase; a new reason is added here and documented here."""

    # Ready
    AVAILABLE = "Available"
    """Everything desired is updated and available."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Every role is wanted at zero, and is at zero."""
    ROLLING_OUT = "RollingOut"
    """Replicas are being created, updated or removed; also the reason of Progressing=True."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """The workloads are up to date, and some replicas of a role are not ready."""
    ROUTER_NOT_READY = "RouterNotReady"
    """No replica of the router is ready."""
    UNSCHEDULABLE = "Unschedulable"
    """The scheduler finds no node for a pod; the message carries its reason."""
    NAME_CONFLICT = "NameConflict"
    """An object of a child's name exists and is not the pool's; it is not touched."""
    MISSING_REFERENCE = "MissingReference"
    """An object that a pod refers to (Secret, ConfigMap, PersistentVolumeClaim) does not exist."""
    APPLY_FAILED = "ApplyFailed"
    """A child could not be written; the message carries the API server's answer."""
    # Progressing
    COMPLETE = "Complete"
    """Nothing is left to do for this generation."""
    ROLLOUT_STALLED = "RolloutStalled"
    """New replicas fail, or do not become ready within their start budget; the rest of the old ones keeps serving."""
    # SpecValid, and Ready of a pool that is refused
    VALID = "Valid"
    """Every check passed."""
    INVALID_SPEC = "InvalidSpec"
    """The spec breaks a rule of this operator's version, or one of the API server for a child made of it."""
    RESERVED_ARGUMENT = "ReservedArgument"
    """`args` holds a flag that the operator itself must set."""
    INCOMPATIBLE_ROLES = "IncompatibleRoles"
    """Prefill and decode disagree on something that both must share; the message names both values."""
    UNSUPPORTED_VERSION = "UnsupportedVersion"
    """The engine is older than the oldest supported version."""
    MODEL_DOES_NOT_FIT = "ModelDoesNotFit"
    """The model's weights and the KV of one sequence exceed an accelerator's memory; the message has the arithmetic."""
    REPLICA_EXCEEDS_NODE = "ReplicaExceedsNode"
    """One replica needs more accelerators than a node of its hardware profile has."""
    MAX_GPUS_EXCEEDED = "MaxGpusExceeded"
    """The replicas need more accelerators than spec.maxGpus allows."""
    # ScalingActive
    SCALING = "Scaling"
    """Every autoscaled role has a signal to act on; the message names signals that are missing all the same."""
    SIGNALS_UNKNOWN = "SignalsUnknown"
    """A role has no known signal, and holds its size; the message names the source."""
    GPU_METRICS_UNATTRIBUTED = "GpuMetricsUnattributed"
    """Series of GPUs exist, and none of them names a pod of the pool."""
    # TransferHealthy
    TRANSFERRING = "Transferring"
    """Hand-offs succeed, as fast as the link allows as far as it is known."""
    HANDOFFS_FAIL = "HandoffsFail"
    """More than one in a hundred hand-offs of the last five minutes failed, or expired before decode pulled its KV."""
    TRANSFER_SLOW = "TransferSlow"
    """KV moves at less than a tenth of transfer.bandwidthGbps, as it does when RDMA falls back to TCP."""
    NO_TRAFFIC = "NoTraffic"
    """Unknown: no hand-off was seen in the last five minutes."""
    # RoutingHealthy
    ROUTING_INFORMED = "RoutingInformed"
    """The routers see what they need."""
    EVENTS_MISSING = "EventsMissing"
    """An engine that should publish KV events does not: what it holds is guessed."""
    INDEX_APPROXIMATE = "IndexApproximate"
    """A router's index rests on its own decisions although the engines' events are asked for."""
    ROUTERS_UNREAD = "RoutersUnread"
    """Unknown: no ready router could be read."""
    # Advisory
    NOTHING_TO_NOTE = "NothingToNote"
    """There is nothing to say."""
    MODEL_UNKNOWN = "ModelUnknown"
    """Mode Auto is Aggregated because the model's sizes are not known."""
    MODE_CONTRADICTED = "ModeContradicted"
    """The spec asks for two roles, and the workload that it describes speaks against them."""
    OPTIONAL_API_MISSING = "OptionalApiMissing"
    """The spec asks for an object whose kind the cluster does not have; it is made when the kind appears."""
    ENGINE_SETTING = "EngineSetting"
    """A setting of the engine works, and is probably not what its author wants."""


class SizeReason(StrEnum):
    """Why a role has its size, besides the name of the signal that asks for it: `status.<role>.reason`."""

    MIN_REPLICAS = "MinReplicas"
    """Nothing was measured yet, and the size is the smallest that is allowed, or was below it."""
    MAX_REPLICAS = "MaxReplicas"
    """The size was above the largest that is allowed."""
    MAX_GPUS = "MaxGpus"
    """The pool may have fewer accelerators than its roles ask for, and the other role needs them more."""
    RATIO = "Ratio"
    """The bounds of prefill replicas per decode replica."""
    PAUSED = "Paused"
    """The size is held because the spec says so."""
    SIGNALS_UNKNOWN = "SignalsUnknown"
    """No signal is known, and the size is held."""
    GPU_METRICS_UNATTRIBUTED = "GpuMetricsUnattributed"
    """The only signal is one of GPUs, and no series of it names a pod of the pool; the size is held."""
    WAKING = "Waking"
    """Requests wait at the router of a pool that was at zero."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Nothing was asked for, for as long as the role may wait before it shrinks."""


class Condition(ApiModel):
    """One aspect of the pool's state, as metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9.-]+(/[A-Za-z0-9._-]+)?$")]
    """Aspect, in CamelCase."""
    status: Status
    """True, False or Unknown."""
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """metadata.generation that the condition was computed from."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in CamelCase, from a closed list."""
    message: Annotated[str, Field(max_length=MESSAGE_MAX_LENGTH)] = ""
    """Why, for a person."""


_ORDER: Final = {each.value: place for place, each in enumerate(ConditionType)}


def set_condition(
    present: Iterable[Condition],
    kind: ConditionType,
    status: Status,
    reason: Reason,
    message: str,
    *,
    generation: int,
    now: str,
) -> tuple[Condition, ...]:
    """The conditions with one of them set, in the fixed order of `ConditionType` (unknown types last, by name).

    Args:
        present: what status holds so far.
        kind: the condition to set.
        status: the API's word.
        reason: why.
        message: why, for a person; cut at the API's limit.
        generation: metadata.generation that was looked at.
        now: RFC 3339 time; becomes lastTransitionTime only when the status differs from the present one.
    """
    by_type = {each.type: each for each in present}
    old = by_type.get(kind.value)
    by_type[kind.value] = Condition(
        type=kind.value,
        status=status,
        observed_generation=generation,
        last_transition_time=old.last_transition_time if old is not None and old.status == status else now,
        reason=reason.value,
        message=message[:MESSAGE_MAX_LENGTH],
    )
    return in_order(by_type.values())


def without(present: Iterable[Condition], kind: ConditionType) -> tuple[Condition, ...]:
    """The conditions without one (as `Stalled`, which is absent unless True), in the fixed order."""
    return in_order(each for each in present if each.type != kind.value)


def in_order(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The conditions in the one order that is ever written: another order would be a write without a change."""
    return tuple(sorted(conditions, key=lambda each: (_ORDER.get(each.type, len(_ORDER)), each.type)))
