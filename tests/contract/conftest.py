"""Pools for tests of the contract, and the API server that some of them ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster.fixtures import bare_control_plane
from pdpool_api.pool import InferencePoolSpec

__all__ = ["bare_control_plane", "spec"]

MakeSpec = Callable[..., InferencePoolSpec]


@pytest.fixture
def spec() -> MakeSpec:
    """Makes the spec of a small valid pool; keywords are sections whose fields are laid over it, as in a file."""

    def make(**over: Any) -> InferencePoolSpec:
        base: dict[str, Any] = {"model": {"id": "org/model"}, "prefill": {}, "decode": {}}
        for section, fields in over.items():
            base[section] = {**base.get(section, {}), **fields}
        return InferencePoolSpec.model_validate(base, extra="forbid")

    return make
