"""The status of an InferencePool: what the operator last saw.

Boundary: shape and limits; what is said is decided by the operator.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, computed_field

from pdpool_api.conditions import Condition
from pdpool_api.role_spec import Count
from pdpool_api.schema import ApiModel


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
    last_scale_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When demand last changed the size."""

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


class GpuStatus(ApiModel):
    """Accelerators of the pool's engine pods."""

    in_use: Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})] = 0
    """Accelerators that scheduled pods hold, leaving ones included."""
    max: Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})] | None = None
    """spec.maxGpus."""


class InferencePoolStatus(ApiModel):
    """What the pool is, as the operator last saw it."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """metadata.generation that was acted on."""
    mode: Annotated[str, Field(max_length=64)] = ""
    """How requests are served; what mode Auto decided."""
    mode_inputs: Annotated[str, Field(max_length=63)] = ""
    """With mode Auto: hash of what the decision rests on; while it stays the mode stays."""
    revision: Annotated[str, Field(max_length=63)] = ""
    """Hash of what prefill and decode must share; requests are served only by pods of one revision."""
    url: Annotated[str, Field(max_length=512)] = ""
    """OpenAI-compatible address of the pool inside the cluster."""
    prefill: RoleStatus | None = None
    """The role that computes prompts."""
    decode: RoleStatus | None = None
    """The role that makes the tokens; in mode Aggregated the one engine role."""
    router: RouterStatus | None = None
    """The router."""
    gpus: GpuStatus | None = None
    """Accelerators of the engine pods."""
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
