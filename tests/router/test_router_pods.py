"""The feed of pods against a scripted API server: what is an endpoint, and how lost events are made good."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from pdpool_api.engines import vllm
from pdpool_api.names import (
    ANNOTATION_DRAINING,
    GROUP,
    LABEL_POOL,
    LABEL_REVISION,
    LABEL_ROLE,
    ROUTER_POD_NAME_VARIABLE,
    Role,
)
from pdpool_api.pool import InferencePool
from pdpool_api.router_config import PodSource, from_mapping
from pdpool_router.feeds import pods
from tests.router.conftest import eventually, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pdpool_router.records import Endpoint

POOL_UID = "pool-uid"
Json = dict[str, Any]


def owner(kind: str, name: str, uid: str, api: str = "apps/v1") -> Json:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}


REPLICA_SET = owner("ReplicaSet", "rs", "rs-uid")


def pod(name: str, role: str = "decode", **over: Any) -> Json:
    """A ready pod of the pool, owned through a ReplicaSet."""
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {LABEL_POOL: "llama", LABEL_ROLE: role, LABEL_REVISION: "r1"},
            "ownerReferences": [REPLICA_SET],
            **over.pop("metadata", {}),
        },
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        **over,
    }


class ScriptedApi:
    """An API server with one list of pods and watches that do as the test says."""

    def __init__(self) -> None:
        self.pods: list[Json] = []
        self.objects: dict[str, Json] = {
            "replicasets/rs": {
                "metadata": {"uid": "rs-uid", "ownerReferences": [owner("Deployment", "dep", "dep-uid")]}
            },
            "deployments/dep": {
                "metadata": {
                    "uid": "dep-uid",
                    "ownerReferences": [owner("InferencePool", "llama", POOL_UID, f"{GROUP}/v1alpha1")],
                }
            },
        }
        self.lists = 0
        self.look_ups: list[str] = []
        self.watch_status = 200
        self.watches: list[web.StreamResponse] = []
        self.selectors: set[str] = set()

    async def serve_pods(self, request: web.Request) -> web.StreamResponse:
        self.selectors.add(request.query["labelSelector"])
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": self.pods})
        if self.watch_status != 200:
            return web.json_response({"kind": "Status", "code": self.watch_status}, status=self.watch_status)
        stream = web.StreamResponse()
        await stream.prepare(request)
        self.watches.append(stream)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return stream

    async def serve_owner(self, request: web.Request) -> web.Response:
        key = f"{request.match_info['kind']}/{request.match_info['name']}"
        self.look_ups.append(key)
        found = self.objects.get(key)
        return web.json_response(found or {}, status=200 if found else 404)

    def cut(self) -> None:
        """Ends the connection of the newest watch."""
        request = self.watches[-1]._req  # there is no public way to reset
        assert request is not None
        assert request.transport is not None
        request.transport.abort()

    async def tell(self, kind: str, item: Json) -> None:
        await eventually(lambda: bool(self.watches))
        await self.watches[-1].write(json.dumps({"type": kind, "object": item}).encode() + b"\n")


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    scripted = ScriptedApi()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/serving/pods", scripted.serve_pods)
    app.router.add_get("/apis/apps/v1/namespaces/serving/{kind}/{name}", scripted.serve_owner)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    yield scripted
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[list[list[Endpoint]]]:
    """The memberships that a feed tells, newest last."""
    told: list[list[Endpoint]] = []
    feed = pods.PodFeed(PodSource(namespace="serving", pool="llama", uid=POOL_UID), told.append)
    task = asyncio.create_task(feed.run())
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def names(told: list[list[Endpoint]]) -> set[str]:
    return {endpoint.name for endpoint in told[-1]} if told else set()


async def test_only_ready_owned_pods_are_endpoints(api: ScriptedApi) -> None:
    """Q53, Q100: not ready, ended, without address, of another role or of another owner: no endpoint."""
    api.pods = [
        pod("good"),
        pod(
            "direct",
            "prefill",
            metadata={"ownerReferences": [owner("InferencePool", "llama", POOL_UID, f"{GROUP}/v1alpha1")]},
        ),
        pod("unready", status={"podIP": "10.0.0.2", "conditions": [{"type": "Ready", "status": "False"}]}),
        pod(
            "ended",
            metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"},
            status={"podIP": "10.0.0.3", "phase": "Failed", "conditions": [{"type": "Ready", "status": "True"}]},
        ),
        pod("addressless", status={"conditions": [{"type": "Ready", "status": "True"}]}),
        pod("router", "router"),
        pod("orphan", metadata={"ownerReferences": []}),
        pod("foreign", metadata={"ownerReferences": [owner("ReplicaSet", "other", "other-uid")]}),
        pod("impostor", metadata={"ownerReferences": [owner("ReplicaSet", "rs", "another-uid")]}),
        pod(
            "elsewhere",
            metadata={"ownerReferences": [owner("InferencePool", "llama", "other-pool", f"{GROUP}/v1alpha1")]},
        ),
        pod(
            "namesake",
            metadata={"ownerReferences": [owner("InferencePool", "llama", POOL_UID, "inference.networking.k8s.io/v1")]},
        ),
    ]
    async with following() as told:
        await eventually(lambda: bool(told))
        assert names(told) == {"good", "direct"}
    assert api.selectors == {f"{LABEL_POOL}=llama"}
    (good,) = (endpoint for endpoint in told[-1] if endpoint.name == "good")
    assert (good.uid, good.host, good.port, good.revision, good.draining) == ("uid-good", "10.0.0.1", 8000, "r1", False)


def test_a_pod_tells_where_its_ranks_publish() -> None:
    """On the node's network decode's ports are others, and each rank has its own: those that are declared count."""
    role = {"hardware": "cpu", "parallelism": {"data": 2}, "template": {"hostNetwork": True}}
    spec = {"model": {"id": "/m"}, "prefill": role, "decode": role}
    pool = InferencePool.parse({"metadata": {"name": "p"}, "spec": spec}).spec
    for of, offset in ((Role.PREFILL, 0), (Role.DECODE, 1000)):
        made = {"containers": [{"name": "sidecar"}, {"name": "engine", "ports": vllm.ports(pool, of)}]}
        found = pods.endpoint_of(pod("a", of.value, spec=made))
        assert found is not None
        assert found.port == 8000 + offset
        assert found.event_ports == ((5557 + offset, 5657 + offset), (5558 + offset, 5658 + offset))
    silent = pods.endpoint_of(pod("b"))
    assert silent is not None
    assert silent.event_ports == ()


async def test_odd_pods_do_not_hide_the_others(api: ScriptedApi, capfd: pytest.CaptureFixture[str]) -> None:
    """Q68: pods without labels, with null labels, ports, conditions or metadata are skipped, each with one warning.

    Twelve good ones are found.
    """
    odd: list[Any] = [
        {"metadata": {"name": "a", "uid": "1"}},
        {"metadata": {"name": "b", "uid": "2", "labels": None}},
        {"metadata": {"name": "c", "uid": "3", "labels": {LABEL_POOL: "llama"}}},
        pod("d", spec=None, status=None),
        pod("e", metadata={"ownerReferences": [{"controller": True}]}),
        pod("f", "no-such-role"),
        pod("g", status={"podIP": "10.0.0.9", "conditions": [{}]}),
        {"metadata": None},
        None,
    ]
    api.pods = [*odd, *(pod(f"good-{number}") for number in range(12))]
    async with following() as told:
        await eventually(lambda: bool(told))
        assert names(told) == {f"good-{number}" for number in range(12)}
        for number in range(12, 15):  # the odd ones are looked at again with each event
            await api.tell("ADDED", pod(f"good-{number}"))
        await eventually(lambda: names(told) == {f"good-{number}" for number in range(15)})
    said = [line for line in capfd.readouterr().out.splitlines() if "no endpoint" in line]
    assert len(said) == len({line.partition("pod_uid=")[2].split()[0] for line in said}) >= 1


async def test_events_change_the_membership_at_once(api: ScriptedApi) -> None:
    """A pod that comes, drains, goes or stops being ready is told from the watch, without another list."""
    api.pods = [pod("one")]
    async with following() as told:
        await eventually(lambda: names(told) == {"one"})
        await api.tell("ADDED", pod("two"))
        await eventually(lambda: names(told) == {"one", "two"})
        await api.tell("MODIFIED", pod("one", metadata={"annotations": {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}}))
        await eventually(lambda: any(endpoint.draining for endpoint in told[-1]))
        await api.tell("MODIFIED", pod("two", status={"podIP": "10.0.0.1", "conditions": []}))
        await eventually(lambda: names(told) == {"one"})
        await api.tell("DELETED", pod("one"))
        await eventually(lambda: names(told) == set())
    assert api.lists == 1


async def test_owners_are_looked_up_once(api: ScriptedApi) -> None:
    """The chain of a ReplicaSet is read once, however many pods and events it has."""
    api.pods = [pod(f"p{number}") for number in range(20)]
    async with following() as told:
        await eventually(lambda: len(names(told)) == 20)
        await api.tell("ADDED", pod("late"))
        await eventually(lambda: len(names(told)) == 21)
    assert sorted(api.look_ups) == ["deployments/dep", "replicasets/rs"]


@pytest.mark.parametrize("how", ["gone", "error event", "silent", "cut"])
async def test_a_lost_event_is_made_good_by_the_next_list(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Q51: after 410, an ERROR event, a silent watch or a cut one, everything is listed again."""
    monkeypatch.setattr(pods, "RELIST_S", 1.0 if how == "silent" else 30.0)
    monkeypatch.setattr(pods, "PAUSE_AFTER_SHORT_WATCH_S", 0.05)
    api.pods = [pod("d1"), pod("d2")]
    if how == "gone":
        api.watch_status = 410
    async with following() as told:
        await eventually(lambda: names(told) == {"d1", "d2"})
        if how != "gone":
            await eventually(lambda: bool(api.watches))
        api.pods = [pod("d2"), pod("d3")]  # nobody tells
        if how == "error event":
            await api.tell("ERROR", {"kind": "Status", "code": 410})
        elif how == "cut":
            api.cut()
        await eventually(lambda: names(told) == {"d2", "d3"})


async def test_the_membership_outlives_an_outage(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the API answers nothing, the last known endpoints stay."""
    monkeypatch.setattr(pods, "RELIST_S", 0.5)
    api.pods = [pod("d1")]
    async with following() as told:
        await eventually(lambda: names(told) == {"d1"})
        api.objects.clear()
        api.watch_status = 503
        before = api.lists
        await eventually(lambda: api.lists > before)
        assert names(told) == {"d1"}
        assert len(told) == 1


async def test_an_address_is_ipv6_as_well(api: ScriptedApi) -> None:
    """Q67: an IPv6 pod address has brackets in a URL and none as a host."""
    api.pods = [pod("six", status={"podIP": "fd00::a", "conditions": [{"type": "Ready", "status": "True"}]})]
    async with following() as told:
        await eventually(lambda: bool(told))
    assert told[-1][0].host == "fd00::a"
    assert told[-1][0].authority == "[fd00::a]:8000"


async def test_a_pod_that_terminates_is_known_until_it_is_gone(api: ScriptedApi) -> None:
    """Q53: it gets nothing new, ready or not, and stays in the account while its streams run."""
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    api.pods = [pod("one", metadata=going), pod("two")]
    async with following() as told:
        await eventually(lambda: names(told) == {"one", "two"})
        assert {endpoint.name for endpoint in told[-1] if endpoint.draining} == {"one"}
        await api.tell("MODIFIED", pod("one", metadata=going, status={"podIP": "10.0.0.1", "conditions": []}))
        await api.tell("MODIFIED", pod("two", metadata=going))
        await eventually(lambda: all(endpoint.draining for endpoint in told[-1]))
        assert names(told) == {"one", "two"}
        await api.tell("DELETED", pod("one"))
        await eventually(lambda: names(told) == {"two"})


async def test_a_router_on_the_nodes_network_knows_its_pod(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is called as the node, its pod as the variable says: that one's end is its own."""
    monkeypatch.setenv(ROUTER_POD_NAME_VARIABLE, "mine")
    api.pods = [pod("mine", "router", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), pod("good")]
    source = {"namespace": "serving", "pool": "llama", "uid": POOL_UID}
    settings = from_mapping({"model": {"servedNames": ["tiny"]}, "endpoints": {"pods": source}})
    async with running(settings) as router:
        await eventually(lambda: router.server.shutting_down)
        assert not router.api.shutting_down


async def test_a_router_learns_that_its_own_pod_terminates(api: ScriptedApi) -> None:
    """It is told while it still may serve, so that clients connect elsewhere before it stops."""
    api.pods = [pod("mine", "router"), pod("other", "router")]
    told: list[str] = []
    source = PodSource(namespace="serving", pool="llama", uid=POOL_UID)
    feed = pods.PodFeed(source, lambda _: None, own_name="mine", tell_end=lambda: told.append("ends"))
    following = asyncio.create_task(feed.run())
    try:
        await eventually(lambda: bool(api.watches))
        await api.tell("MODIFIED", pod("other", "router", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
        await api.tell("MODIFIED", pod("mine", "router"))
        assert told == []
        await api.tell("MODIFIED", pod("mine", "router", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
        await eventually(lambda: bool(told))
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
