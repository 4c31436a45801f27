"""How models become a structural schema: the base class, pieces of core/v1, and CEL rules.

Boundary: what the models of `pool.py` and `conditions.py` are built from; `crd.py` turns them into the CRD. Values that
core/v1 owns (env, resources, volumes) stay raw JSON in Python, because the operator hands them on untouched; in the CRD
they are typed by the apiserver's own schema.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

CORE_KEY: Final = "$core"
"""Key of the placeholder that the generator replaces by a definition of core/v1."""

RULES_KEY: Final = "x-kubernetes-validations"


class ApiModel(BaseModel):
    """One object of the API: camelCase on the wire, snake_case in Python, immutable.

    Unknown fields are ignored on reading, so that an operator reads what a newer CRD stored. Files are read strictly:
    `model_validate(…, extra="forbid")`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


def rule(expression: str, message: str, **more: str) -> dict[str, str]:
    """One CEL rule of `x-kubernetes-validations`; `more` holds `fieldPath` or `reason`."""
    return {"rule": expression, "message": message, **more}


def rules(*each: dict[str, str]) -> dict[str, Any]:
    """`json_schema_extra` of a model or a field that carries CEL rules."""
    return {RULES_KEY: list(each)}


def _core(definition: str, *, without: tuple[str, ...] = ()) -> WithJsonSchema:
    return WithJsonSchema({"type": "object", CORE_KEY: definition, "without": list(without)})


def _map_list(*keys: str) -> dict[str, Any]:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _quantity(value: int | str) -> int | str:
    if not re.match(QUANTITY_PATTERN, str(value)):
        raise ValueError("must be a quantity, as 16Gi")
    return value


MAX_ITEMS: Final = 256
"""Longest list anywhere: a rule that loops over a list needs a bound (the apiserver estimates its worst cost)."""

EnvVar = Annotated[dict[str, Any], _core("EnvVar")]
Resources = Annotated[dict[str, Any], _core("ResourceRequirements")]
SecurityContext = Annotated[dict[str, Any], _core("SecurityContext")]
PodSecurityContext = Annotated[dict[str, Any], _core("PodSecurityContext")]
Affinity = Annotated[dict[str, Any], _core("Affinity")]
Volume = Annotated[dict[str, Any], _core("Volume")]
VolumeMount = Annotated[dict[str, Any], _core("VolumeMount")]
Toleration = Annotated[dict[str, Any], _core("Toleration")]
SpreadConstraint = Annotated[dict[str, Any], _core("TopologySpreadConstraint")]
ResourceClaim = Annotated[dict[str, Any], _core("PodResourceClaim")]
PullSecret = Annotated[dict[str, Any], _core("LocalObjectReference")]

_ENV_RULE: Final = "a variable has a value or a valueFrom, not both"


def _one_source(variables: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """The rule of the schema again, for files."""
    if any(each.get("value") and each.get("valueFrom") for each in variables):
        raise ValueError(_ENV_RULE)
    return variables


EnvVars = Annotated[
    tuple[EnvVar, ...],
    Field(
        max_length=MAX_ITEMS,
        json_schema_extra={
            **_map_list("name"),
            **rules(rule("self.all(e, !has(e.value) || e.value == '' || !has(e.valueFrom))", _ENV_RULE)),
        },
    ),
    AfterValidator(_one_source),
]
Volumes = Annotated[tuple[Volume, ...], Field(max_length=MAX_ITEMS, json_schema_extra=_map_list("name"))]
VolumeMounts = Annotated[tuple[VolumeMount, ...], Field(max_length=MAX_ITEMS, json_schema_extra=_map_list("mountPath"))]
Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=MAX_ITEMS)]
SpreadConstraints = Annotated[
    tuple[SpreadConstraint, ...],
    Field(max_length=64, json_schema_extra=_map_list("topologyKey", "whenUnsatisfiable")),
]
ResourceClaims = Annotated[tuple[ResourceClaim, ...], Field(max_length=64, json_schema_extra=_map_list("name"))]
PullSecrets = Annotated[tuple[PullSecret, ...], Field(max_length=64, json_schema_extra=_map_list("name"))]

QUANTITY_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
INT_OR_STRING: Final[dict[str, Any]] = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
}
Quantity = Annotated[
    int | str,
    WithJsonSchema({**INT_OR_STRING, "pattern": QUANTITY_PATTERN, "maxLength": 64}),
    AfterValidator(_quantity),
]
"""An amount as core/v1 writes it: 16Gi, 500m, 3."""
