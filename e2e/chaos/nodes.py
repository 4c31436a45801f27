"""Nodes that are not there: what kubelets and a scheduler would say of pods, said by a thread.

Boundary: a stand-in for a control plane without a node. Pods are bound to nodes that have room, become ready after a
moment, and go when they are asked to; those of a node that is silent become not ready, and stay when they are asked
to go, as nobody is there to end them. No container runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from e2e.scenarios.api import ApiError
from e2e.scenarios.kubelet import pod_status
from e2e.scenarios.pools import is_ready
from pdpool_api.names import LABEL_POOL

if TYPE_CHECKING:
    from e2e.scenarios.api import ClusterApi

Json = dict[str, Any]
_POLL_S: Final = 0.2
_BEAT_S: Final = 8.0
_LEAVES_AFTER_S: Final = 0.6
_MERGE: Final = "application/merge-patch+json"


class StandInNodes:
    """Nodes while inside; their names end in numbers."""

    def __init__(self, api: ClusterApi, count: int = 3, start_s: tuple[float, float] = (0.3, 2.0)) -> None:
        self._api = api
        self._start_s = start_s
        self.names = [f"stand-in-{number}" for number in range(count)]
        self._silent: set[str] = set()
        self._since: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._beat_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        for name in self.names:
            body = {"metadata": {"name": name}, "status": _node_status("True")}
            self._api.request("POST", "/api/v1/nodes", body=body)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def silence(self, name: str) -> None:
        """Nothing is heard of a node, nor of its pods, from now on."""
        self._silent.add(name)

    def heal(self, name: str = "") -> None:
        """A node (or every one) is back."""
        self._silent -= {name} if name else set(self.names)
        self._beat_at = 0.0

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            # The API server may be away, and objects may go meanwhile: all of it is tried again.
            with contextlib.suppress(ApiError):
                self._beat()
                self._round()

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        for name in self.names:
            ready = "Unknown" if name in self._silent else "True"
            self._patch(f"/api/v1/nodes/{name}/status", {"status": _node_status(ready)})
        self._beat_at = time.monotonic() + _BEAT_S

    def _round(self) -> None:
        query = {"labelSelector": LABEL_POOL, "resourceVersion": "0"}
        pods = self._api.request("GET", "/api/v1/pods", query=query)["items"]
        held = Counter(each["spec"].get("nodeName", "") for each in pods)
        for pod in pods:
            with contextlib.suppress(ApiError):
                self._one(pod, held)

    def _one(self, pod: Json, held: Counter[str]) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        now, uid = time.monotonic(), metadata["uid"]
        if "deletionTimestamp" in metadata:
            if node not in self._silent and now > self._leaving.setdefault(uid, now + _LEAVES_AFTER_S):
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                self._api.request("DELETE", path, body=body)
            return
        if not node:
            free = [name for name in self.names if name not in self._silent]
            if free:
                target = {"kind": "Node", "name": min(free, key=lambda name: (held[name], name))}
                held[target["name"]] += 1
                self._api.request(
                    "POST", f"{path}/binding", body={"metadata": {"name": metadata["name"]}, "target": target}
                )
            return
        # By its name, so that the same story has the same pods slow.
        share = zlib.crc32(metadata["name"].encode()) / 2**32
        low, high = self._start_s
        started = now > self._since.setdefault(uid, now) + low + share * (high - low)
        wanted = started and node not in self._silent
        if wanted != is_ready(pod) and (started or node in self._silent):
            self._patch(f"{path}/status", {"status": pod_status(pod, ready=wanted, at=_stamp())})

    def _patch(self, path: str, body: Json) -> None:
        self._api.request("PATCH", path, body=body, content_type=_MERGE)


def _node_status(ready: str) -> Json:
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": _stamp(), "reason": "StandIn"}
    return {"conditions": [condition], "capacity": {"nvidia.com/gpu": "64"}, "allocatable": {"nvidia.com/gpu": "64"}}


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
