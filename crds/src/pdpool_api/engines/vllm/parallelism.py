"""How an engine is really spread over accelerators: the author's arguments where given, else the fields of the pool.

Boundary: pure. Ports, accelerators and compatibility rest on it, so that they follow what the engine is started with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from pdpool_api.engines.vllm.flags import ArgumentError, given_flags
from pdpool_api.pool import Parallelism

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

_FIELDS: Final = {
    "--tensor-parallel-size": "tensor",
    "--pipeline-parallel-size": "pipeline",
    "--data-parallel-size": "data",
}


def parallelism(spec: InferencePoolSpec, role: Role) -> Parallelism:
    """Tensor, pipeline and data sizes of a role's engine.

    Raises:
        ArgumentError: an argument gives a size that the field of the same meaning would not take.
    """
    found = spec.role(role).parallelism
    for each in given_flags(spec, role):
        if field := _FIELDS.get(each.flag):
            try:
                found = Parallelism.model_validate({**found.model_dump(), field: each.value})
            except ValidationError as fault:
                (first, *_) = fault.errors()
                raise ArgumentError(f"{each.field}: {each.flag} {each.value}: {first['msg']}") from fault
    return found
