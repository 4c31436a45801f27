"""Local room: a decode endpoint computes only so many prompts itself at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint, Snapshot


def with_local_room(endpoints: tuple[Endpoint, ...], snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """Those that may compute one prompt more (`limits.maxLocalPrefills`)."""
    computed = snapshot.local_prefills
    if not computed and snapshot.max_local_prefills:
        return endpoints
    most = snapshot.max_local_prefills
    return tuple(endpoint for endpoint in endpoints if computed.get(endpoint.uid, 0) < most)
