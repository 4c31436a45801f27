"""Failed: an endpoint that failed this very request does not get it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint, Request


def not_failed(endpoints: tuple[Endpoint, ...], request: Request) -> tuple[Endpoint, ...]:
    """Those that have not failed this request."""
    failed = request.failed
    return tuple(endpoint for endpoint in endpoints if endpoint.uid not in failed) if failed else endpoints
