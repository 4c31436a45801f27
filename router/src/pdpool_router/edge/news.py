"""Says in the log which endpoints came, went, or changed their state: once per change, not per request.

Boundary: it compares what was told with what is, at every tick; whoever changes the state knows nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from pdpool_router.edge.page import state_of

if TYPE_CHECKING:
    from pdpool_router.state.endpoints import Endpoints

_log = structlog.get_logger("pdpool_router")


class _Told(NamedTuple):
    endpoint: str
    role: str
    revision: str
    state: str


class EndpointNews:
    """What was last said of each endpoint, by uid."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._told: dict[str, _Told] = {}

    def tell(self) -> None:
        """Logs what is new since the last call; a failing endpoint as a warning."""
        now = {
            one.uid: _Told(one.name, one.role.value, one.revision, state_of(one, self._endpoints))
            for one in self._endpoints.all()
        }
        for uid, told in self._told.items():
            if uid not in now:
                _log.info("endpoint gone", **told._asdict())
        for uid, new in now.items():
            if new != self._told.get(uid):
                (_log.warning if new.state == "failing" else _log.info)("endpoint", **new._asdict())
        self._told = now
