"""Asks the policy where a request goes, first and after failures.

Boundary: the policy chooses, and what is tried again is the journey's rule; here stand the questions that it asks:
which way at first, which decode after a prefill, which pair without the endpoints that failed.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pdpool_router.faults import NoEndpoint, NoPrefill, Saturated, Unavailable
from pdpool_router.records import Decision, Endpoint, Match, Request, Snapshot, TokenKeys, Unplaced, Way

if TYPE_CHECKING:
    import random

    from pdpool_router.schedule.interface import Policy
    from pdpool_router.state.endpoints import Endpoints

_UNPLACED: Final[dict[Unplaced, tuple[type[Unavailable], str]]] = {
    Unplaced.NO_ENDPOINT: (NoEndpoint, "No engine is ready for this request."),
    Unplaced.NO_PREFILL: (NoPrefill, "No prefill engine is ready."),
    Unplaced.LOCAL_PREFILLS_FULL: (
        Saturated,
        "No prefill engine is ready, and decode computes as many prompts as it may.",
    ),
}
Recent = tuple[float, str, Decision | Unplaced | None]
"""When (by the monotonic clock), which question, and what the policy answered; None: no decode endpoint."""
_REMEMBERED: Final = 64


class Choice:
    """The policy on the present snapshot."""

    def __init__(self, policy: Policy, endpoints: Endpoints, rng: random.Random) -> None:
        self.policy = policy
        self._endpoints = endpoints
        self._rng = rng
        self.recent: Final[deque[Recent]] = deque(maxlen=_REMEMBERED)
        """The last answers, the newest last, for a person who asks why."""

    def plan(self, request: Request, snapshot: Snapshot | None = None) -> Decision:
        """The way of a request and the first endpoint on it; `snapshot`: another view than the present one.

        Raises:
            Unavailable: there is none.
        """
        found = self.replan(request, snapshot)
        if isinstance(found, Unplaced):
            raise unavailable(found)
        return found

    def replan(self, request: Request, snapshot: Snapshot | None = None) -> Decision | Unplaced:
        """The same where there need not be any, as after a failure."""
        now_s = monotonic()
        found = self.policy.plan(request, snapshot or self._endpoints.snapshot(), now_s, self._rng)
        self.recent.append((now_s, "way", found))
        return found

    def place(
        self, request: Request, revision: str, ids: TokenKeys | None = None, match: Match | None = None
    ) -> Decision | None:
        """A decode endpoint after a prefill of that revision; None: there is none.

        `ids`: the prompt's token ids, where the prefill told them; else `match`: what was known when it was chosen.
        """
        snapshot = self._endpoints.snapshot()
        # What is now the only revision need not be that of a prefill which was asked before the change.
        if not (snapshot.one_revision and snapshot.decode and snapshot.decode[0].revision == revision):
            request = msgspec.structs.replace(request, revision=revision)
        now_s = monotonic()
        placed = self.policy.place(request, ids, snapshot, now_s, self._rng, match=match)
        self.recent.append((now_s, "decode", placed))
        return placed

    def explain(self, request: Request) -> dict[str, Any]:
        """What would be chosen now, and why."""
        snapshot = self._endpoints.snapshot()
        now_s = monotonic()
        found = self.policy.plan(request, snapshot, now_s, self._rng)
        told = self.policy.explain(request, snapshot, now_s)
        if isinstance(found, Decision):
            told["chosen"] = {"way": found.way.value, "endpoint": found.endpoint.name, "reason": found.reason}
            told["predictedMilliseconds"] = round(found.predicted_ms, 3)
        return told

    def another_pair(
        self, request: Request, prefill: Endpoint | None, decode: Endpoint
    ) -> tuple[Request, Decision] | None:
        """The request again without the pair that failed; where that leaves none, without one of the two.

        `prefill` is None where one engine served it alone.
        """
        losers = (prefill, decode) if prefill is not None else (decode,)
        for failed in (losers, (decode,), losers[:1]):
            again = without(request, *failed)
            found = self.replan(again)
            if isinstance(found, Unplaced):
                continue
            if prefill is None or (found.way is Way.REMOTE and self.place(again, found.endpoint.revision) is not None):
                return again, found
        return None


def without(request: Request, *endpoints: Endpoint) -> Request:
    """The request, with these endpoints counted as failed for it."""
    return msgspec.structs.replace(request, failed=request.failed | {endpoint.uid for endpoint in endpoints})


def unavailable(why: Unplaced) -> Unavailable:
    """What the client is told when nothing was chosen."""
    kind, text = _UNPLACED[why]
    return kind(text)
