"""What a set of replicas can serve, and what must always be served.

Boundary: pure arithmetic over counts. Two **places** are filled by the pods of a pool: that of prefill, and that of
decode, in which aggregated replicas stand too, as `spec.decode` describes both. So a change of the mode is a rollout
of the same two places, one of which is empty afterwards, or was before.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdpool_operator.records import Desired

PLACES: Final = (Role.PREFILL, Role.DECODE)
Capacity = dict[Role, int]
"""Replicas by place."""


class Pairing(Enum):
    """What makes a replica count, the strictest first."""

    WHOLE = auto()
    """Its revision has a serving replica in the other role."""
    ROUTED = auto()
    """Requests reach it: as `WHOLE`, and decode without a prefill counts where it serves alone."""
    SINGLE = auto()
    """It is ready, whatever its revision lacks."""


def place(role: Role) -> Role:
    """The place that a role fills."""
    return Role.PREFILL if role is Role.PREFILL else Role.DECODE


def capacity(serving: Iterable[tuple[str, Role, int]], pairing: Pairing, *, alone: bool) -> Capacity:
    """Replicas that count, by place.

    Args:
        serving: revision, role, number of replicas that are ready and get requests.
        pairing: what makes one count.
        alone: decode without a prefill of its revision serves.
    """
    by_revision: dict[str, Counter[Role]] = {}
    for revision, role, count in serving:
        by_revision.setdefault(revision, Counter())[role] += count
    found = dict.fromkeys(PLACES, 0)
    for ready in by_revision.values():
        prefill, decode = ready[Role.PREFILL], ready[Role.DECODE]
        is_single = pairing is Pairing.SINGLE
        if decode or is_single:
            found[Role.PREFILL] += prefill
        if prefill or is_single or (pairing is Pairing.ROUTED and alone):
            found[Role.DECODE] += decode
        found[Role.DECODE] += ready[Role.AGGREGATED]
    return found


def needed(desired: Desired) -> Capacity:
    """Replicas that must serve in each place, come what may: the desired ones less `maxUnavailable`."""
    found = dict.fromkeys(PLACES, 0)
    for role, pace in desired.paces.items():
        found[place(role)] = max(0, desired.replicas[role] - pace.max_unavailable)
    return found


def bearable(before: Mapping[Role, int], after: Mapping[Role, int], need: Mapping[Role, int]) -> bool:
    """True when nothing is lost that is needed: where less is there already, nothing at all may be lost."""
    return all(after[each] >= min(before[each], need[each]) for each in PLACES)
