"""Endpoints that the configuration lists.

Boundary: pure; the addresses were checked by the configuration's schema, here they are taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pdpool_router.records import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_api.router_config import StaticEndpoint


def endpoints(listed: Sequence[StaticEndpoint]) -> list[Endpoint]:
    """One endpoint per entry; an entry without a uid is known by its role and address."""
    return [_endpoint(entry) for entry in listed]


def _endpoint(entry: StaticEndpoint) -> Endpoint:
    url = urlsplit(entry.url)
    assert url.hostname is not None
    port = url.port or 80
    name = f"[{url.hostname}]:{port}" if ":" in url.hostname else f"{url.hostname}:{port}"
    return Endpoint(
        uid=entry.uid or f"{entry.role.value}/{name}",
        name=name,
        role=entry.role,
        host=url.hostname,
        port=port,
        revision=entry.revision,
        hardware=entry.hardware,
        kv_events=entry.kv_events,
        kv_replay=entry.kv_replay,
    )
