"""Sizes of a pool's model: those that the spec gives, over those of the shipped table; what neither knows is None.

Boundary: pure but for one file of this package. Nothing is guessed, and no network is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pdpool_api.sizing import Attention, KvShape, LatentAttention

if TYPE_CHECKING:
    from pdpool_api.served_model import Model

BYTES_PER_PARAMETER: Final = 2
"""Of 16-bit weights, the published form of most models."""

Positive = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a model; None: unknown."""

    parameters: float | None = None
    weight_bytes: float | None = None
    weights_are_given: bool = False
    """The spec itself says how many bytes the weights take, whatever form they are loaded in."""
    kv: KvShape | None = None
    kv_heads: int | None = None
    """Of ordinary attention; None also with MLA, whose vector is not divided."""
    latent: bool | None = None
    """The model has multi-head latent attention (MLA)."""

    @property
    def known(self) -> bool:
        """True when both the weights and the KV cache can be computed."""
        return self.weight_bytes is not None and self.kv is not None


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class _Attention(_Section):
    layers: Size
    kv_heads: Size
    head_size: Size


class _Latent(_Section):
    layers: Size
    latent_rank: Size
    rotary_size: Size


class _Entry(_Section):
    ids: Annotated[tuple[str, ...], Field(min_length=1)]
    parameters: Positive
    weight_bytes: Positive
    attention: _Attention | None = None
    latent: _Latent | None = None
    source: Annotated[str, Field(min_length=1)]

    def facts(self) -> ModelFacts:
        """The entry as facts."""
        sizes = ModelFacts(parameters=self.parameters, weight_bytes=self.weight_bytes)
        if self.latent is not None:
            kv = LatentAttention(self.latent.layers, self.latent.latent_rank, self.latent.rotary_size)
            return replace(sizes, kv=kv, latent=True)
        assert self.attention is not None, f"{self.ids[0]}: neither attention nor latent"
        ordinary = Attention(self.attention.layers, self.attention.kv_heads, self.attention.head_size)
        return replace(sizes, kv=ordinary, kv_heads=ordinary.kv_heads, latent=False)


def facts(model: Model) -> ModelFacts:
    """What is known of the model."""
    known = table().get(model.id, ModelFacts())
    shape = model.shape
    if shape is None:
        return known
    weights = shape.weight_bytes
    if weights is None:
        weights = shape.parameters * BYTES_PER_PARAMETER if shape.parameters is not None else known.weight_bytes
    found = replace(
        known,
        parameters=shape.parameters if shape.parameters is not None else known.parameters,
        weight_bytes=weights,
        weights_are_given=shape.weight_bytes is not None,
    )
    if shape.kv_heads is not None:
        found = replace(found, kv_heads=shape.kv_heads, latent=False)
    if shape.layers is not None and shape.kv_heads is not None and shape.head_size is not None:
        found = replace(found, kv=Attention(shape.layers, shape.kv_heads, shape.head_size))
    return found


@cache
def table() -> dict[str, ModelFacts]:
    """The shipped table by hub id.

    Raises:
        ValueError: an entry breaks a rule, or an id stands twice.
    """
    text = resources.files(__package__).joinpath("table.yaml").read_text(encoding="utf-8")
    raw: list[Any] = yaml.safe_load(text)
    found: dict[str, ModelFacts] = {}
    for each in raw:
        entry = _Entry.model_validate(each)
        for name in entry.ids:
            if name in found:
                raise ValueError(f"{name} stands twice in the table of models")
            found[name] = entry.facts()
    return found
