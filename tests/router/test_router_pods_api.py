"""The feed of pods against a real API server: real ReplicaSets and Deployments, statuses by hand."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from e2e.engine.standin import Standin
from pdpool_api.names import (
    ANNOTATION_DRAINING,
    API_VERSION,
    KIND,
    LABEL_POOL,
    LABEL_REVISION,
    LABEL_ROLE,
)
from pdpool_api.router_config import from_mapping
from pdpool_router.flow.wake import REPLACED_S
from tests.operator.harness import Api
from tests.router.conftest import PROMPT, Site, eventually, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from e2e.cluster import Cluster
    from pdpool_router.records import Endpoint

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("last_turns"), pytest.mark.xdist_group("bare")]
Json = dict[str, Any]
READY_S = 10


@pytest.fixture(scope="module")
def plane(bare_control_plane: Cluster) -> Cluster:
    """A control plane with the CRD and without an operator."""
    bare_control_plane.kubectl("apply", "-f", "crds/inferencepools.pdpool.io.yaml")
    bare_control_plane.wait_established("inferencepools.pdpool.io")
    return bare_control_plane


class Serving:
    """One namespace with a pool, a Deployment per role, and pods whose status the test writes."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        pool = api.create(
            "inferencepools",
            namespace,
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": "llama"},
                "spec": {"model": {"id": "org/model"}, "prefill": {}, "decode": {}},
            },
        )
        self.uid: str = pool["metadata"]["uid"]
        self.owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "llama", "uid": self.uid, "controller": True}

    def deployment(self, role: str, port: int, *, owned: bool = True, replicas: int = 1) -> str:
        name = f"llama-{role}-{uuid.uuid4().hex[:5]}"
        labels = {LABEL_POOL: "llama", LABEL_ROLE: role, LABEL_REVISION: "r1", "app": name}
        self.api.create(
            "deployments",
            self.namespace,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "ownerReferences": [self.owner] if owned else []},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            "terminationGracePeriodSeconds": 0,
                            "automountServiceAccountToken": False,
                            "containers": [
                                {"name": "engine", "image": "none", "ports": [{"name": "http", "containerPort": port}]}
                            ],
                        },
                    },
                },
            },
        )
        return name

    async def pods(self, deployment: str, count: int = 1) -> list[str]:
        async with asyncio.timeout(20):
            while True:
                found = [
                    item["metadata"]["name"] for item in self.api.items("pods", self.namespace, f"app={deployment}")
                ]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.1)

    def set_ready(self, pod: str, *, ready: bool = True, address: str = "127.0.0.1") -> None:
        self.api.set_ready(self.namespace, pod, ready=ready, address=address)

    def config(self) -> Json:
        return {
            "model": {"servedNames": ["tiny"]},
            "endpoints": {"pods": {"namespace": self.namespace, "pool": "llama", "uid": self.uid}},
            # Equal prompts would stay with the engine that holds them.
            "routing": {"policy": "LeastLoaded"},
        }


@pytest.fixture
async def serving(plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    api = Api(plane.kubeconfig)
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    yield Serving(api, namespace)
    api.request("DELETE", f"/api/v1/namespaces/{namespace}")
    api.close()


async def test_pods_of_the_pool_serve_and_others_do_not(serving: Serving) -> None:
    """Q53, Q100: ready pods of the pool's own Deployments serve; unready, draining.

    Deleted and foreign ones get nothing.
    """
    async with contextlib.AsyncExitStack() as stack:
        p = await stack.enter_async_context(Standin("prefill"))
        d = await stack.enter_async_context(Standin("decode"))
        late = await stack.enter_async_context(Standin("decode"))
        foreign = await stack.enter_async_context(Standin("decode"))
        names = {
            "p": serving.deployment("prefill", p.port),
            "d": serving.deployment("decode", d.port),
            "late": serving.deployment("decode", late.port),
            "foreign": serving.deployment("decode", foreign.port, owned=False),
        }
        pods = {key: (await serving.pods(name))[0] for key, name in names.items()}
        for key in ("p", "d", "foreign"):
            serving.set_ready(pods[key])
        serving.set_ready(pods["late"], ready=False)
        router = await stack.enter_async_context(running(from_mapping(serving.config())))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20)
        )
        here = Site(router, client, [p], [d, late])
        await eventually(lambda: router.endpoints.listed and len(router.endpoints.all()) == 2, within_s=READY_S)
        assert (await client.get(f"http://127.0.0.1:{router.admin_port}/readyz")).status_code == 200
        for _ in range(4):
            assert (await here.complete()).status_code == 200
        assert (len(d.generations()), len(late.generations()), len(foreign.generations())) == (4, 0, 0)

        serving.set_ready(pods["late"])
        await eventually(lambda: len(router.endpoints.all()) == 3)
        serving.api.merge(
            "pods",
            serving.namespace,
            pods["d"],
            {"metadata": {"annotations": {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}},
        )
        await eventually(lambda: len(router.endpoints.snapshot().decode) == 1)
        assert await here.metric("endpoints", role="decode", state="draining") == 1
        for _ in range(4):
            assert (await here.complete()).status_code == 200
        assert (len(d.generations()), len(late.generations())) == (4, 4)

        await asyncio.to_thread(
            serving.api.request, "DELETE", serving.api.path("pods", serving.namespace, pods["late"])
        )
        await eventually(lambda: not router.endpoints.snapshot().decode, within_s=READY_S)
        refused = await here.complete()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_endpoint")
        assert foreign.generations() == []


async def test_load_goes_on_while_pods_come_and_go(serving: Serving) -> None:
    """A pod that becomes ready takes requests within 5 s, one that is deleted takes none, and no request fails."""
    async with contextlib.AsyncExitStack() as stack:
        p = await stack.enter_async_context(Standin("prefill"))
        engines = [await stack.enter_async_context(Standin("decode")) for _ in range(2)]
        prefill = serving.deployment("prefill", p.port)
        decodes = [serving.deployment("decode", engine.port) for engine in engines]
        serving.set_ready((await serving.pods(prefill))[0])
        first, second = [(await serving.pods(name))[0] for name in decodes]
        serving.set_ready(first)
        router = await stack.enter_async_context(running(from_mapping(serving.config())))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20)
        )
        await eventually(lambda: len(router.endpoints.all()) == 2, within_s=READY_S)
        codes: list[int] = []
        ended = asyncio.Event()

        async def trickle() -> None:
            while not ended.is_set():
                answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "max_tokens": 2})
                codes.append(answer.status_code)
                await asyncio.sleep(0.02)

        load = asyncio.create_task(trickle())
        await asyncio.to_thread(serving.set_ready, second)
        await eventually(lambda: bool(engines[1].generations()))
        await asyncio.to_thread(serving.api.request, "DELETE", serving.api.path("pods", serving.namespace, first))
        await eventually(lambda: len(router.endpoints.snapshot().decode) == 1)
        before = len(engines[0].generations())
        await asyncio.sleep(0.3)
        ended.set()
        await load
        assert len(engines[0].generations()) == before
        assert set(codes) == {200}


async def test_a_request_at_zero_is_held_until_the_pool_has_woken(serving: Serving) -> None:
    """Q38: held and counted while there is no pod and while the first starts; a client that leaves counts no more."""
    async with contextlib.AsyncExitStack() as stack:
        p = await stack.enter_async_context(Standin("prefill"))
        d = await stack.enter_async_context(Standin("decode"))
        router = await stack.enter_async_context(running(from_mapping(serving.config())))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=60)
        )
        here = Site(router, client, [p], [d])
        await eventually(lambda: router.admission.asleep, within_s=READY_S)
        assert (await client.get("/health")).status_code == 200
        held, leaves = (asyncio.create_task(here.complete()) for _ in range(2))
        await eventually(lambda: router.telemetry.queued["tiny"] == 2)
        leaves.cancel()
        await eventually(lambda: router.telemetry.queued["tiny"] == 1)
        assert await here.metric("queued", model="tiny") == 1

        await asyncio.sleep(REPLACED_S)
        pods = [
            (await serving.pods(serving.deployment(role, port)))[0]
            for role, port in (("prefill", p.port), ("decode", d.port))
        ]
        serving.set_ready(pods[1], ready=False)
        await asyncio.sleep(0.3)
        assert not held.done()
        for pod in pods:
            serving.set_ready(pod)
        assert (await held).status_code == 200
        assert await here.metric("queued", model="tiny") == 0


def count(told: list[int], found: list[Endpoint]) -> None:
    told.append(len(found))


async def test_a_router_started_again_finds_every_pod(serving: Serving) -> None:
    """Q68: each start finds all ready pods, whatever odd pod carries the pool's label."""
    name = serving.deployment("decode", 8000, replicas=6)
    pods = await serving.pods(name, 6)
    for pod in pods:
        serving.set_ready(pod, address="10.9.9.9")
    serving.api.create(
        "pods",
        serving.namespace,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "odd", "labels": {LABEL_POOL: "llama"}},
            "spec": {"containers": [{"name": "c", "image": "none"}], "automountServiceAccountToken": False},
        },
    )
    from pdpool_router.feeds.pods import PodFeed  # noqa: PLC0415 - beside the only test that needs it

    for _ in range(3):
        told: list[int] = []
        source = from_mapping(serving.config()).endpoints.pods
        assert source is not None
        task = asyncio.create_task(PodFeed(source, partial(count, told)).run())
        await eventually(partial(told.__contains__, 6), within_s=READY_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
