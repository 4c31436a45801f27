"""The endpoints that exist, and the snapshot that the scheduler reads.

Boundary: membership, draining, and which endpoints are left out because they fail. One writer: the feed (or the
configuration) replaces the whole set; the forwarder reports outcomes. Why a rebuilt tuple per change: choices are far
more frequent than changes, and a choice then costs no copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_router.kv.knowledge import Prefixes
from pdpool_router.records import Endpoint, LocalPrefill, Snapshot
from pdpool_router.state.blame import NOBODY, Blame
from pdpool_router.state.health import Health
from pdpool_router.state.loads import Loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_router.state.inflight import Inflight

_NOBODY_FULL: Final[frozenset[str]] = frozenset()


MAX_BLOCKS: Final = 2_000_000
"""Until the configuration sets it."""


class Endpoints:
    """Every endpoint of the pool, by uid."""

    def __init__(self, inflight: Inflight, *, clock: Callable[[], float]) -> None:
        self.inflight: Final = inflight
        self.health: Final = Health(clock=clock)
        self.givers: Final = Health(clock=clock)
        """Health of prefill endpoints as givers of KV: one may answer every request, and poison decode by it."""
        self._blame = Blame(clock=clock)
        self.loads: Final = Loads()
        self.prefixes: Final = Prefixes(MAX_BLOCKS)
        self.local_prefill = LocalPrefill(0)
        self.listed = False
        """A source has told its endpoints once."""
        self.max_local_prefills = 0
        self.local_allowed = True
        self._known: dict[str, Endpoint] = {}
        self._gone: list[Callable[[Endpoint], None]] = []
        self._changed: list[Callable[[list[Endpoint]], None]] = []
        self._snapshot: Snapshot | None = None
        self.calm: Snapshot | None = None
        """The present snapshot, as long as every endpoint is well."""
        self._health_version = (-1, -1)
        self._full: frozenset[str] = _NOBODY_FULL

    def on_gone(self, callback: Callable[[Endpoint], None]) -> None:
        """Calls back for every endpoint that is dropped, or is no longer where it was."""
        self._gone.append(callback)

    def on_change(self, callback: Callable[[list[Endpoint]], None]) -> None:
        """Calls back with the whole membership whenever it was set."""
        self._changed.append(callback)

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Sets the whole membership."""
        new = {endpoint.uid: endpoint for endpoint in endpoints}
        old, self._known = self._known, new
        self.listed = True
        self._snapshot = self.calm = None
        for uid, endpoint in old.items():
            if uid not in new or new[uid].authority != endpoint.authority:
                for callback in self._gone:
                    callback(endpoint)
        self.health.keep(new)
        self.givers.keep(new)
        self._blame.keep(new)
        self.loads.keep(new.values())
        for changed in self._changed:
            changed(list(new.values()))

    def configure(
        self,
        *,
        max_local_prefills: int,
        local_allowed: bool,
        local_prefill: LocalPrefill = LocalPrefill(0),  # noqa: B008
    ) -> None:
        """Sets what the configuration says about prompts that decode computes itself."""
        self.max_local_prefills = max_local_prefills
        self.local_allowed = local_allowed
        self.local_prefill = local_prefill
        self._snapshot = self.calm = None

    def all(self) -> list[Endpoint]:
        """Every endpoint, the draining ones included."""
        return list(self._known.values())

    def snapshot(self) -> Snapshot:
        """The endpoints that may be chosen, and their load."""
        if self.calm and not self.health.doubts and not self.givers.doubts:
            return self.calm
        version = (self.health.version(), self.givers.version())
        full = _NOBODY_FULL
        if self.recovering:
            requests = self.inflight.requests
            full = self.health.full(requests) | self.givers.full(requests)
        if self._snapshot is None or version != self._health_version or full != self._full:
            self._health_version = version
            self._full = full
            self._snapshot = self._build()
        self.calm = None if self.health.doubts or self.givers.doubts else self._snapshot
        return self._snapshot

    def usable(self, uid: str) -> bool:
        """Whether an endpoint may be chosen, as far as its health is concerned."""
        return self.health.usable(uid) and self.givers.usable(uid)

    def took(self, giver: Endpoint | None, taker: Endpoint) -> None:
        """Decode answered to the end: with the KV that a prefill endpoint handed over, or with its own (None)."""
        self._blame.succeeded(giver.uid if giver is not None else NOBODY, taker.uid)
        if self.health.doubts:
            self.health.succeeded(taker.uid)
        if giver is not None and self.givers.doubts:
            self.givers.succeeded(giver.uid)

    @property
    def recovering(self) -> bool:
        """Some endpoint is on trial or warm."""
        return self.health.recovering or self.givers.recovering

    def answers(self, giver: Endpoint | None, taker: Endpoint) -> None:
        """Decode has begun to answer: whoever was on trial has passed it."""
        self.health.answered(taker.uid)
        if giver is not None:
            self.givers.answered(giver.uid)

    def refused(self, giver: Endpoint, taker: Endpoint) -> None:
        """Decode failed, before the first byte, on KV that a prefill endpoint handed over."""
        if self._blame.failed(giver.uid, taker.uid) == taker.uid:
            self.health.failed(taker.uid)
        else:
            self.givers.failed(giver.uid)

    def _on_trial(self, uid: str) -> bool:
        return self.health.on_trial(uid) or self.givers.on_trial(uid)

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
            loads=self.loads.loads,
            knowledge=self.prefixes,
            local_prefill=self.local_prefill,
        )

    def _of(self, role: Role) -> tuple[Endpoint, ...]:
        candidates = [endpoint for endpoint in self._known.values() if endpoint.role is role and not endpoint.draining]
        usable = tuple(endpoint for endpoint in candidates if self.usable(endpoint.uid))
        # Who recovers gets what it may have, and more only where nobody else is.
        free = tuple(endpoint for endpoint in usable if endpoint.uid not in self._full) if self._full else usable
        if free:
            return free
        if usable and self._full:
            passed = tuple(endpoint for endpoint in usable if not self._on_trial(endpoint.uid))
            if passed or role is not Role.PREFILL or not self.local_allowed:
                return passed or usable
        if role is Role.PREFILL:  # without prefill the configured fallback decides
            return free
        # All fail: one that answers, however badly, is better than a refusal, and shows at once when it is well.
        return tuple(endpoint for endpoint in candidates if self.health.answers(endpoint.uid))
