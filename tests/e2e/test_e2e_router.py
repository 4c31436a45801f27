"""Routers in pods: replaced under load, and let in by keys from a Secret (stand-in engines in pods)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.scenarios import standin_pool
from e2e.scenarios.pools import wait_for
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import Role, child_name

if TYPE_CHECKING:
    from conftest import Say

    from e2e.scenarios.pools import Pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

READY_S = 60.0
KEYS = "router-keys"


def _change_router(pool: Pool, **router: object) -> None:
    pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"router": router}})


def test_two_routers_are_replaced_under_kept_connections(pool: Pool, say: Say) -> None:
    """Clients that keep their connections, as most do, lose no request while both routers are replaced in turn.

    A router whose pod terminates ends each connection with its next answer, before it stops serving.
    """
    _change_router(pool, replicas=2)
    wait_for(lambda: len(pool.ready_pods(Role.ROUTER)) == 2, READY_S, "two router pods Ready", pool.summary)
    pool.wait_ready(READY_S)
    before = {pod.name for pod in pool.pods(Role.ROUTER)}
    with Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.1) as trickle:
        where = ["--namespace", pool.namespace, f"deployment/{child_name(pool.name, Role.ROUTER)}"]
        pool.api.kubectl(["rollout", "restart", *where])
        pool.api.kubectl(["rollout", "status", *where, f"--timeout={READY_S:.0f}s"])
        wait_for(
            lambda: not before & {pod.name for pod in pool.pods(Role.ROUTER)}, READY_S, "old routers gone", pool.summary
        )
    assert trickle.failures() == []
    say(f"{len(trickle.outcomes)} requests, none failed")
    _change_router(pool, replicas=1)
    pool.wait_ready(READY_S)


def test_a_missing_secret_of_the_router_is_named(pool: Pool) -> None:
    """The kubelet names it, the pool's status says so, and the router from before goes on."""
    _change_router(pool, auth={"apiKeysSecretRef": {"name": KEYS}})
    wait_for(lambda: KEYS in pool.condition("Ready").get("message", ""), READY_S, "the Secret is named", pool.summary)
    assert pool.condition("Ready")["reason"] == "MissingReference"
    body = {"model": standin_pool.MODEL, "prompt": "hello", "max_tokens": 2}
    assert httpx.post(f"{pool.service_url()}/v1/completions", json=body, timeout=30).status_code == 200
    _change_router(pool, auth=None)
    pool.wait_ready(READY_S)
