"""Pods of one pool that answer: what sizes follow is on pages at addresses of loopback, which the test changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pdpool_api import names
from tests.operator.harness import eventually
from tests.operator.metric_pages import engine_page, serving

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tests.operator.harness import Api, Json
    from tests.operator.metric_pages import Server


def deployment(api: Api, namespace: str, of_role: str) -> Json:
    (found,) = api.items("deployments", namespace, f"{names.LABEL_ROLE}={of_role}")
    return found


def size(api: Api, namespace: str, of_role: str) -> int:
    return int(deployment(api, namespace, of_role)["spec"]["replicas"])


def waiting(count: float) -> bytes:
    """An engine's page with so many requests in its queue."""
    return engine_page({"num_requests_waiting": count, "num_requests_running": 0.0, "kv_cache_usage_perc": 0.0})


class Workload:
    """Each pod that serves gets an address on loopback and a page there."""

    def __init__(self, api: Api, namespace: str, stack: ExitStack) -> None:
        self._api, self._namespace, self._stack = api, namespace, stack
        self.servers: dict[str, Server] = {}
        # 127.0.0.0/8 is one machine's own: tests that run side by side keep apart by their process.
        self._next = 1
        self._net = f"127.{os.getpid() % 200 + 20}"

    def pods(self, of_role: str) -> list[str]:
        found = self._api.items("pods", self._namespace, f"{names.LABEL_ROLE}={of_role}")
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    def wait_pods(self, of_role: str, count: int) -> list[str]:
        return eventually(lambda: self._exactly(of_role, count))

    def _exactly(self, of_role: str, count: int) -> list[str]:
        found = self.pods(of_role)
        assert len(found) == count
        return found

    def serve(self, pod: str, page: bytes, port: int = names.ENGINE_HTTP_PORT) -> Server:
        """Makes a pod ready, with its page."""
        ip = f"{self._net}.{hash(self._namespace) % 250}.{self._next}"
        self._next += 1
        server = self._stack.enter_context(serving(lambda _path: (200, page), ip, port))
        self.servers[pod] = server
        self._api.set_ready(self._namespace, pod, address=ip)
        return server

    def show(self, pod: str, page: bytes) -> None:
        self.servers[pod].answer = lambda _path: (200, page)
