"""The part of an InferencePool's spec that describes its expected requests; what mode Auto reasons from.

Boundary: shape, limits and CEL rules; see `pool.py`. Everything is optional: what is not told is not guessed.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, model_validator

from pdpool_api.schema import ApiModel, rule, rules

Tokens = Annotated[int, Field(ge=1, le=100_000_000, json_schema_extra={"format": "int32"})]
_ORDER_RULE: Final = "p99 must be at least p50"


class TokenCounts(ApiModel):
    """How many tokens requests have."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!has(self.p50) || !has(self.p99) || self.p50 <= self.p99", _ORDER_RULE, fieldPath=".p99")
        )
    )

    p50: Tokens | None = None
    """Half of the requests have no more."""
    p99: Tokens | None = None
    """99 of 100 requests have no more."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        """The rule of the schema again, for files."""
        if self.p50 is not None and self.p99 is not None and self.p50 > self.p99:
            raise ValueError(_ORDER_RULE)
        return self


class Workload(ApiModel):
    """What requests are expected. Mode Auto decides with it, and a mode that it speaks against is remarked."""

    prompt_tokens: TokenCounts = TokenCounts()
    """Tokens of a prompt."""
    output_tokens: TokenCounts = TokenCounts()
    """Tokens of an answer."""
    requests_per_second: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests of the whole pool in a second."""
    prefix_hit_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of prompt tokens that an engine finds in its cache."""
