"""Watches that miss as little as can be: every version of pools, Deployments and pods, in memory.

Boundary: reads the API server as its administrator, in a thread for each kind. An API server that is away is asked
again until it is back; where it no longer knows the versions in between, a list tells what is there now.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from urllib3.exceptions import HTTPError

from e2e.chaos.history import Event, Json, State, deployment_state, pod_state, pool_state
from e2e.scenarios.api import ApiError
from pdpool_api.names import API_VERSION, LABEL_POOL, PLURAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from e2e.scenarios.api import ClusterApi

_RETRY_S: Final = 0.3
_SILENT_S: Final = 5.0
"""A watch that tells nothing for so long is begun again, from where it was; the end of the recorder waits for it."""
_GONE: Final = 410
_OK: Final = 200
_ENDS_S: Final = 60.0
_CAUGHT_UP_S: Final = 60.0

KINDS: Final[Mapping[str, tuple[str, str, Callable[[Json], State | None]]]] = {
    "pools": (f"/apis/{API_VERSION}/{PLURAL}", "", pool_state),
    "deployments": ("/apis/apps/v1/deployments", LABEL_POOL, deployment_state),
    "pods": ("/api/v1/pods", LABEL_POOL, pod_state),
}
"""Path, label selector, and what is kept of an object, by kind."""


class LostError(Exception):
    """The recorder does not catch up with what the API server lists."""


class Recorder:
    """Records while inside."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._known: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        """By kind and uid: the version that was seen last."""
        self._threads = [threading.Thread(target=self._record, args=(kind,), daemon=True) for kind in KINDS]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(_ENDS_S)

    def taken(self) -> list[Event]:
        """Every event since the last call, all of them up to what the API server lists now.

        Raises:
            LostError: the watches do not get there.
        """
        until_s = time.monotonic() + _CAUGHT_UP_S
        while not all(self._caught_up(kind) for kind in KINDS):
            if time.monotonic() > until_s:
                raise LostError("the recorder's watches are behind the API server")
            time.sleep(_RETRY_S)
        with self._lock:
            found, self._events = self._events, []
        return found

    def _caught_up(self, kind: str) -> bool:
        listed = {uid: version for uid, version, _ in self._list(kind)[0]}
        with self._lock:
            return listed == self._known[kind]

    def _record(self, kind: str) -> None:
        version = 0
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._listed(kind)
                version = self._watch(kind, version)
            except (ApiError, HTTPError, OSError, ValueError):
                time.sleep(_RETRY_S)

    def _list(self, kind: str) -> tuple[list[tuple[str, int, Json]], int]:
        path, labels, _ = KINDS[kind]
        found = self._api.request("GET", path, query={"labelSelector": labels} if labels else {})
        items = [(each["metadata"]["uid"], _version(each), each) for each in found["items"]]
        return items, int(found["metadata"]["resourceVersion"])

    def _listed(self, kind: str) -> int:
        items, version = self._list(kind)
        for uid, own, raw in items:
            if own > self._known[kind].get(uid, 0):
                self._note(kind, own, uid, raw)
        for uid in set(self._known[kind]) - {uid for uid, _, _ in items}:
            self._note(kind, version, uid, None)
        return version

    def _watch(self, kind: str, since: int) -> int:
        """Follows a watch to its end; the version to go on from, 0: list anew."""
        path, labels, _ = KINDS[kind]
        query = {"watch": "true", "resourceVersion": str(since), "allowWatchBookmarks": "true"}
        stream = self._api.stream(
            path, query={**query, **({"labelSelector": labels} if labels else {})}, silent_s=_SILENT_S
        )
        for line in stream:
            event = json.loads(line)
            raw: Any = event["object"]
            if event["type"] == "ERROR":
                return 0 if raw.get("code") == _GONE else since
            since = _version(raw)
            if event["type"] != "BOOKMARK":
                self._note(kind, since, raw["metadata"]["uid"], None if event["type"] == "DELETED" else raw)
            if self._stop.is_set():
                break
        return since

    def _note(self, kind: str, version: int, uid: str, raw: Json | None) -> None:
        state = KINDS[kind][2](raw) if raw is not None else None
        with self._lock:
            if raw is None:
                self._known[kind].pop(uid, None)
            else:
                self._known[kind][uid] = version
            if raw is None or state is not None:
                self._events.append(Event(version, kind, uid, time.monotonic(), state))


def _version(raw: Json) -> int:
    return int(raw["metadata"]["resourceVersion"])
