"""The policies `LeastLoaded` and `RoundRobin`.

Boundary: pure; they differ only in how they pick among candidates. Load is the router's own requests in flight, so
that a burst spreads at once. Ties are broken by chance, else several routers would send their first requests to the
same endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_router.records import Decision, Endpoint, Request, Snapshot, Unplaced
from pdpool_router.schedule.disaggregate import candidates, partners

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdpool_router.schedule.interface import Chance, Policy


class LeastLoaded:
    """Fewest requests in flight; ties by chance, whatever the order of the endpoints."""

    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """See `Policy.plan`."""
        del now_s
        found = candidates(request, snapshot)
        if isinstance(found, Unplaced):
            return found
        return Decision(found.way, _least_loaded(found.endpoints, snapshot.inflight, rng), found.reason)

    def place(
        self,
        request: Request,
        ids: Sequence[int] | None,
        snapshot: Snapshot,
        now_s: float,
        rng: Chance,
    ) -> Endpoint | None:
        """See `Policy.place`."""
        del ids, now_s
        found = partners(request, snapshot)
        return _least_loaded(found, snapshot.inflight, rng) if found else None


class RoundRobin:
    """Each endpoint in turn, by the count of choices made so far: the one piece of state, kept per policy object."""

    def __init__(self) -> None:
        self._planned = 0
        self._placed = 0

    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """See `Policy.plan`."""
        del now_s, rng
        found = candidates(request, snapshot)
        if isinstance(found, Unplaced):
            return found
        self._planned += 1
        return Decision(found.way, _in_turn(found.endpoints, self._planned), found.reason)

    def place(
        self,
        request: Request,
        ids: Sequence[int] | None,
        snapshot: Snapshot,
        now_s: float,
        rng: Chance,
    ) -> Endpoint | None:
        """See `Policy.place`."""
        del ids, now_s, rng
        found = partners(request, snapshot)
        if not found:
            return None
        self._placed += 1
        return _in_turn(found, self._placed)


POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {"LeastLoaded": LeastLoaded, "RoundRobin": RoundRobin}


def _least_loaded(endpoints: tuple[Endpoint, ...], inflight: Mapping[str, int], rng: Chance) -> Endpoint:
    if len(endpoints) == 1:
        return endpoints[0]
    least = -1
    tied: list[Endpoint] = []
    for endpoint in endpoints:
        load = inflight.get(endpoint.uid, 0)
        if load < least or least < 0:
            least = load
            tied = [endpoint]
        elif load == least:
            tied.append(endpoint)
    return tied[0] if len(tied) == 1 else tied[int(rng.random() * len(tied))]


def _in_turn(endpoints: tuple[Endpoint, ...], turn: int) -> Endpoint:
    return endpoints[turn % len(endpoints)]
