"""Events of a pool: written once, counted when they repeat, and never many.

Boundary: what to tell is decided by `news`; this writes it as `events.k8s.io/v1`. Losing an Event is no fault of a
reconcile: none is raised, and none delays the pool for long.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api import names
from pdpool_operator.kube import ApiError, ForbiddenError, Kube, NotFoundError
from pdpool_operator.records import EVENTS, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_operator.news import News

WINDOW_S: Final = 600.0
"""The same words within it are one Event that counts."""
COUNT_EVERY_S: Final = 60.0
"""A count is written at most this often; what happens in between is added at the next writing."""
BURST: Final = 20
REFILL_S: Final = 60.0
"""So many writes at once, and one more every so often: a pool that flaps does not fill the store."""
_TIMEOUT_S: Final = 5.0
_MAX_NOTE_BYTES: Final = 1024
_MAX_INSTANCE: Final = 128
CONTROLLER: Final = f"{names.GROUP}/operator"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Told:
    name: str
    count: int
    seen_at: float
    written_at: float


class Announcer:
    """Tells the news of one pool."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._told: dict[News, _Told] = {}
        self._tokens = float(BURST)
        self._refilled_at = clock()

    async def tell(self, pool: Json, news: Iterable[News]) -> None:
        """Writes an Event for each, or counts one that was written before."""
        for each in news:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._tell(pool, each)
            except ForbiddenError as fault:
                _log.warning("events are refused", fault=str(fault))
            except (ApiError, TimeoutError) as fault:
                _log.debug("event not written", fault=str(fault) or type(fault).__name__)

    async def _tell(self, pool: Json, each: News) -> None:
        now = self._clock()
        self._told = {known: told for known, told in self._told.items() if now - told.seen_at < WINDOW_S}
        told = self._told.get(each)
        if told is not None:
            told.count, told.seen_at = told.count + 1, now
            if now - told.written_at < COUNT_EVERY_S:
                return
        if not self._may_write(now):
            return
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if told is not None and await self._counted(pool, told, stamp):
            told.written_at = now
            return
        body = event(pool, each, stamp)
        await self._kube.create(EVENTS, pool["metadata"]["namespace"], body)
        self._told[each] = _Told(body["metadata"]["name"], 1, now, now)

    async def _counted(self, pool: Json, told: _Told, stamp: str) -> bool:
        """Raises the count of an Event; False when it is gone (they live for an hour)."""
        series = {"series": {"count": told.count, "lastObservedTime": stamp}}
        try:
            await self._kube.merge(EVENTS, pool["metadata"]["namespace"], told.name, series)
        except NotFoundError:
            return False
        return True

    def _may_write(self, now: float) -> bool:
        self._tokens = min(self._tokens + (now - self._refilled_at) / REFILL_S, float(BURST))
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def event(pool: Json, each: News, stamp: str) -> Json:
    """The object of one piece of news; `stamp` is RFC 3339 with microseconds."""
    metadata = pool["metadata"]
    identity = hashlib.sha256(f"{metadata['uid']} {each} {stamp}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{metadata['name']}.{identity}", "namespace": metadata["namespace"]},
        "eventTime": stamp,
        "reportingController": CONTROLLER,
        "reportingInstance": os.environ.get("HOSTNAME", "pdpool-operator")[:_MAX_INSTANCE],
        "type": each.kind,
        "reason": each.reason,
        "action": each.action,
        "note": _cut(each.note),
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
    }


def _cut(note: str) -> str:
    """The limit counts bytes."""
    encoded = note.encode()
    return note if len(encoded) < _MAX_NOTE_BYTES else encoded[: _MAX_NOTE_BYTES - 4].decode(errors="ignore") + "…"
