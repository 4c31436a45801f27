"""The next step towards what is desired, without ever leaving a pool with less than it needs.

Boundary: pure; from Observed, Desired and the time to a Plan. Prefill and decode of one revision belong together: each
revision has a Deployment for each role, the desired one grows as room is made by the older ones, and requests are
paired within one revision by the router. A change of the mode is a change of the revision whose roles have other
names. Any other change of a pod template is rolled by the Deployment itself, within `spec.<role>.rollout`.

Nothing is remembered between two steps: every step is decided anew from what is there, so that an edit, a revert or
a failure half-way is not a case of its own.

    fit the desired revision → fit the older ones → grow → make room
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pdpool_api import names
from pdpool_operator.records import Child, ChildKey, Desired, Json, Note, Observed, Plan
from pdpool_operator.rollout import steps
from pdpool_operator.rollout.members import COST_MARKED, COST_SPENT, is_engine, members
from pdpool_operator.rollout.sketch import Side, Sketch, sketch
from pdpool_operator.rollout.strategy import Strategy, strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

_FROZEN = {"paused": True, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
"""Such a Deployment replaces no pod by itself; only its size moves."""


def next_step(observed: Observed, desired: Desired, now_s: float) -> Plan:
    """What to write now.

    Args:
        observed: the pool as it is.
        desired: what is wanted, its sizes included.
        now_s: the time, in seconds of the Unix epoch; marks of leaving pods carry it.
    """
    draft = sketch(desired, members(observed), now_s)
    steps.fit_current(draft)
    steps.fit_older(draft)
    steps.grow(draft)
    steps.make_room(draft)
    return _plan(observed, draft)


def _plan(observed: Observed, draft: Sketch) -> Plan:
    desired = draft.desired
    ways = strategies(draft)
    held_back = {draft.current[role].member.key: draft.current[role] for role, way in ways.items() if way is None}
    gone = {side.member.key for side in draft.older if side.member.alive and not side.held}
    superseded = frozenset(side.member.key for side in draft.older if side.member.alive) - gone
    return Plan(
        desired=desired,
        apply=tuple(_sized(child, draft, ways) for child in desired.children if child.key not in held_back),
        adjust={
            side.member.key: _frozen(side)
            for side in (*held_back.values(), *draft.older)
            if side.member.key not in gone and _moves(side)
        },
        undo={side.member.key: side.undo for side in draft.older if side.undo},
        notes=tuple(_notes(draft)),
        delete=_unwanted(observed, desired, superseded),
        superseded=superseded,
        leaving=tuple(sorted(_leaving(draft))),
    )


def _sized(child: Child, draft: Sketch, ways: dict[names.Role, Strategy | None]) -> Child:
    """An engine Deployment at the size and the strategy of this step."""
    if not child.revision or child.role is None:
        return child
    way = ways[child.role]
    assert way is not None
    side = draft.current[child.role]
    rolling = {"maxSurge": way.max_surge, "maxUnavailable": way.max_unavailable}
    spec = {
        **child.body["spec"],
        "replicas": side.asked,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
    }
    metadata = child.body["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_TEMPLATE: side.template}
    return replace(child, body={**child.body, "metadata": {**metadata, "annotations": annotations}, "spec": spec})


def _moves(side: Side) -> bool:
    if not side.member.alive or side.undo or side.member.undoing:
        return False
    return side.asked != side.member.asked or not side.member.paused


def _frozen(side: Side) -> Json:
    return {**_FROZEN, "replicas": side.asked}


def _notes(draft: Sketch) -> Iterator[Note]:
    now = datetime.fromtimestamp(draft.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    marked = {names.ANNOTATION_DRAINING: now, names.ANNOTATION_DELETION_COST: COST_MARKED}
    for side in draft.sides:
        for replicas, given in (
            (side.marked, marked),
            (side.restored, dict.fromkeys(marked)),
            (side.spent, {names.ANNOTATION_DELETION_COST: COST_SPENT}),
        ):
            yield from (Note(each.name, each.uid, given) for each in replicas)


def _leaving(draft: Sketch) -> Iterator[str]:
    """Pods whose load matters: those that are marked, and those among which one was chosen."""
    for side in draft.sides:
        yield from (each.uid for each in side.aside)
        if side.marked:
            yield from (each.uid for each in side.serving)


def _unwanted(observed: Observed, desired: Desired, superseded: frozenset[ChildKey]) -> tuple[ChildKey, ...]:
    """Children that are not desired. What is around a role that goes stays as long as its pods."""
    extra = {key: live for key, live in observed.children.items() if key not in {each.key for each in desired.children}}
    going = {_role(observed.children[key]) for key in superseded} - {child.role for child in desired.children}
    around = {key for key, live in extra.items() if not is_engine(key, live) and _role(live) in going}
    return tuple(sorted(key for key in extra if key not in superseded | around))


def _role(live: Json) -> str:
    return str(live["metadata"].get("labels", {}).get(names.LABEL_ROLE, ""))
