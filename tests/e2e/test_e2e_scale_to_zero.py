"""A pool at zero on the real cluster: real operator, real router, engines that are stand-ins."""

from __future__ import annotations

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from e2e.scenarios import engine_metrics, standin_pool
from e2e.scenarios.pools import Pool, wait_for
from e2e.scenarios.streams import Streams
from pdpool_api.names import LABEL_ROLE, ROUTER_METRICS_PREFIX, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Namespaces, Say

    from e2e.scenarios.api import ClusterApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

READY_S = 60.0
"""For whatever a pool of stand-in engines does within some seconds."""
WINDOW_S = 2
MOST_HELD = 2
ENGINES = (Role.PREFILL, Role.DECODE)
LOADED: dict[str, Any] = {
    "dryRun": True,
    "maxReplicas": 1000,
    "signals": [{"type": "RunningRequests", "target": 1}],
    "scaleUp": {"maxStep": 0, "lookaheadSeconds": 30},
}
"""How decode is asked what it would do under a load that rises."""


def manifest(name: str, namespace: str) -> dict[str, Any]:
    """A pool whose engines may all go; a router holds two requests."""
    made = standin_pool.manifest(name, namespace, settings={"pace": {"step_s": 0.2}, "startup": {"open_after_s": 1.0}})
    spec = made["spec"]
    for role in ENGINES:
        del spec[role]["replicas"]
        zero = {"minReplicas": 0, "maxReplicas": 1, "scaleDown": {"stabilizationSeconds": WINDOW_S}}
        spec[role]["autoscaling"] = zero
    spec["autoscaling"] = {"intervalSeconds": 1}
    del spec["router"]["replicas"]
    spec["router"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 2, "targetInflight": 8}
    spec["router"]["limits"] = {"maxQueued": MOST_HELD}
    return made


class Zero:
    """The pool, as its clients and its status show it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.url = pool.service_url()

    def wanted(self) -> list[int]:
        """Desired replicas of both engine roles."""
        status = (self.pool.read() or {}).get("status", {})
        return [status.get(role, {}).get("desiredReplicas", -1) for role in ENGINES]

    def changes(self) -> list[int]:
        """How often the size of each engine role was changed, as the API server counts it."""
        found = {
            each["metadata"]["labels"][LABEL_ROLE]: each["metadata"]["generation"] - 1
            for each in self.pool.api.items("deployments", self.pool.namespace, self.pool.labels)
        }
        return [found[role] for role in ENGINES]

    def held(self) -> float:
        """Requests that the routers hold."""
        name = f"{ROUTER_METRICS_PREFIX}queued"
        pages = [engine_metrics.parsed(httpx.get(f"{pod.admin_url}/metrics", timeout=10).text) for pod in self.routers]
        return sum(page.total(name) for page in pages)

    @property
    def routers(self) -> list[Any]:
        return self.pool.ready_pods(Role.ROUTER)

    def ask(self, words: str) -> httpx.Response:
        """One request of a client that waits."""
        body = {"model": standin_pool.MODEL, "prompt": words, "max_tokens": 2}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=READY_S * 2)

    def wait(self, reached: Callable[[], bool], what: str) -> float:
        return wait_for(reached, READY_S, what, self.summary)

    def wait_engines(self, count: int) -> float:
        """Until both roles have so many pods, all of them ready."""
        return self.wait(
            lambda: all(len(self.pool.pods(role)) == len(self.pool.ready_pods(role)) == count for role in ENGINES),
            f"{count} of each engine role",
        )

    def summary(self) -> str:
        status = (self.pool.read() or {}).get("status", {})
        said = {role: status.get(role) for role in (*ENGINES, Role.ROUTER)}
        return f"{self.pool.summary()} {said}"


def leaves_while_held(zero: Zero) -> None:
    """A client that asks, is held, wakes the pool, and leaves before anybody could answer."""
    body = json.dumps({"model": standin_pool.MODEL, "prompt": "never mind", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: zero\r\nContent-Length: {len(body)}\r\n\r\n"
    url = urlsplit(zero.url)
    with socket.create_connection((url.hostname, url.port or 80), timeout=READY_S) as client:
        client.sendall(head.encode() + body)
        zero.wait(lambda: zero.held() == 1, "one request held")
        zero.wait(lambda: zero.wanted() == [1, 1], "both roles wanted")


def test_a_pool_sleeps_wakes_and_follows_its_load(api: ClusterApi, namespaces: Namespaces, say: Say) -> None:
    """Held requests wake the pool and are answered; one too many, one that is cancelled, and probes do not count (Q38).

    Awake it looks ahead where its load rises, as a dry run tells, and its routers grow by what is in flight.
    """
    space = namespaces.make("zero")
    api.create("inferencepools", space, manifest("zero", space))
    pool = Pool(api, "zero", space)
    pool.wait_ready(READY_S, say)
    zero = Zero(pool)
    assert pool.condition("Ready")["reason"] == "ScaledToZero"
    assert [zero.wanted(), zero.changes(), zero.held()] == [[0, 0], [0, 0], 0]
    for path in ("/health", "/v1/models"):  # what probes and scrapers ask
        assert all(httpx.get(zero.url + path, timeout=10).status_code == httpx.codes.OK for _ in range(20))

    leaves_while_held(zero)
    took_s = zero.wait(lambda: zero.held() == 0, "the cancelled request forgotten")
    say(f"a client that leaves is forgotten after {took_s:.1f} s")
    took_s = zero.wait(lambda: zero.wanted() == [0, 0], "zero wanted again")
    say(f"back to zero {took_s:.1f} s later")

    # Its pods have not gone yet, and take nothing any more.
    with ThreadPoolExecutor(MOST_HELD) as threads:
        held = [threads.submit(zero.ask, f"good morning {number}") for number in range(MOST_HELD)]
        zero.wait(lambda: zero.held() == MOST_HELD or any(each.done() for each in held), "two requests held")
        refused = zero.ask("one too many")
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True), refused.text
        assert [each.result().status_code for each in held] == [200] * MOST_HELD, held[0].result().text
    assert zero.wanted() == [1, 1]
    say("both held requests were answered, the one too many was told to come back")

    before = zero.changes()
    pool.api.patch("inferencepools", "zero", space, {"spec": {"decode": {"autoscaling": LOADED}}})
    with Streams(zero.url, standin_pool.MODEL) as streams:
        told = re.compile(r"dry run, would be (\d+) instead of 1: (\d+) running / 1 per replica")

        def looks_ahead() -> bool:
            found = told.fullmatch((pool.read() or {})["status"]["decode"].get("message", ""))
            return found is not None and int(found[1]) > int(found[2]) + 1

        took_s = zero.wait(looks_ahead, "growth sized for what is to come")
        say(f"after {took_s:.1f} s of rising load: {(pool.read() or {})['status']['decode']['message']}")
        zero.wait(lambda: len(zero.routers) == 2, "a second router")
        assert zero.changes() == before
        assert streams.failures == []
    back = {"dryRun": None, "maxReplicas": 1, "signals": None, "scaleUp": None}
    pool.api.patch("inferencepools", "zero", space, {"spec": {"decode": {"autoscaling": back}}})
    took_s = zero.wait_engines(0)
    say(f"to zero {took_s:.1f} s after the last stream")
    assert zero.changes() == [change + 1 for change in before], "woken and put to sleep, and nothing between"
    assert zero.held() == 0
    api.delete("inferencepools", "zero", space)
