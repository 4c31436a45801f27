"""Fewest requests in flight, chosen without the tables of a sum.

Boundary: pure; the same choice as the sum of the one scorer `Inflight` with the picker `Least`, which explains it. Why
a shortcut: this policy is for pools that want the cheapest choice, and the general sum would be a fifth of all that
the router does for a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_router.records import Decision, Unplaced, Way
from pdpool_router.schedule.decide import Legs, SumPolicy
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
        chosen = self._fewest(Legs.PREFILL, found.endpoints, snapshot, rng)
        return Decision(found.way, chosen, found.reason, request.prompt_tokens)

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
        if not found:
            return None
        return Decision(_REMOTE, self._fewest(Legs.DECODE, found, snapshot, rng), "", request.prompt_tokens)

    def _fewest(self, legs: Legs, endpoints: tuple[Endpoint, ...], snapshot: Snapshot, rng: Chance) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]
        requests = snapshot.inflight.get
        counts = [requests(load.uid, 0) + load.others for load in self.loads_of(legs, endpoints, snapshot)]
        least = min(counts)
        ties = counts.count(least)
        at = counts.index(least)
        # Of those that are tied, the one that chance says, counted from the first.
        for _ in range(int(rng.random() * ties) if ties > 1 else 0):
            at = counts.index(least, at + 1)
        return endpoints[at]
