"""Choosing is minimising predicted time: the sum of a policy's terms, in milliseconds, over all candidates.

Boundary: pure. The hop to prefill is weighed by the same sum: waiting and computing at prefill, pulling and running at
decode, against waiting, computing and running at decode alone, which is allowed only as far as `routing.localPrefill`
says.
"""

from __future__ import annotations

from enum import StrEnum
from operator import add
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pdpool_router.records import Decision, Endpoint, Load, Unplaced, Way
from pdpool_router.schedule.disaggregate import candidates, local_reason, partners
from pdpool_router.schedule.filters.local_room import with_local_room
from pdpool_router.schedule.interface import Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdpool_router.records import Match, Request, Snapshot, TokenKeys
    from pdpool_router.schedule.disaggregate import Candidates
    from pdpool_router.schedule.interface import Chance, Picker, Scorer

_NOTHING: Final[Mapping[str, int]] = {}


class Legs(StrEnum):
    """What an endpoint is chosen for."""

    PREFILL = "prefill"
    DECODE = "decode"
    """After a prefill leg."""
    WHOLE = "whole"
    """Prompt and answer."""


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """One of several candidates."""

    endpoint: Endpoint
    load: Load
    cost_ms: float


class SumPolicy:
    """A policy as sets of scorers: one for each kind of leg."""

    def __init__(
        self,
        *,
        prefill: Sequence[Scorer],
        decode: Sequence[Scorer],
        whole: Sequence[Scorer],
        picker: Callable[[], Picker],
        reads_prefixes: bool,
        skips_hops: bool,
    ) -> None:
        """`whole` scores engines that compute the prompt and answer; each kind of leg has a picker of its own.

        `reads_prefixes`: terms depend on what is cached. `skips_hops`: decode may compute a prompt although prefill
        could.
        """
        self._scorers = {Legs.PREFILL: tuple(prefill), Legs.DECODE: tuple(decode), Legs.WHOLE: tuple(whole)}
        self._pickers = {legs: picker() for legs in Legs}
        self._gathered: dict[Legs, tuple[tuple[Endpoint, ...], Mapping[str, Load], list[Load]]] = {}
        self.reads_prefixes = reads_prefixes
        self._skips_hops = skips_hops

    # --- the two choices ---------------------------------------------------------------------------------------------
    def plan(self, request: Request, snapshot: Snapshot, now_s: float, rng: Chance) -> Decision | Unplaced:
        """See `Policy.plan`."""
        del now_s
        found = candidates(request, snapshot)
        if isinstance(found, Unplaced):
            return found
        match = self._match(request, snapshot)
        asked = _asked(request, snapshot, match)
        legs = Legs.PREFILL if found.way is Way.REMOTE else Legs.WHOLE
        first = self._choose(legs, asked, found.endpoints, snapshot, rng)
        if found.way is Way.REMOTE and self._skips_hops:
            local = self._local(asked, found, first, snapshot, rng)
            if local is not None:
                chosen, reason = local
                return _decision(Way.LOCAL, chosen, asked, match, Legs.WHOLE, reason)
        return _decision(found.way, first, asked, match, legs, found.reason)

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
        del now_s
        found = partners(request, snapshot)
        if not found:
            return None
        if ids is not None and self.reads_prefixes and snapshot.knowledge is not None and request.prompt is not None:
            match = snapshot.knowledge.match_ids(request.prompt, ids)
        elif match is None or snapshot.knowledge is None or match.version != snapshot.knowledge.version:
            match = self._match(request, snapshot)
        asked = _asked(request, snapshot, match)
        chosen = self._choose(Legs.DECODE, asked, found, snapshot, rng)
        return _decision(Way.REMOTE, chosen, asked, match, Legs.DECODE)

    # --- for people --------------------------------------------------------------------------------------------------
    def explain(self, request: Request, snapshot: Snapshot, now_s: float) -> dict[str, Any]:
        """See `Policy.explain`."""
        del now_s
        found = candidates(request, snapshot)
        if isinstance(found, Unplaced):
            return {"unplaced": found.value}
        match = self._match(request, snapshot)
        asked = _asked(request, snapshot, match)
        told: dict[str, Any] = {
            "promptTokens": asked.tokens,
            "exact": bool(match and match.exact),
            "knownText": bool(match and match.known),
        }
        if found.way is not Way.REMOTE:
            return told | {"whole": self._table(Legs.WHOLE, asked, found.endpoints, snapshot)}
        told["prefill"] = self._table(Legs.PREFILL, asked, found.endpoints, snapshot)
        told["decode"] = self._table(Legs.DECODE, asked, found.decode, snapshot)
        if self._skips_hops:
            told["local"] = self._table(Legs.WHOLE, asked, with_local_room(found.decode, snapshot), snapshot)
            for row in told["local"]:
                row["allowed"] = local_reason(asked.tokens, row["cachedTokens"], snapshot.local_prefill)
        return told

    def _table(
        self, legs: Legs, asked: Asked, endpoints: tuple[Endpoint, ...], snapshot: Snapshot
    ) -> list[dict[str, Any]]:
        loads = _loads(endpoints, snapshot)
        work_ms = _work_ms(asked, loads, legs)
        columns = {
            scorer.name: scorer.terms(asked, loads, work_ms) or [0.0] * len(loads) for scorer in self._scorers[legs]
        }
        rows = [
            {
                "endpoint": endpoint.name,
                "cachedTokens": asked.cached.get(endpoint.uid, 0),
                "terms": {name: round(column[at], 3) for name, column in columns.items()},
                "totalMilliseconds": round(sum(column[at] for column in columns.values()), 3),
            }
            for at, endpoint in enumerate(endpoints)
        ]
        return sorted(rows, key=lambda row: (row["totalMilliseconds"], row["endpoint"]))

    # --- inside ------------------------------------------------------------------------------------------------------
    def _match(self, request: Request, snapshot: Snapshot) -> Match | None:
        if not self.reads_prefixes or request.prompt is None or snapshot.knowledge is None:
            return None
        found: Match = snapshot.knowledge.match(request.prompt)
        return found

    def _choose(
        self, legs: Legs, asked: Asked, endpoints: tuple[Endpoint, ...], snapshot: Snapshot, rng: Chance
    ) -> Chosen:
        loads = self.loads_of(legs, endpoints, snapshot)
        costs = _sum(self._scorers[legs], asked, loads, legs)
        if len(endpoints) == 1:
            return Chosen(endpoints[0], loads[0], costs[0])
        best = loads[costs.index(min(costs))]
        at = self._pickers[legs].pick(asked, costs, loads, _own_ms(asked, best, legs), rng)
        return Chosen(endpoints[at], loads[at], costs[at])

    def loads_of(self, legs: Legs, endpoints: tuple[Endpoint, ...], snapshot: Snapshot) -> list[Load]:
        """The candidates' loads; gathered anew when the membership, hence the tuple, is another."""
        kept = self._gathered.get(legs)
        if kept is not None and kept[0] is endpoints and kept[1] is snapshot.loads:
            return kept[2]
        loads = _loads(endpoints, snapshot)
        self._gathered[legs] = (endpoints, snapshot.loads, loads)
        return loads

    def _local(
        self, asked: Asked, found: Candidates, prefill: Chosen, snapshot: Snapshot, rng: Chance
    ) -> tuple[Chosen, str] | None:
        """The decode endpoint that computes the prompt itself sooner than the hop would be over, and why it may."""
        rule = snapshot.local_prefill
        if not rule.max_uncached_tokens or (not asked.cached and asked.tokens > rule.max_uncached_tokens):
            return None
        room = with_local_room(found.decode, snapshot)
        if not room:
            return None
        local = self._choose(Legs.WHOLE, asked, room, snapshot, rng)
        reason = local_reason(asked.tokens, asked.cached.get(local.endpoint.uid, 0), rule)
        if not reason:
            return None
        after = min(_sum(self._scorers[Legs.DECODE], asked, _loads(found.decode, snapshot), Legs.DECODE))
        return (local, reason) if local.cost_ms <= prefill.cost_ms + after else None


def _asked(request: Request, snapshot: Snapshot, match: Match | None) -> Asked:
    prompt = request.prompt
    conversation = request.session or (prompt.conversation if prompt is not None else 0)
    if match is None:
        return Asked(request.prompt_tokens, _NOTHING, snapshot.inflight, conversation)
    opening = 0
    if prompt is not None and prompt.opening_bytes:
        opening = -(-match.tokens * prompt.opening_bytes // prompt.text_bytes)
    return Asked(match.tokens, match.cached, snapshot.inflight, conversation, opening)


def _loads(endpoints: tuple[Endpoint, ...], snapshot: Snapshot) -> list[Load]:
    get = snapshot.loads.get
    return [get(endpoint.uid) or Load(endpoint.uid) for endpoint in endpoints]


def _sum(scorers: Sequence[Scorer], asked: Asked, loads: Sequence[Load], legs: Legs) -> list[float]:
    if not scorers:
        return [0.0] * len(loads)
    work_ms = _work_ms(asked, loads, legs)
    costs = scorers[0].terms(asked, loads, work_ms) or [0.0] * len(loads)
    for scorer in scorers[1:]:
        terms = scorer.terms(asked, loads, work_ms)
        if terms:
            costs = list(map(add, costs, terms))
    return costs


def _work_ms(asked: Asked, loads: Sequence[Load], legs: Legs) -> Sequence[float]:
    """See `Scorer.terms`."""
    if legs is Legs.DECODE:
        return ()
    tokens, cached = asked.tokens, asked.cached
    if not cached:
        return [tokens * load.token_ms for load in loads]
    get = cached.get
    return [(tokens - get(load.uid, 0)) * load.token_ms for load in loads]


def _own_ms(asked: Asked, load: Load, legs: Legs) -> float:
    """What the request's own work takes at an endpoint, and never so much that a request more there would not count."""
    lacking = asked.tokens - asked.cached.get(load.uid, 0)
    if legs is Legs.DECODE:
        return load.step_ms + min(lacking * load.pull_ms, load.step_ms)
    own_ms = load.fixed_ms + lacking * load.token_ms
    return own_ms if legs is Legs.PREFILL else min(own_ms, 4 * load.step_ms)


def _decision(  # noqa: PLR0917 - what a record is made of
    way: Way, chosen: Chosen, asked: Asked, match: Match | None, legs: Legs, reason: str = ""
) -> Decision:
    load = chosen.load
    cached = asked.cached.get(load.uid, 0)
    each_ms = load.pull_ms if legs is Legs.DECODE else load.token_ms
    before_ms = load.fixed_ms if legs is Legs.DECODE else load.wait_ms
    return Decision(
        way,
        chosen.endpoint,
        reason,
        prompt_tokens=asked.tokens,
        cached_tokens=cached,
        predicted_ms=before_ms + (asked.tokens - cached) * each_ms,
        rank=match.ranks.get(load.uid) if match is not None else None,
        match=match,
    )
