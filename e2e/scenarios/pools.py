"""Pools on a cluster: what a pool and its pods are doing, and waiting for it with words that say what is waited for.

Boundary: observation through the public contract only (labels, status, Services), never through what the operator
knows inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pdpool_api.names import (
    ENGINE_HTTP_PORT,
    LABEL_POOL,
    LABEL_ROLE,
    ROUTER_ADMIN_PORT,
    ROUTER_API_PORT,
    Role,
    child_name,
)

if TYPE_CHECKING:
    from e2e.scenarios.api import ClusterApi, JsonObject

POLL_S = 0.25
HTTP_PORT = 80
SAY_NEWS_S, SAY_SAME_S = 5.0, 30.0
Say = Callable[[str], None]


class LateError(Exception):
    """What was waited for did not come; the message says what was seen instead."""


@dataclass(frozen=True)
class PodView:
    """One pod, reduced to what scenarios ask about."""

    name: str
    role: str
    ip: str
    ready: bool
    leaving: bool
    state: str
    started_at: datetime | None
    """When its (last) container started, by the node's clock in whole seconds."""

    @property
    def url(self) -> str:
        """Base URL of its API: the engine's, or the router's."""
        port = ROUTER_API_PORT if self.role == Role.ROUTER else ENGINE_HTTP_PORT
        return f"http://{self.ip}:{port}"

    @property
    def admin_url(self) -> str:
        """Base URL of a router pod's admin port."""
        return f"http://{self.ip}:{ROUTER_ADMIN_PORT}"


@dataclass(frozen=True)
class Pool:
    """A pool by its name on one cluster."""

    api: ClusterApi
    name: str
    namespace: str = "default"

    def read(self) -> JsonObject | None:
        """The object, or None."""
        return self.api.get("inferencepools", self.name, self.namespace)

    def condition(self, kind: str) -> JsonObject:
        """A condition of its status; empty while it is absent."""
        return condition(self.read() or {}, kind)

    @property
    def labels(self) -> str:
        """The selector of everything that belongs to the pool."""
        return f"{LABEL_POOL}={self.name}"

    def pods(self, role: str | None = None) -> list[PodView]:
        """Its pods, of one role or of all, in order of their names."""
        wanted = self.labels if role is None else f"{self.labels},{LABEL_ROLE}={role}"
        return sorted((view(pod) for pod in self.api.items("pods", self.namespace, wanted)), key=lambda pod: pod.name)

    def ready_pods(self, role: str) -> list[PodView]:
        """Pods of a role that are ready and stay."""
        return [pod for pod in self.pods(role) if pod.ready and not pod.leaving]

    def ready_replicas(self) -> dict[str, int]:
        """Ready replicas of prefill and decode, as its status says; -1 where it says none."""
        status = (self.read() or {}).get("status", {})
        return {role: status.get(role, {}).get("readyReplicas", -1) for role in ("prefill", "decode")}

    def service_url(self) -> str:
        """The router's Service by its cluster IP, which the node reaches without cluster DNS.

        Raises:
            LateError: the Service does not exist.
        """
        service = self.api.get("services", child_name(self.name, Role.ROUTER), self.namespace)
        if service is None:
            raise LateError(f"Service {child_name(self.name, Role.ROUTER)} does not exist")
        port = service["spec"]["ports"][0]["port"]
        return f"http://{service['spec']['clusterIP']}{'' if port == HTTP_PORT else f':{port}'}"

    def is_ready(self) -> bool:
        """Whether `Ready` is True and speaks of the present generation."""
        pool = self.read()
        if pool is None:
            return False
        ready = condition(pool, "Ready")
        return ready.get("status") == "True" and ready.get("observedGeneration") == pool["metadata"]["generation"]

    def summary(self) -> str:
        """One line: why the pool is not ready, and what its pods do."""
        ready = self.condition("Ready")
        pods = ", ".join(f"{pod.role} {pod.state}" for pod in self.pods()) or "no pods"
        return f"Ready={ready.get('status', '?')} {ready.get('reason', '')}: {ready.get('message', '')} [{pods}]"

    def wait_ready(self, timeout_s: float, say: Say | None = None) -> None:
        """Wait until the pool is ready.

        Raises:
            LateError: it is not; with its condition and pods.
        """
        wait_for(self.is_ready, timeout_s, f"pool {self.name} Ready", self.summary, say)


def condition(item: JsonObject, kind: str) -> JsonObject:
    """A condition of an object's status; empty while it is absent."""
    found: Iterable[JsonObject] = item.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def is_ready(item: JsonObject) -> bool:
    """Whether a pod, a node or a pool says that it is Ready."""
    return bool(condition(item, "Ready").get("status") == "True")


def view(pod: JsonObject) -> PodView:
    """A pod object, reduced."""
    status = pod.get("status", {})
    ready = is_ready(pod)
    leaving = "deletionTimestamp" in pod["metadata"]
    containers = status.get("containerStatuses", [])
    running = containers[0].get("state", {}).get("running") if containers else None
    started_at = datetime.fromisoformat(running["startedAt"]) if running else None
    return PodView(
        name=pod["metadata"]["name"],
        role=pod["metadata"].get("labels", {}).get(LABEL_ROLE, ""),
        ip=status.get("podIP", ""),
        ready=ready,
        leaving=leaving,
        state=_state(pod, ready=ready, leaving=leaving),
        started_at=started_at,
    )


def _state(pod: JsonObject, *, ready: bool, leaving: bool) -> str:
    if leaving:
        return "leaving"
    if ready:
        return "ready"
    for container in pod.get("status", {}).get("containerStatuses", []):
        kind: Literal["waiting", "terminated"]
        for kind in ("waiting", "terminated"):
            if kind in container.get("state", {}):
                return str(container["state"][kind].get("reason", kind))
        if "running" in container.get("state", {}):
            return "starting"
    return str(pod.get("status", {}).get("phase", "Pending"))


def wait_for(
    reached: Callable[[], bool],
    timeout_s: float,
    what: str,
    summary: Callable[[], str] | None = None,
    say: Say | None = None,
) -> float:
    """Wait until `reached()`, telling at intervals what is seen meanwhile.

    Returns:
        The seconds it took.

    Raises:
        LateError: the time is over; with the last summary.
    """
    start_s = said_s = time.monotonic()
    said = ""
    while not reached():
        now_s = time.monotonic()
        if now_s - start_s > timeout_s:
            seen = f"; seen: {summary()}" if summary else ""
            raise LateError(f"{what}: not within {timeout_s:.0f} s{seen}")
        if say is not None and now_s - said_s >= SAY_NEWS_S:
            news = summary() if summary else "waiting"
            if news != said or now_s - said_s >= SAY_SAME_S:
                said, said_s = news, now_s
                say(f"{what}: {news}")
        time.sleep(POLL_S)
    return time.monotonic() - start_s
