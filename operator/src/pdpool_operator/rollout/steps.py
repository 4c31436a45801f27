"""The parts of one step, each of which moves the draft a little.

Boundary: pure. Their order is that of `next_step`: the desired revision is made smaller where it is too large, older
ones lose what is of no use any more, the desired one fills the room that there is, and room is made for its rest.

What may be missing of a place (`maxUnavailable`) is spent only to make room. Where a revision's last prefill (or
decode) has to go, although the replicas of the other role would be of no use then, the rule that replicas count only
in pairs is relaxed by degrees, and only when nothing else moves: the outage of a role with one replica and no surge
is the price that its author chose.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pdpool_operator.records import Pace
from pdpool_operator.rollout.capacity import PLACES, Pairing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdpool_api.names import Role
    from pdpool_operator.rollout.members import Replica
    from pdpool_operator.rollout.sketch import Side, Sketch

SEEN_S: Final = 3.0
"""Routers stop choosing a marked pod within 2 s; what they chose just before has arrived by then."""


def fit_current(draft: Sketch) -> None:
    """In each role of the desired revision as many pods are marked as it has too many, the least loaded first.

    Pods that are not ready never hold up a smaller size: they go first and at once. Marks are taken off where a size
    came back, and where two templates are mixed and a marked pod that has finished cannot go, since a smaller size
    might take another in its place: then the change of the template comes first.
    """
    for role, side in draft.current.items():
        leaving = max(0, side.held - draft.wanted(role) - side.unready)
        _restore(side, len(side.aside) - leaving)
        for replica in _least_loaded(side.serving)[: max(0, leaving - len(side.aside))]:
            if _bears_mark(draft, side):
                side.mark(replica)
        side.ask_less(max(0, min(side.asked - draft.wanted(role), side.idle)))
        asked = side.asked
        _let_go(draft, side, asked - draft.wanted(role))
        is_stuck = side.asked == asked > draft.wanted(role) and any(each.spent for each in side.aside)
        if is_stuck and side.member.mixed and not side.parting:
            _restore(side, len(side.aside))


def _bears_mark(draft: Sketch, side: Side) -> bool:
    """True when a serving replica may leave; with two templates, when the size may take another one besides."""
    return draft.bears_loss(side, *((Pairing.ROUTED, 2) if side.member.mixed else (Pairing.SINGLE, 1)))


def fit_older(draft: Sketch) -> None:
    """Of older revisions goes what never served and what has finished; where too few serve, marks are taken off."""
    for where in PLACES:
        for side in (*filter(None, [draft.at(where)]), *draft.older_at(where)):
            # What went for the cap's sake does not come back for that of the sizes.
            is_over = not side.template and over_cap(draft)
            short = draft.need[where] - draft.capacity(Pairing.SINGLE)[where]
            if draft.is_widowed(side) or is_over:
                continue
            _restore(side, min(short, len(side.aside) - side.parting))
    has_arrived = draft.arrived()
    for side in draft.older:
        if side.member.mixed and not has_arrived and not draft.is_widowed(side):
            # Nobody can say that just these go: they may as well serve.
            _restore(side, len(side.aside) - side.parting)
        if draft.is_widowed(side):
            side.waiting.clear()
            for replica in list(side.serving):
                side.mark(replica)
        if _is_frozen(side):
            _ask_less(draft, side, side.idle - len(side.waiting))
            _let_go(draft, side, side.asked)
        elif side.member.mixed and not side.member.undoing and not side.member.paused:
            # It is stopped in the middle of a change: without its surge, which pod went would be anybody's guess.
            side.asked = side.held


def _restore(side: Side, count: int) -> None:
    """Of those that the operator marked before, the last marked first."""
    ours = [each for each in side.aside if each.ours]
    ours.sort(key=lambda each: (each.spent, -(each.marked_s or 0.0), each.name))
    for replica in ours[: max(0, count)]:
        side.restore(replica)


def _let_go(draft: Sketch, side: Side, most: int) -> None:
    """Pods that were noted as finished go, at most so many; those that have finished since are noted."""
    if most <= 0:
        return
    _ask_less(draft, side, min(most, sum(1 for each in side.aside if each.spent) - side.parting))
    before = (each for each in side.aside if each not in side.marked and not each.spent)
    side.spent += [each for each in before if _has_finished(draft, side, each)]


def _ask_less(draft: Sketch, side: Side, count: int) -> None:
    """Lowers the size by replicas that do not serve; among mixed templates it may be one that does."""
    for _ in range(max(0, count)):
        if side.member.mixed and side.serving and not draft.bears_loss(side, Pairing.ROUTED):
            return
        side.ask_less()


def _is_frozen(side: Side) -> bool:
    """True when nothing but the size moves an older Deployment any more."""
    return side.member.seen and (side.member.paused or not side.member.mixed) and not side.member.undoing


def _has_finished(draft: Sketch, side: Side, replica: Replica) -> bool:
    """True when a pod may go: nobody waits for it, or its time is over."""
    if replica.marked_s is None:
        return True
    age_s = draft.now_s - replica.marked_s
    if age_s >= _pace(draft, side).drain_s:
        return True
    if age_s < SEEN_S or replica.load.requests != 0:
        return False
    # Only prefill is told whether it holds KV: elsewhere nobody comes to pull it.
    return replica.load.holds_kv is False or replica.load.idle_s >= draft.desired.lease_s


def _pace(draft: Sketch, side: Side) -> Pace:
    """How the role is replaced; of a role that the mode leaves out, as the most patient of the others."""
    paces = draft.desired.paces
    return paces.get(side.member.role) or max(paces.values(), key=lambda each: each.drain_s, default=Pace())


def make_room(draft: Sketch) -> None:
    """Older replicas are marked: all once the desired revision carries the load, before as many as it waits for."""
    if draft.arrived():
        for side in draft.older:
            side.ask_less(min(side.asked, len(side.waiting)) if _is_frozen(side) else 0)
            for replica in list(side.serving):
                side.mark(replica)
        return
    for pairing in Pairing:
        if _give_way(draft, pairing) or _in_flight(draft):
            return
    if over_cap(draft):
        _yield_to_cap(draft)
        return
    for side in draft.older:
        if _is_frozen(side) and (_starved(draft) or _crowded(draft, side.place)):
            side.undo = _undone(side)


def _undone(side: Side) -> str:
    """The template that an older Deployment goes back to where it was stopped in the middle of a change that fails.

    No size takes just the pods that fail: Kubernetes chooses among both templates. Back on the one that serves, the
    Deployment removes by itself what is not ready, and then consists of one template again. Empty: nothing is gained.
    """
    by_template = Counter(each.template for each in side.serving)
    if not side.member.mixed or not side.idle or not by_template:
        return ""
    found = max(sorted(by_template), key=lambda each: by_template[each])
    failing = (each for each in side.member.replicas if not each.ready)
    return found if any(each.template != found for each in failing) else ""


def over_cap(draft: Sketch) -> bool:
    """True when `maxGpus` leaves no room for even one replica of the desired revision that is missing."""
    missing = (side.member.accelerators for side in draft.current.values() if draft.missing(side.place))
    smallest = min(missing, default=0)
    held = sum(side.held * side.member.accelerators for side in draft.sides)
    return draft.desired.max_gpus is not None and bool(smallest) and draft.desired.max_gpus - held < smallest


def _yield_to_cap(draft: Sketch) -> None:
    """One older replica goes although it is needed: the cap was lowered, or a replica has become larger."""
    ready = [side for side in draft.older if side.serving and side.member.accelerators and _is_frozen(side)]
    if ready:
        _let_one_go(max(ready, key=lambda each: each.counting))


def _give_way(draft: Sketch, pairing: Pairing) -> bool:
    """Takes what is wanted and can be spared; False: nothing."""
    moved = False
    while any(_one_gives_way(draft, side, pairing) for side in _by_slack(draft, pairing)):
        moved = True
    return moved


def _by_slack(draft: Sketch, pairing: Pairing) -> list[Side]:
    """Older Deployments of places in which something is wanted, those of the place with most to spare first."""
    found = draft.capacity(pairing)
    slack = {where: found[where] - draft.need[where] for where in PLACES}
    starved = _starved(draft)
    wanted = [side for side in draft.older if _is_frozen(side) and (starved or _crowded(draft, side.place))]
    return sorted(wanted, key=lambda side: -slack[side.place])


def _one_gives_way(draft: Sketch, side: Side, pairing: Pairing) -> bool:
    current = draft.at(side.place)
    is_sure = not side.member.mixed or draft.bears_loss(side, Pairing.ROUTED)
    if side.waiting and is_sure and _can_spare_waiting(draft, side):
        side.waiting.pop()
        side.ask_less()
        return True
    # While pods are replaced within the desired revision, what may be missing is theirs.
    is_taken = current is not None and draft.changing(current)
    if is_taken or not side.serving or not draft.bears_loss(side, pairing):
        return False
    _let_one_go(side)
    return True


def _let_one_go(side: Side) -> None:
    """A serving replica leaves: the least loaded is marked, or, among mixed templates, whichever the size takes."""
    if side.member.mixed:
        side.ask_less()
        side.serving.pop()
    else:
        side.mark(_least_loaded(side.serving)[0])


def _can_spare_waiting(draft: Sketch, side: Side) -> bool:
    """True when a place has enough without a replica that may serve again: readiness is lost by many at once too."""
    others = [each for each in draft.sides if each.place is side.place]
    hopeful = sum(each.counting + len(each.waiting) for each in others)
    return hopeful - 1 >= min(hopeful, draft.need[side.place])


def _crowded(draft: Sketch, where: Role) -> bool:
    """True when replicas of the desired revision find no room in their place, and none is on its way to be free."""
    current = draft.at(where)
    if current is None:
        return False
    older = draft.older_at(where)
    leaving = sum(len(side.aside) + side.going for side in older)
    homeless = sum(1 for each in current.member.replicas if each.unschedulable)
    ending = sum(side.member.terminating for side in draft.sides)
    return draft.missing(where) > draft.free(where) + leaving or homeless > leaving + ending


def _starved(draft: Sketch) -> bool:
    """True when the accelerators that are free, or soon will be, do not suffice for what has a place."""
    leaving = sum((len(side.aside) + side.going) * side.member.accelerators for side in draft.older)
    growth = 0
    for side in draft.current.values():
        growth += max(0, min(draft.missing(side.place), draft.free(side.place))) * side.member.accelerators
    return growth > 0 and growth > headroom(draft, ending=0) + leaving


def room(draft: Sketch) -> int:
    """Accelerators that may be asked for now."""
    return headroom(draft, ending=sum(side.member.terminating * side.member.accelerators for side in draft.sides))


def headroom(draft: Sketch, *, ending: int) -> int:
    """Accelerators that may be added: of what is desired with its surge, and of `maxGpus`.

    Args:
        draft: the draft.
        ending: accelerators of terminating pods, which the cap counts too.
    """
    held = sum(side.held * side.member.accelerators for side in draft.sides)
    budget = 0
    for role, side in draft.current.items():
        size = draft.wanted(role) + draft.desired.paces[role].max_surge
        # A replica of another size takes the place of one: nothing could move else.
        each = max(other.member.accelerators for other in (side, *draft.older_at(side.place)))
        budget += size * each
    cap = draft.desired.max_gpus
    return budget - held if cap is None else min(budget - held, cap - held - ending)


def _in_flight(draft: Sketch) -> bool:
    """True while something that was begun may still change what can be done."""
    if any(side.aside or side.going or side.member.undoing for side in draft.older):
        return True
    if any(side.member.terminating for side in draft.sides):
        return True
    # What only one of pods and Deployment takes for ready is about to be, or to be no more.
    starting = (
        side.held - len(side.aside) - side.counting - sum(1 for each in side.member.replicas if each.unschedulable)
        for side in draft.current.values()
    )
    return any(count > 0 for count in starting)


def grow(draft: Sketch) -> None:
    """Replicas of the desired revision are added where there is room, the roles in step with each other.

    One that is there and is not asked for needs no room.
    """
    while True:
        left = room(draft)
        able = [
            (side.asked / draft.wanted(role), side)
            for role, side in draft.current.items()
            if draft.missing(side.place) > 0 and (side.asked < side.member.live or _has_room(draft, side, left))
        ]
        if not able:
            return
        min(able, key=lambda pair: pair[0])[1].asked += 1


def _has_room(draft: Sketch, side: Side, left: int) -> bool:
    return draft.free(side.place) > 0 and (not side.member.accelerators or side.member.accelerators <= left)


def _least_loaded(replicas: Iterable[Replica]) -> list[Replica]:
    """Those with the fewest requests first; where nobody knows, the youngest."""
    by_age = sorted(replicas, key=lambda each: (each.born, each.name), reverse=True)
    return sorted(by_age, key=lambda each: each.load.requests or 0)
