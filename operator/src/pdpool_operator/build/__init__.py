"""The children that a pool's spec asks for, one file per kind of child.

Boundary: pure. Deterministic, order of lists included, because the hash of what is built tells whether it was applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_operator.build.engine_deployment import engine_deployment
from pdpool_operator.build.router_access import role, role_binding, service_account
from pdpool_operator.build.router_config_map import config_map
from pdpool_operator.build.router_deployment import router_deployment
from pdpool_operator.build.services import engine_service, router_service
from pdpool_operator.records import Desired, Images, Refusal

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool


def desired(pool: InferencePool, images: Images) -> Desired | Refusal:
    """Every child of the pool, or why none is built."""
    resolved = pool.model_copy(update={"spec": pool.spec.with_images(engine=images.engine, router=images.router)})
    try:
        refused = refusal(resolved)
        if refused is not None:
            return refused
        revision = vllm.revision(resolved.spec)
        engines = [engine_deployment(resolved, each, revision) for each in resolved.spec.roles]
    except vllm.ArgumentError as fault:
        return Refusal(Reason.INVALID_SPEC, str(fault))
    return Desired(
        revision=revision,
        children=(
            service_account(resolved),
            role(resolved),
            role_binding(resolved),
            config_map(resolved),
            router_service(resolved),
            *(engine_service(resolved, each) for each in resolved.spec.roles),
            router_deployment(resolved),
            *engines,
        ),
        replicas={
            Role.ROUTER: resolved.spec.router.desired_replicas,
            **{each: resolved.spec.role(each).desired_replicas for each in resolved.spec.roles},
        },
    )


def refusal(pool: InferencePool) -> Refusal | None:
    """Why a spec with resolved images is not carried out, every fault named; None: it is.

    Raises:
        vllm.ArgumentError: a JSON argument is no JSON object.
    """
    if reserved := vllm.reserved_arguments(pool.spec):
        return Refusal(Reason.RESERVED_ARGUMENT, "; ".join(reserved))
    if unsupported := vllm.unsupported_version(pool.spec):
        return Refusal(Reason.UNSUPPORTED_VERSION, unsupported)
    if found := vllm.disagreements(pool.spec):
        return Refusal(Reason.INCOMPATIBLE_ROLES, "; ".join(each.message for each in found))
    return None
