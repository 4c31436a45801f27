"""The part of an InferencePool's spec that says which model is served, and where it comes from.

Boundary: shape, limits and CEL rules; see `pool.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from pdpool_api.schema import ApiModel, Quantity, rule, rules

_ID_RULE: Final = "id must be a hub id or an absolute path: no white space, and no '-' at its start"
_NAMES_RULE: Final = "a name in servedNames must have no white space and no '-' at its start"
_NAMES_UNIQUE_RULE: Final = "servedNames must not repeat a name"
_ADAPTERS_RULE: Final = "an adapter's name must not be one of servedNames, nor the id where servedNames is absent"
_CACHE_RULE: Final = "at most one of persistentVolumeClaim, hostPath and emptyDir may be given"

_ARGUMENT_WORD: Final = re.compile(r"[^\s-]\S*\Z")
"""What the engine's parser takes for a value, and nothing else."""
_ADAPTER_WORD: Final = r"^[^\s=,{-][^\s=,]*$"
"""The engine takes an adapter as `name=source`, and a brace or a comma for JSON."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]


class ModelShape(ApiModel):
    """What the arithmetic about the model needs: does it fit, how much KV does a token take."""

    parameters: Annotated[float, Field(gt=0, le=1e15)] | None = None
    """Number of parameters, as 70.6e9."""
    layers: Annotated[int, Field(ge=1, le=4096, json_schema_extra={"format": "int32"})] | None = None
    """Layers whose KV cache grows with the sequence."""
    kv_heads: Annotated[int, Field(ge=1, le=4096, json_schema_extra={"format": "int32"})] | None = None
    """Key and value heads of a layer."""
    head_size: Annotated[int, Field(ge=1, le=65_536, json_schema_extra={"format": "int32"})] | None = None
    """Values of one head."""
    weight_bytes: Annotated[float, Field(gt=0, le=1e15)] | None = None
    """Bytes of all weights as they lie in memory, as 141e9. Absent: two bytes a parameter."""


class SecretKey(ApiModel):
    """One entry of a Secret in the pool's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of its data."""


class ClaimSource(ApiModel):
    """A PersistentVolumeClaim of the pool's namespace."""

    claim_name: ObjectName
    """Name of the claim. Pods on several nodes need one that can be mounted by many."""


class HostPathSource(ApiModel):
    """A directory of the node."""

    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/.*$")]
    """Absolute path; made when absent."""


class EmptyDirSource(ApiModel):
    """Disk of the node that lives as long as the pod."""

    size_limit: Quantity | None = None
    """Most that it may hold, as 200Gi; beyond it the pod is evicted."""


class ModelCache(ApiModel):
    """Where downloaded weights are kept; each pod mounts it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.emptyDir)].filter(x, x).size() <= 1",
                _CACHE_RULE,
            )
        )
    )

    persistent_volume_claim: ClaimSource | None = None
    """A PersistentVolumeClaim of the pool's namespace."""
    host_path: HostPathSource | None = None
    """A directory of the node."""
    empty_dir: EmptyDirSource | None = None
    """Disk of the node that lives as long as the pod."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(each is not None for each in (self.persistent_volume_claim, self.host_path, self.empty_dir)) > 1:
            raise ValueError(_CACHE_RULE)
        return self


class Adapter(ApiModel):
    """One LoRA adapter; clients ask for it by its name, as for a model."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=_ADAPTER_WORD)]
    """Name that clients ask for."""
    source: Annotated[str, Field(min_length=1, max_length=512, pattern=_ADAPTER_WORD)]
    """Hub id, or an absolute path inside the container."""


class Model(ApiModel):
    """The model that the pool serves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.adapters) || self.adapters.all(a,"
                " has(self.servedNames) ? !(a.name in self.servedNames) : a.name != self.id)",
                _ADAPTERS_RULE,
                fieldPath=".adapters",
            )
        )
    )

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
    shape: ModelShape | None = None
    """Sizes of the model. Absent: those of a table shipped by id; else unknown, and nothing is said of what fits."""
    token_secret_ref: SecretKey | None = None
    """Token for the hub; it reaches the engines as HF_TOKEN, by reference only."""
    cache: ModelCache | None = None
    """Where downloaded weights are kept. Default: an emptyDir, where the id is no path."""
    adapters: Annotated[
        tuple[Adapter, ...],
        Field(
            max_length=64, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """LoRA adapters, loaded by every engine of the pool."""

    @model_validator(mode="after")
    def _readable_as_arguments(self) -> Self:
        """The rules of the schema again, for files."""
        if not _ARGUMENT_WORD.match(self.id):
            raise ValueError(_ID_RULE)
        if not all(_ARGUMENT_WORD.match(name) for name in self.served_names):
            raise ValueError(_NAMES_RULE)
        if len(set(self.served_names)) < len(self.served_names):
            raise ValueError(_NAMES_UNIQUE_RULE)
        if {each.name for each in self.adapters} & set(self.names):
            raise ValueError(_ADAPTERS_RULE)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names that clients ask for, the default applied; never empty."""
        return self.served_names or (self.id,)

    @property
    def has_cache(self) -> bool:
        """True when pods mount a directory for downloads: one is given, or something is downloaded."""
        return (
            self.cache is not None or not self.is_path or any(not each.source.startswith("/") for each in self.adapters)
        )

    @property
    def is_path(self) -> bool:
        """True when the id names a directory inside the container, so that nothing is downloaded."""
        return self.id.startswith("/")
