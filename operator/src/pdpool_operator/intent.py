"""What a pool's spec asks for, before anything of the cluster is looked at: its children, or every reason why none.

**An upgrade of the operator alone rolls no engine.** Another version may have another default image, generate other
arguments, or shape pods in another way. So the recipe of a pool's engine pods is remembered with the spec that it was
made of. Whether an edit asks for other pods is told by this version alone: it makes the pods of both specs, and only
what then differs is made anew. There is no list of fields that matter, and no hash that another version must repeat.

Boundary: pure. The operator acts on it (`reconcile`), and the command line shows it (`pdpool render`, `validate`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_api.pool import InferencePool, PoolError
from pdpool_operator import build, ownership, plan
from pdpool_operator.records import Desired, EngineRecipe, Images, Recipe, Refusal, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec
    from pdpool_operator.plan import Decision
    from pdpool_operator.records import Child, Json, Observed
    from pdpool_operator.sizes import Sizes


_MOST_RECALLED: Final = 4


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

    A few are kept: under a refused edit the one that was accepted before goes on, and an edit is compared with it.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Json, Recalled]] = []
        self._recipes: dict[str, Recipe | None] = {}
        self._record: tuple[tuple[Recipe, str, Mapping[str, int]], Child] | None = None

    def rest(self) -> None:
        """Forgets all of it; the next look builds it anew."""
        self._kept.clear()
        self._recipes.clear()
        self._record = None

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
        self._kept = [found, *(each for each in self._kept if each is not found)][:_MOST_RECALLED]
        return found[1]

    def recipes(self, observed: Observed) -> tuple[Recipe, ...]:
        """See `build.recipes.kept`; each record is unpacked once."""
        return build.recipes.kept(observed, self._recipes)

    def record(self, observed: Observed, recipe: Recipe) -> Child:
        """See `build.recipes.record`; packed anew only where something of it is new."""
        basis = recipe, observed.uid, build.recipes.numbers(observed)
        if self._record is None or self._record[0] != basis:
            self._record = basis, build.recipes.record(InferencePool.parse(observed.pool), recipe, observed)
        return self._record[1]


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


def continued(
    recall: Recall,
    raw: Json,
    images: Images,
    around: Surroundings,
    sizes: Callable[[InferencePoolSpec], Sizes],
    *,
    kept: Sequence[Recipe],
    version: str,
) -> Desired | Refusal:
    """As `wanted`, but engine pods stay as they were made before where the spec asks for no others.

    Args:
        recall: what was built before.
        raw: the pool, as the API server has it.
        images: of the operator's own, today.
        around: what children depend on besides the pool.
        sizes: what demand asks for, of a spec in its decided mode.
        kept: the recipes that are remembered, the likeliest first.
        version: of this operator.

    Raises:
        PoolError: the pool breaks a rule of the schema.
        ArgumentError: an argument cannot be read.
    """
    for recipe in kept:
        found = _as_before(recall, raw, recipe, images, around=around, sizes=sizes)
        if found is not None:
            return _remembered(found, raw, recipe.engine_image, recipe, version)
    if kept:
        raw = _remembering(raw, kept[0])
    return _remembered(recall.of(raw, images).wanted(around, sizes), raw, images.engine, None, version)


def _as_before(
    recall: Recall,
    raw: Json,
    recipe: Recipe,
    images: Images,
    *,
    around: Surroundings,
    sizes: Callable[[InferencePoolSpec], Sizes],
) -> Desired | Refusal | None:
    """The children with the engine pods of a recipe, in both roles or in one; None: the spec asks for others."""
    if not recipe.roles:
        return None
    raw, images = _remembering(raw, recipe), replace(images, engine=recipe.engine_image)
    asked = recall.of(raw, images).wanted(around, sizes)
    is_same = bool(raw["spec"] == recipe.spec)
    before_that = None if is_same else _earlier(recall, raw, recipe, images)
    is_same = is_same or (before_that is not None and before_that.pool.spec == recall.of(raw, images).pool.spec)
    if isinstance(asked, Refusal):
        return asked if is_same else None  # refused by this version alone: what runs goes on
    if is_same:
        stays = _templates(asked)
    else:
        stays = _common(asked, before_that.wanted(around, fixed)) if before_that is not None else {}
    before = {role: recipe.roles[role] for role in stays if role in recipe.roles}
    # Pods that this version makes pair with those of an earlier one only where both call their revision the same.
    if not before or (asked.revision != recipe.revision and before.keys() != _templates(asked).keys()):
        return None
    pool = recall.of(raw, images).pool
    children = tuple(_made_before(pool, child, recipe.revision, before) for child in asked.children)
    return replace(asked, revision=recipe.revision, children=children)


def refusals(pool: InferencePool, images: Images) -> tuple[Refusal, ...]:
    """Every reason why a spec is not carried out; empty: it is."""
    try:
        chosen, _ = _decided(pool, images)
        return (*plan.refusals(chosen.spec), *build.refusals(chosen))
    except vllm.ArgumentError as fault:
        return (Refusal(Reason.INVALID_SPEC, str(fault)),)


def _remembering(raw: Json, recipe: Recipe) -> Json:
    """The pool as if this version had decided mode Auto when the spec was accepted.

    What a version decides from, and how that is hashed, may change: it is no reason to decide anew.
    """
    if recipe.spec.get("mode") != "Auto":
        return raw
    try:
        inputs = plan.inputs(InferencePool.parse({**raw, "spec": recipe.spec}).spec)
    except PoolError:
        return raw
    return {**raw, "status": {**(raw.get("status") or {}), "mode": recipe.mode, "modeInputs": inputs}}


def _earlier(recall: Recall, raw: Json, recipe: Recipe, images: Images) -> Recalled | None:
    """What the spec that was accepted before asks for; None: nobody can read it any more."""
    try:
        return recall.of({**raw, "spec": recipe.spec}, images)
    except (PoolError, vllm.ArgumentError):
        return None


def _common(asked: Desired | Refusal, before: Desired | Refusal) -> Mapping[Role, Json]:
    """Pods that both ask for, of one revision."""
    if isinstance(asked, Refusal) or isinstance(before, Refusal) or asked.revision != before.revision:
        return {}
    earlier = _templates(before)
    return {role: template for role, template in _templates(asked).items() if earlier.get(role) == template}


def _templates(found: Desired | Refusal) -> Mapping[Role, Json]:
    if isinstance(found, Refusal):
        return {}
    engines = (child for child in found.children if child.revision)
    return {child.role: child.body["spec"]["template"] for child in engines if child.role is not None}


def _made_before(pool: InferencePool, child: Child, revision: str, before: Mapping[Role, EngineRecipe]) -> Child:
    made = before.get(child.role) if child.revision and child.role is not None else None
    return child if made is None else build.made_before(pool, child, revision, made.template)


def _remembered(
    found: Desired | Refusal, raw: Json, engine_image: str, before: Recipe | None, version: str
) -> Desired | Refusal:
    if isinstance(found, Refusal):
        return found
    known = before.roles if before is not None else {}
    roles = {}
    for role, template in _templates(found).items():
        made = EngineRecipe(version, ownership.without_none(template))
        roles[role] = known[role] if role in known and known[role].template == made.template else made
    return replace(found, recipe=Recipe(raw["spec"], engine_image, found.mode, found.revision, roles))


def _decided(pool: InferencePool, images: Images) -> tuple[InferencePool, Decision]:
    resolved = pool.model_copy(update={"spec": pool.spec.with_images(engine=images.engine, router=images.router)})
    decision = plan.decided(resolved)
    return resolved.model_copy(update={"spec": resolved.spec.in_mode(decision.mode)}), decision
