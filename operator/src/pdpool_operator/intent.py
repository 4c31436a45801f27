"""What a pool's spec asks for, before anything of the cluster is looked at: its children, or every reason why none.

Boundary: pure. The operator acts on it (`reconcile`), and the command line shows it (`pdpool render`, `validate`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_operator import build, plan
from pdpool_operator.records import Desired, Images, Refusal, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_api.pool import InferencePool, InferencePoolSpec
    from pdpool_operator.plan import Decision
    from pdpool_operator.sizes import Sizes


def fixed(_spec: InferencePoolSpec) -> Sizes:
    """No size follows demand: each autoscaled role has its smallest."""
    return {}


def wanted(
    pool: InferencePool,
    images: Images,
    around: Surroundings,
    sizes: Callable[[InferencePoolSpec], Sizes] = fixed,
) -> Desired | Refusal:
    """The children of the mode that is decided, or the first reason why none are built.

    Args:
        pool: as its author wrote it.
        images: of the operator's own.
        around: what children depend on besides the pool.
        sizes: what demand asks for, of a spec in its decided mode.

    Raises:
        vllm.ArgumentError: an argument cannot be read.
    """
    chosen, decision = _decided(pool, images)
    if found := plan.refusals(chosen.spec) or build.refusals(chosen):
        return found[0]
    told = sizes(chosen.spec)
    sized = chosen.spec.with_sizes({role: each.size for role, each in told.items()})
    desired = build.desired(chosen.model_copy(update={"spec": sized}), images, around)
    if isinstance(desired, Refusal):
        return desired
    remarks = (*([decision.remark] if decision.remark else []), *desired.remarks)
    unchecked = plan.unchecked(chosen.spec)
    built = replace(desired, spec=chosen.spec, sizes=told, mode_inputs=decision.inputs)
    return replace(built, remarks=remarks, unchecked=unchecked)


def refusals(pool: InferencePool, images: Images) -> tuple[Refusal, ...]:
    """Every reason why a spec is not carried out; empty: it is."""
    try:
        chosen, _ = _decided(pool, images)
        return (*plan.refusals(chosen.spec), *build.refusals(chosen))
    except vllm.ArgumentError as fault:
        return (Refusal(Reason.INVALID_SPEC, str(fault)),)


def _decided(pool: InferencePool, images: Images) -> tuple[InferencePool, Decision]:
    resolved = pool.model_copy(update={"spec": pool.spec.with_images(engine=images.engine, router=images.router)})
    decision = plan.decided(resolved)
    return resolved.model_copy(update={"spec": resolved.spec.in_mode(decision.mode)}), decision
