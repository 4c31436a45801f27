"""Fewest requests in flight, chosen without the tables of a sum.

Boundary: pure; the same choice as the sum of the one scorer `Inflight` with the picker `Least`, which explains it. Why
a shortcut: this policy is for pools that want the cheapest choice, and the general sum would be a fifth of all that
the router does for a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_router.records import Decision, Unplaced, Way
from pdpool_router.schedule.decide import SumPolicy
from pdpool_router.schedule.disaggregate import candidates, partners
from pdpool_router.schedule.pickers.least import Least
from pdpool_router.schedule.scorers.inflight import Inflight

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint, Match, Request, Snapshot, TokenKeys
    from pdpool_router.schedule.interface import Chance


_REMOTE: Final = Way.REMOTE


class LeastLoaded(SumPolicy):
    """The endpoint with the fewest requests, ours and others'; ties by chance."""

    def __init__(self) -> None:
        count = (Inflight(),)
        super().__init__(prefill=count, decode=count, whole=count, picker=Least, reads_prefixes=False, skips_hops=False)

    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """See `Policy.plan`."""
        del now_s
        found = candidates(request, snapshot)
        if isinstance(found, Unplaced):
            return found
        return Decision(found.way, _fewest(found.endpoints, snapshot, rng), found.reason, request.prompt_tokens)

    def place(
        self,
        request: Request,
        ids: TokenKeys | None,
        snapshot: Snapshot,
        now_s: float,
        rng: Chance,
        *,
        match: Match | None = None,
    ) -> Decision | None:
        """See `Policy.place`."""
        del ids, now_s, match
        found = partners(request, snapshot)
        return Decision(_REMOTE, _fewest(found, snapshot, rng), "", request.prompt_tokens) if found else None


def _fewest(endpoints: tuple[Endpoint, ...], snapshot: Snapshot, rng: Chance) -> Endpoint:
    if len(endpoints) == 1:
        return endpoints[0]
    requests, loads = snapshot.inflight.get, snapshot.loads
    counts = [
        requests(uid, 0) + (loads[uid].others if uid in loads else 0.0)
        for uid in [endpoint.uid for endpoint in endpoints]
    ]
    least = min(counts)
    if counts.count(least) == 1:
        return endpoints[counts.index(least)]
    tied = [endpoint for endpoint, count in zip(endpoints, counts, strict=True) if count == least]
    return tied[int(rng.random() * len(tied))]
