"""What a pool's spec asks for, before anything of the cluster is looked at: its children, or every reason why none.

Boundary: pure. The operator acts on it (`reconcile`), and the command line shows it (`pdpool render`, `validate`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_api.pool import InferencePool
from pdpool_operator import build, plan
from pdpool_operator.records import Desired, Images, Json, Refusal, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec
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
    return Recalled(pool, images).wanted(around, sizes)


class Recall:
    """What a pool asked for last: building is most of a look's work, and most looks are for another reason than a spec.

    Two specs are kept, as under a refused edit the one that was accepted before goes on.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Json, Recalled]] = []

    def of(self, raw: Json, images: Images) -> Recalled:
        """What can be said of a pool as it is stored; the same as long as it is built from the same.

        Raises:
            PoolError: it was stored by another schema.
            vllm.ArgumentError: an argument cannot be read.
        """
        status = raw.get("status") or {}
        metadata = raw["metadata"]
        basis = {
            "spec": raw["spec"],
            "of": (metadata.get("name"), metadata.get("namespace"), metadata.get("uid"), images),
            "mode": (status.get("mode"), status.get("modeInputs")),
        }
        found = next((each for each in self._kept if each[0] == basis), None)
        found = found or (basis, Recalled(InferencePool.parse(raw), images))
        self._kept = [found, *(each for each in self._kept if each is not found)][:2]
        return found[1]


class Recalled:
    """One spec, and what was built from it last."""

    def __init__(self, pool: InferencePool, images: Images) -> None:
        self.pool = pool
        self._images = images
        self._chosen, self._decision = _decided(pool, images)
        found = plan.refusals(self._chosen.spec) or build.refusals(self._chosen)
        self._refusal = found[0] if found else None
        self._built: tuple[tuple[Surroundings, dict[Role, int]], Desired | Refusal] | None = None

    def wanted(self, around: Surroundings, sizes: Callable[[InferencePoolSpec], Sizes]) -> Desired | Refusal:
        """See `wanted`."""
        if self._refusal is not None:
            return self._refusal
        told = sizes(self._chosen.spec)
        basis = around, {role: each.size for role, each in told.items()}
        if self._built is None or self._built[0] != basis:
            self._built = basis, self._build(*basis)
        built = self._built[1]
        return built if isinstance(built, Refusal) else replace(built, sizes=told)

    def _build(self, around: Surroundings, sizes: Mapping[Role, int]) -> Desired | Refusal:
        spec = self._chosen.spec
        sized = self._chosen.model_copy(update={"spec": spec.with_sizes(sizes)})
        desired = build.desired(sized, self._images, around)
        if isinstance(desired, Refusal):
            return desired
        remark = self._decision.remark
        remarks = (*([remark] if remark else []), *desired.remarks)
        built = replace(desired, spec=spec, mode_inputs=self._decision.inputs)
        return replace(built, remarks=remarks, unchecked=plan.unchecked(spec))


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
