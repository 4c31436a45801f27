"""How a Deployment replaces its own pods when their template changes within the revision.

Boundary: pure. Alone, a Deployment follows `spec.<role>.rollout` by itself. Beside an older revision the two changes
would spend the same `maxUnavailable` twice: then so many of its pods have to stay as the older ones leave to be
needed, and it may use the room that its place has; where it may do neither, it is stopped until it may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdpool_api.names import Role
from pdpool_operator.rollout.capacity import Pairing
from pdpool_operator.rollout.steps import room

if TYPE_CHECKING:
    from pdpool_operator.rollout.sketch import Sketch


class Strategy(NamedTuple):
    """`rollingUpdate` of a Deployment."""

    max_surge: int
    max_unavailable: int


def strategies(draft: Sketch) -> dict[Role, Strategy | None]:
    """For every Deployment of the desired revision; None: it is stopped."""
    surges = _surges(draft)
    is_shared = any(side.held for side in draft.older)
    left, found = room(draft), dict[Role, Strategy | None]()
    for role, side in draft.current.items():
        if draft.changing(side) and side.member.live and (is_shared or _is_off_size(draft, role)):
            found[role] = way = _within(draft, role, left)
            left -= way.max_surge * side.member.accelerators if way is not None else 0
        else:
            found[role] = _alone(surges[role], draft.desired.paces[role].max_unavailable)
    return found


def _alone(surge: int, unavailable: int) -> Strategy:
    # The API server refuses 0 and 0: where a cap leaves no surge, one replica at a time goes first.
    return Strategy(surge, unavailable if surge or unavailable else 1)


def _is_off_size(draft: Sketch, role: Role) -> bool:
    """True while a Deployment is asked for another size than the desired one, or has pods that leave."""
    side = draft.current[role]
    return side.asked != draft.wanted(role) or side.member.asked > side.asked or bool(side.out)


def _within(draft: Sketch, role: Role, left: int) -> Strategy | None:
    side = draft.current[role]
    others = draft.capacity(Pairing.ROUTED, of=draft.older)[side.place]
    # Kubernetes counts as available what is ready, or will be, also where routers do not choose it any more.
    must_stay = min(side.asked, max(0, draft.need[side.place] - others) + side.out)
    free = max(0, draft.free(side.place))
    if side.member.accelerators:
        free = min(free, max(0, left) // side.member.accelerators)
    surge = free + side.held - side.asked
    way = Strategy(surge, side.asked - must_stay)
    return way if any(way) else None


def _surges(draft: Sketch) -> dict[Role, int]:
    """`maxSurge` of each role, within what `maxGpus` leaves; the first role is served first."""
    cap, paces = draft.desired.max_gpus, draft.desired.paces
    if cap is None:
        return {role: pace.max_surge for role, pace in paces.items()}
    left = max(0, cap - sum(draft.wanted(role) * pace.accelerators for role, pace in paces.items()))
    found = {}
    for role, pace in paces.items():
        found[role] = min(pace.max_surge, left // pace.accelerators) if pace.accelerators else pace.max_surge
        left -= found[role] * pace.accelerators
    return found
