"""One reconcile of one pool: the straight line from what is there to what is said.

    observe → plan (mode, fit) → sizes of the last tick → build.desired → rotation.stamped → rollout.next_step
    (→ loads of leaving pods → the same again) → refusals (→ the same for the spec accepted last) → apply → status
    → one status write

Level-triggered: nothing asks what happened, everything asks what is. The pool's own task is the only caller.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api import names
from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_api.pool import PoolError
from pdpool_operator import build, intent, rollout, rotation, telemetry
from pdpool_operator.observe.cluster import left_s
from pdpool_operator.records import (
    Images,
    Observed,
    Outcome,
    Plan,
    PoolRef,
    Recipe,
    Refusal,
    Surroundings,
)
from pdpool_operator.status import status

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_api.pool import InferencePoolSpec
    from pdpool_operator.apply import Writer
    from pdpool_operator.monitor import Monitor
    from pdpool_operator.observe.cluster import Cluster
    from pdpool_operator.observe.loads import Loads
    from pdpool_operator.observe.references import References
    from pdpool_operator.observe.secrets import Secrets
    from pdpool_operator.records import Json
    from pdpool_operator.scaler import Scaler
    from pdpool_operator.sizes import Sizes

VERSION: Final = version("pdpool-operator")
LOOK_AGAIN_S: Final = 600.0
"""A pool is looked at this often even when nothing wakes it; lost events are corrected by the re-list, earlier."""
UNSEEN_S: Final = 15.0
"""Objects of others and admission policies are not watched: what they hinder is looked at again by the clock."""
LEAVING_S: Final = 1.0
"""While a pod finishes its work, it is asked this often whether it has."""
GIVEN_UP_S: Final = 1.0
"""The shortest wait for a pod to be given up: clocks are not that exact."""
CHANGED_S: Final = 1.0
"""The pool changed while it was looked at: its event wakes it, and this is for the case that the event is lost."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile went."""

    look_again_s: float
    clean: bool
    """Everything planned was done; else it is tried again, later and later."""


async def reconcile(
    ref: PoolRef,
    cluster: Cluster,
    writer: Writer,
    images: Images,
    operator_namespace: str | None,
    *,
    secrets: Secrets,
    references: References,
    scaler: Scaler,
    loads: Loads,
    monitor: Monitor,
    recall: intent.Recall,
) -> Result | None:
    """Takes one step; None when the pool is gone or going, and nothing may be written for it."""
    now = datetime.now(UTC)
    observed = cluster.observed(ref, now.timestamp())
    if observed is None or observed.deleting:
        return None

    def planned(seen: Observed) -> Plan:
        sizes = functools.partial(scaler.sizes, seen)
        return next_plan(seen, images, operator_namespace, sizes, now_s=now.timestamp(), recall=recall)

    async def thought_out(seen: Observed) -> tuple[Observed, Plan]:
        seen = await secrets.seen(seen)
        step = planned(seen)
        if step.leaving:
            seen = replace(seen, loads=await loads.read(seen, step.leaving))
            step = planned(seen)
        if refused := await writer.refusals(seen, step):
            words = "; ".join(f"{key}: {said}" for key, said in refused.items())
            step = Plan(desired=None, refusal=Refusal(Reason.INVALID_SPEC, words))
        return seen, step

    observed = await writer.with_records(observed)
    accepted = next(iter(recall.recipes(observed)), None)
    is_edited = accepted is None or accepted.spec != observed.pool["spec"]
    observed, step = await thought_out(await references.seen(observed, anew=is_edited))
    refusal = step.refusal or _incomplete(observed, accepted)
    if refusal is not None and accepted is not None:
        # What was accepted last goes on, in every respect, beside what is said of the edit.
        seen, step = await thought_out(replace(observed, pool={**observed.pool, "spec": accepted.spec}))
        step = replace(step, refusal=refusal)
        observed = replace(observed, secrets=seen.secrets, loads=seen.loads)
    if step.desired is not None:
        telemetry.tell_desired(ref, step.desired.replicas)
        assert step.desired.spec is not None
        step = replace(step, desired=replace(step.desired, health=monitor.verdicts(observed, step.desired.spec)))
    outcome = await writer.carry_out(observed, step)
    said = status(observed, step, outcome, now=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    reported = await writer.report(observed, said)
    for key, words in {**outcome.refused, **outcome.failed}.items():
        _log.warning("write failed", pool=str(ref), child=str(key), fault=words)
    again_s = look_again_s(observed, step, outcome, now.timestamp()) if reported else CHANGED_S
    return Result(look_again_s=again_s, clean=not outcome.failed)


def look_again_s(observed: Observed, step: Plan, outcome: Outcome, now_s: float) -> float:
    """Seconds after which something may be new that no event tells."""
    is_held = outcome.conflicts or outcome.refused or step.refusal is not None or observed.missing_objects
    given_up_s = min((left_s(pod, now_s) for pod in observed.pods), default=LOOK_AGAIN_S)
    return min(
        UNSEEN_S if is_held else LOOK_AGAIN_S,
        LEAVING_S if step.leaving else LOOK_AGAIN_S,
        max(given_up_s, GIVEN_UP_S),
    )


def _incomplete(observed: Observed, accepted: Recipe | None) -> Refusal | None:
    """Why an edit of a live pool is not begun yet: it brings a reference to something that is known not to be there.

    Pods of a new pool wait for it themselves.
    """
    if accepted is None or accepted.spec == observed.pool["spec"]:
        return None
    known = _references({"spec": accepted.spec})
    missing = [each for each in observed.missing if each not in known]
    if not missing:
        return None
    return Refusal(Reason.MISSING_REFERENCE, f"the edit waits, as {', '.join(missing)} is missing")


def _references(pool: Json) -> frozenset[str]:
    """Everything that a pool's pods refer to, as `Observed.missing` calls it."""
    found = [*(each.reference for each in rotation.references(pool)), *rotation.objects(pool)]
    return frozenset(words for each in found for words in (each.object_words, each.words))


def next_plan(
    observed: Observed,
    images: Images,
    operator_namespace: str | None = None,
    sizes: Callable[[InferencePoolSpec], Sizes] = intent.fixed,
    *,
    now_s: float = 0.0,
    recall: intent.Recall | None = None,
) -> Plan:
    """Everything between reading and writing; pure but for what it recalls of the look before."""
    try:
        around = Surroundings(operator_namespace, observed.optional)
        recall = recall or intent.Recall()
        kept = recall.recipes(observed)
        desired = intent.continued(recall, observed.pool, images, around, sizes, kept=kept, version=VERSION)
    except (PoolError, vllm.ArgumentError) as fault:
        # Stored by an older schema, or an argument that cannot be read: nothing is built from a guess.
        return Plan(desired=None, refusal=Refusal(Reason.INVALID_SPEC, str(fault)))
    if isinstance(desired, Refusal):
        return Plan(desired=None, refusal=desired)
    assert desired.recipe is not None
    record = recall.record(observed, desired.recipe)
    desired = rotation.stamped(desired, observed)
    step = rollout.next_step(observed, replace(desired, children=(*desired.children, record)), now_s)
    left = {observed.children[key]["metadata"]["labels"].get(names.LABEL_REVISION, "") for key in step.superseded}
    outlived = build.recipes.outlived(observed, left)
    return replace(step, delete=tuple(key for key in step.delete if key not in outlived))


__all__ = ["Outcome", "Result", "next_plan", "reconcile"]
