"""The children that a pool's spec asks for, one file per kind of child.

Boundary: pure. Deterministic, order of lists included, because the hash of what is built tells whether it was applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import accelerators
from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_operator.build import recipes
from pdpool_operator.build.disruption_budgets import disruption_budget
from pdpool_operator.build.engine_deployment import engine_deployment, made_before
from pdpool_operator.build.network_policies import engine_policy, openings, router_policy
from pdpool_operator.build.optional_kinds import http_route, pod_monitors
from pdpool_operator.build.router_access import role, role_binding, service_account
from pdpool_operator.build.router_config_map import config_map
from pdpool_operator.build.router_deployment import router_deployment
from pdpool_operator.build.services import engine_service, router_service
from pdpool_operator.records import Child, Desired, Images, Pace, Refusal, Remark, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdpool_api.pool import InferencePool, InferencePoolSpec


def desired(pool: InferencePool, images: Images, around: Surroundings | None = None) -> Desired | Refusal:
    """Every child of the pool, or why none is built; mode Auto is decided before."""
    around = around or Surroundings()
    resolved = pool.model_copy(update={"spec": pool.spec.with_images(engine=images.engine, router=images.router)})
    spec = resolved.spec
    try:
        if refused := refusals(resolved):
            return refused[0]
        revision = vllm.revision(spec)
        engines = [engine_deployment(resolved, each, revision) for each in spec.roles]
        optional = _optional(resolved)
        advice = vllm.advice(spec)
        children = (
            service_account(resolved),
            role(resolved),
            role_binding(resolved),
            config_map(resolved),
            router_policy(resolved, around.operator_namespace),
            *(engine_policy(resolved, each, around.operator_namespace) for each in spec.roles),
            *(disruption_budget(resolved, each) for each in (Role.ROUTER, *spec.roles)),
            router_service(resolved),
            *(engine_service(resolved, each) for each in spec.roles),
            router_deployment(resolved),
            *engines,
            *(child for child in optional if child.resource in around.optional),
        )
    except vllm.ArgumentError as fault:
        return Refusal(Reason.INVALID_SPEC, str(fault))
    return Desired(
        revision=revision,
        children=children,
        replicas={
            Role.ROUTER: spec.router.desired_replicas,
            **{each: spec.role(each).desired_replicas for each in spec.roles},
        },
        paces={each: _pace(spec, each) for each in spec.roles},
        serves_alone=spec.router.routing.on_prefill_unavailable == "Local",
        lease_s=spec.transfer.lease_seconds,
        mode="Disaggregated" if spec.disaggregated else "Aggregated",
        max_gpus=spec.max_gpus,
        remarks=(
            *_missing(child for child in optional if child.resource not in around.optional),
            *(Remark(Reason.ENGINE_SETTING, words) for words in (*advice, *openings(resolved))),
        ),
    )


def _pace(spec: InferencePoolSpec, each: Role) -> Pace:
    of_role = spec.role(each)
    return Pace(
        max_surge=of_role.rollout.max_surge,
        max_unavailable=of_role.rollout.max_unavailable,
        accelerators=accelerators.of_replica(spec, each),
        drain_s=of_role.drain_seconds,
    )


def refusals(pool: InferencePool) -> tuple[Refusal, ...]:
    """Why a spec with resolved images is not carried out, every fault named; empty: it is.

    Raises:
        vllm.ArgumentError: a JSON argument is no JSON object, or a size is no whole number.
    """
    unsupported = vllm.unsupported_version(pool.spec)
    found = (
        (vllm.reserved_arguments(pool.spec), Reason.RESERVED_ARGUMENT),
        ([unsupported] if unsupported else [], Reason.UNSUPPORTED_VERSION),
        ([each.message for each in vllm.disagreements(pool.spec)], Reason.INCOMPATIBLE_ROLES),
    )
    return tuple(Refusal(reason, "; ".join(words)) for words, reason in found if words)


def _optional(pool: InferencePool) -> list[Child]:
    route = http_route(pool)
    return [*([route] if route is not None else []), *pod_monitors(pool)]


def _missing(children: Iterable[Child]) -> list[Remark]:
    kinds = {child.resource.kind: child.resource for child in children}
    return [
        Remark(
            Reason.OPTIONAL_API_MISSING,
            f"no {kind} is made: the API server has no {resource.api_version} (made when it is installed)",
        )
        for kind, resource in kinds.items()
    ]


__all__ = ["desired", "made_before", "recipes", "refusals"]
