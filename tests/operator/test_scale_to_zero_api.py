"""A pool at zero and one request: real operator and real router against a real API server, engines that answer."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from e2e.engine.standin import Standin
from pdpool_api import names
from pdpool_api.router_config import from_mapping
from pdpool_router.assembly import Router
from tests.operator.harness import eventually, pool
from tests.operator.site import holds, settled
from tests.router.conftest import eventually as soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.operator.harness import Api, Json
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("last_turns", "operator"), pytest.mark.xdist_group("operator")]

WAIT_S = 60
ENGINES = ("prefill", "decode")
ASKED: Json = {"model": "tiny", "prompt": "good morning " * 40, "max_tokens": 2}


class Plane:
    """What a kubelet would do, without blocking the router that runs beside it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._net = f"127.{os.getpid() % 200 + 20}.{hash(namespace) % 250}"
        self._count = 0

    async def until(self, look: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(eventually, look, timeout_s=WAIT_S)

    def address(self) -> str:
        self._count += 1
        return f"{self._net}.{self._count}"

    def pod(self, role: str) -> str:
        found = self._api.items("pods", self._namespace, f"{names.LABEL_ROLE}={role}")
        assert len(found) == 1
        return str(found[0]["metadata"]["name"])

    def run(self, pod: str, ip: str) -> None:
        self._api.set_ready(self._namespace, pod, address=ip)

    def sizes(self) -> list[int]:
        found = {
            each["metadata"]["labels"][names.LABEL_ROLE]: int(each["spec"]["replicas"])
            for each in self._api.items("deployments", self._namespace)
        }
        return [found[role] for role in ENGINES]

    def marked(self) -> None:
        pods = self._api.items("pods", self._namespace, f"{names.LABEL_ROLE}=decode")
        assert all(names.ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {}) for pod in pods)


async def test_a_held_request_wakes_the_pool_and_is_answered(
    site: Site, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held, seen by the operator, both roles from 0, answered; one too many is told when to come back (Q38).

    Probes wake nobody. What comes while the pool goes to zero again is held too, until its client leaves.
    """
    monkeypatch.setenv("KUBECONFIG", str(site.cluster.kubeconfig))
    zero = {"hardware": "cpu", "autoscaling": {"minReplicas": 0, "scaleDown": {"stabilizationSeconds": 5}}}
    body = pool("tiny", namespace, prefill=zero, decode=zero, autoscaling={"intervalSeconds": 1})
    stored = await asyncio.to_thread(api.apply, "inferencepools", namespace, body)
    await asyncio.to_thread(settled, api, namespace, "tiny")
    plane = Plane(api, namespace)
    async with AsyncExitStack() as stack:
        source = {"namespace": namespace, "pool": "tiny", "uid": stored["metadata"]["uid"]}
        told = {"model": {"servedNames": ["tiny"]}, "endpoints": {"pods": source}, "limits": {"maxQueued": 1}}
        router = Router(from_mapping(told), rng=random.Random(7))
        at = plane.address()
        await router.start(at, 0, names.ROUTER_ADMIN_PORT)
        stack.push_async_callback(router.close)
        await asyncio.to_thread(plane.run, await plane.until(lambda: plane.pod("router")), at)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{at}:{router.port}", timeout=2 * WAIT_S)
        )

        async def queued(count: int) -> None:
            await soon(lambda: router.telemetry.queued["tiny"] == count, within_s=WAIT_S)

        await soon(lambda: router.admission.asleep, within_s=WAIT_S)
        for path in ("/health", "/v1/models") * 10:
            assert (await client.get(path)).status_code == 200
        assert await asyncio.to_thread(plane.sizes) == [0, 0]

        held = asyncio.create_task(client.post("/v1/completions", json=ASKED))
        await queued(1)
        refused = await client.post("/v1/completions", json=ASKED)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
        await plane.until(lambda: holds(plane.sizes() == [1, 1]))
        for role in ENGINES:
            ip = plane.address()
            await stack.enter_async_context(Standin(role, host=ip, port=names.ENGINE_HTTP_PORT))
            await asyncio.to_thread(plane.run, await plane.until(lambda role=role: plane.pod(role)), ip)
        assert (await held).status_code == 200

        await plane.until(plane.marked)
        late = asyncio.create_task(client.post("/v1/completions", json=ASKED))
        await queued(1)
        late.cancel()
        await queued(0)
        await plane.until(lambda: holds(plane.sizes() == [0, 0]))
