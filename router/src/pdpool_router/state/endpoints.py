"""The endpoints that exist, and the snapshot that the scheduler reads.

Boundary: membership, draining, and which endpoints are left out because they fail. One writer: the feed (or the
configuration) replaces the whole set; the forwarder reports outcomes. Why a rebuilt tuple per change: choices are far
more frequent than changes, and a choice then costs no copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_router.records import Endpoint, Snapshot
from pdpool_router.state.health import Health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_router.state.inflight import Inflight


class Endpoints:
    """Every endpoint of the pool, by uid."""

    def __init__(self, inflight: Inflight, *, clock: Callable[[], float]) -> None:
        self.inflight: Final = inflight
        self.health: Final = Health(clock=clock)
        self.listed = False
        """A source has told its endpoints once."""
        self.max_local_prefills = 0
        self.local_allowed = True
        self._known: dict[str, Endpoint] = {}
        self._gone: list[Callable[[Endpoint], None]] = []
        self._snapshot: Snapshot | None = None
        self._health_version = -1

    def on_gone(self, callback: Callable[[Endpoint], None]) -> None:
        """Calls back for every endpoint that is dropped, or is no longer where it was."""
        self._gone.append(callback)

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Sets the whole membership."""
        new = {endpoint.uid: endpoint for endpoint in endpoints}
        old, self._known = self._known, new
        self.listed = True
        self._snapshot = None
        for uid, endpoint in old.items():
            if uid not in new or new[uid].authority != endpoint.authority:
                for callback in self._gone:
                    callback(endpoint)
        self.health.keep(new)

    def configure(self, *, max_local_prefills: int, local_allowed: bool) -> None:
        """Sets what the configuration says about the fallback to decode."""
        self.max_local_prefills = max_local_prefills
        self.local_allowed = local_allowed
        self._snapshot = None

    def all(self) -> list[Endpoint]:
        """Every endpoint, the draining ones included."""
        return list(self._known.values())

    def snapshot(self) -> Snapshot:
        """The endpoints that may be chosen, and their load."""
        version = self.health.version()
        if self._snapshot is None or version != self._health_version:
            self._health_version = version
            self._snapshot = self._build()
        return self._snapshot

    def _build(self) -> Snapshot:
        return Snapshot(
            prefill=self._of(Role.PREFILL),
            decode=self._of(Role.DECODE),
            aggregated=self._of(Role.AGGREGATED),
            inflight=self.inflight.requests,
            local_prefills=self.inflight.local_prefills,
            max_local_prefills=self.max_local_prefills,
            local_allowed=self.local_allowed,
            one_revision=len({endpoint.revision for endpoint in self._known.values()}) == 1,
        )

    def _of(self, role: Role) -> tuple[Endpoint, ...]:
        candidates = [endpoint for endpoint in self._known.values() if endpoint.role is role and not endpoint.draining]
        usable = tuple(endpoint for endpoint in candidates if self.health.usable(endpoint.uid))
        if usable or role is Role.PREFILL:  # without prefill the configured fallback decides
            return usable
        # All fail: one that answers, however badly, is better than a refusal, and shows at once when it is well.
        return tuple(endpoint for endpoint in candidates if self.health.answers(endpoint.uid))
