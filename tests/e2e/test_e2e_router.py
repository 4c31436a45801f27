"""Routers in pods: replaced under load, and let in by keys from a Secret (stand-in engines in pods)."""

from __future__ import annotations

import base64
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
SEEN_S = 30.0
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


def test_a_missing_secret_of_the_router_is_named_and_awaited(pool: Pool) -> None:
    """The old router goes on until the Secret is there; then a key is needed, and one of the Secret is let in."""

    def ask(key: str = "") -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": standin_pool.MODEL, "prompt": "hello", "max_tokens": 2}
        return httpx.post(f"{pool.service_url()}/v1/completions", json=body, headers=headers, timeout=30).status_code

    _change_router(pool, auth={"apiKeysSecretRef": {"name": KEYS}})
    wait_for(lambda: KEYS in pool.condition("Ready").get("message", ""), READY_S, "the Secret is named", pool.summary)
    assert pool.condition("Ready")["reason"] == "MissingReference"
    assert ask() == 200
    keys = base64.b64encode(b"team-a=sk-e2e\n").decode()
    pool.api.create("secrets", pool.namespace, {"metadata": {"name": KEYS}, "data": {"keys": keys}})
    try:
        wait_for(pool.is_ready, SEEN_S + READY_S, "progress after the Secret appeared", pool.summary)
        wait_for(lambda: ask() == 401, SEEN_S, "no entrance without a key")
        assert ask("sk-e2e") == 200
        assert ask("sk-wrong") == 401
        assert "sk-e2e" not in pool.api.kubectl(["--namespace", pool.namespace, "get", "all,pdp,cm", "-o", "yaml"])
    finally:
        _change_router(pool, auth=None)
        pool.api.delete("secrets", KEYS, pool.namespace)
    pool.wait_ready(READY_S)
    wait_for(lambda: ask() == 200, SEEN_S, "no key needed any more")
