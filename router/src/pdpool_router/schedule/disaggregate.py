"""Two legs or one: which endpoints may serve a request at all, and when the hop to prefill may be skipped.

Boundary: pure; which of the candidates is best is the sum's business (`decide`). Rules: only pairs of one revision; an
endpoint that failed this request, or that is draining, is no candidate; without a prefill the configured fallback
decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pdpool_router.records import Endpoint, Request, Snapshot, Unplaced, Way
from pdpool_router.schedule.filters.failed import not_failed
from pdpool_router.schedule.filters.local_room import with_local_room
from pdpool_router.schedule.filters.revision import of_revision, with_partner

if TYPE_CHECKING:
    from pdpool_router.records import LocalPrefill


_REMOTE: Final = Way.REMOTE


class Candidates(msgspec.Struct, frozen=True):
    """The way a request takes, and the endpoints that may be first on it (never empty)."""

    way: Way
    endpoints: tuple[Endpoint, ...]
    reason: str = ""
    decode: tuple[Endpoint, ...] = ()
    """On two legs: those that may compute the prompt themselves instead, and those that may follow."""


def candidates(request: Request, snapshot: Snapshot) -> Candidates | Unplaced:
    """Endpoints that may be first for a request."""
    if snapshot.aggregated:
        whole = not_failed(snapshot.aggregated, request)
        return Candidates(Way.NONE, whole) if whole else Unplaced.NO_ENDPOINT
    failed = request.failed
    decode = not_failed(snapshot.decode, request) if failed else snapshot.decode
    if not decode:
        return Unplaced.NO_ENDPOINT
    if request.whole_reason:
        return Candidates(Way.NONE, decode, request.whole_reason)
    prefill = not_failed(snapshot.prefill, request) if failed else snapshot.prefill
    if prefill and not snapshot.one_revision:
        prefill = with_partner(prefill, decode)
    if prefill:
        return Candidates(_REMOTE, prefill, "", decode)
    if not snapshot.local_allowed:
        return Unplaced.NO_PREFILL
    room = with_local_room(decode, snapshot)
    return Candidates(Way.LOCAL, room, "no_prefill") if room else Unplaced.LOCAL_PREFILLS_FULL


def partners(request: Request, snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """Decode endpoints that may follow the prefill endpoint; may be empty."""
    decode = not_failed(snapshot.decode, request) if request.failed else snapshot.decode
    if snapshot.one_revision and request.revision is None:
        return decode
    return of_revision(decode, request.revision)


def local_reason(tokens: int, cached_tokens: int, rule: LocalPrefill) -> str:
    """Why a decode endpoint may compute a prompt itself although prefill could; empty: it may not."""
    if not rule.max_uncached_tokens or not tokens:
        return ""
    if tokens - cached_tokens <= rule.max_uncached_tokens:
        return "short" if not cached_tokens else "cached"
    return "cached" if cached_tokens >= rule.min_cached_ratio * tokens else ""
