"""Revision: only pairs of one revision; KV of one is no KV of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint


def with_partner(endpoints: tuple[Endpoint, ...], partners: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Those that have a partner of their revision."""
    revisions = {endpoint.revision for endpoint in partners}
    if len(revisions) == 1 and all(endpoint.revision in revisions for endpoint in endpoints):
        return endpoints
    return tuple(endpoint for endpoint in endpoints if endpoint.revision in revisions)


def of_revision(endpoints: tuple[Endpoint, ...], revision: str | None) -> tuple[Endpoint, ...]:
    """Those of a revision."""
    for endpoint in endpoints:
        if endpoint.revision != revision:
            return tuple(other for other in endpoints if other.revision == revision)
    return endpoints
