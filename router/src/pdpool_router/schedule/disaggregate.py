"""Two legs or one: which endpoints may serve a request at all. Shared by every policy.

Boundary: pure; which of the candidates is best is the policy's business. Rules: only pairs of one revision; an
endpoint that failed this request, or that is draining, is no candidate; without a prefill the configured fallback
decides.
"""

from __future__ import annotations

import msgspec

from pdpool_router.records import Endpoint, Request, Snapshot, Unplaced, Way


class Candidates(msgspec.Struct, frozen=True):
    """The way a request takes, and the endpoints that may be first on it (never empty)."""

    way: Way
    endpoints: tuple[Endpoint, ...]
    reason: str = ""


def candidates(request: Request, snapshot: Snapshot) -> Candidates | Unplaced:
    """Endpoints that may be first for a request."""
    if snapshot.aggregated:
        whole = usable(snapshot.aggregated, request)
        return Candidates(Way.NONE, whole) if whole else Unplaced.NO_ENDPOINT
    decode = usable(snapshot.decode, request)
    if not decode:
        return Unplaced.NO_ENDPOINT
    if request.whole_reason:
        return Candidates(Way.NONE, decode, request.whole_reason)
    prefill = usable(snapshot.prefill, request)
    if prefill and not snapshot.one_revision:
        revisions = {endpoint.revision for endpoint in decode}
        if len(revisions) > 1 or any(endpoint.revision not in revisions for endpoint in prefill):
            prefill = tuple(endpoint for endpoint in prefill if endpoint.revision in revisions)
    if prefill:
        return Candidates(Way.REMOTE, prefill)
    if not snapshot.local_allowed:
        return Unplaced.NO_PREFILL
    room = tuple(
        endpoint for endpoint in decode if snapshot.local_prefills.get(endpoint.uid, 0) < snapshot.max_local_prefills
    )
    return Candidates(Way.LOCAL, room, "no_prefill") if room else Unplaced.LOCAL_PREFILLS_FULL


def partners(request: Request, snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """Decode endpoints that may follow the prefill endpoint; may be empty."""
    decode = usable(snapshot.decode, request)
    if snapshot.one_revision:
        return decode
    revision = request.revision
    for endpoint in decode:
        if endpoint.revision != revision:
            return tuple(other for other in decode if other.revision == revision)
    return decode


def usable(endpoints: tuple[Endpoint, ...], request: Request) -> tuple[Endpoint, ...]:
    """Those that have not failed this request."""
    failed = request.failed
    if not failed:
        return endpoints
    return tuple(endpoint for endpoint in endpoints if endpoint.uid not in failed)
