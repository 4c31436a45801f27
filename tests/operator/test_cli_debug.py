"""`pdpool debug` on a cluster that is broken: what can be read is read, the rest is named, and it ends."""

from __future__ import annotations

import asyncio
import io
import tarfile
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from kubernetes.aio import client

from pdpool_api import names
from pdpool_operator.cli.access import Found
from pdpool_operator.cli.bundle import gather
from pdpool_operator.kube import Kube
from tests.operator.loopback import answering

CANARY = "canary-9f3e"
PODS = 120
EVENTS_OF = "Event of the pool"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _pod(number: int, role: str) -> dict[str, Any]:
    container = {"name": "engine", "state": {"running": {"startedAt": "now"}}, "restartCount": 0}
    return {
        "metadata": {
            "name": f"{role}-{number}",
            "namespace": "s",
            "uid": str(number),
            "labels": {names.LABEL_ROLE: role},
        },
        "spec": {"nodeName": "dead" if number % 3 == 0 else "alive"},
        "status": {"containerStatuses": [container], "phase": "Running"},
    }


async def test_a_bundle_of_a_broken_cluster_is_made_in_time() -> None:
    """Nodes that do not answer, kinds that fail, answers that break off: each is named, and hinders no other."""
    pods = [_pod(number, "decode") for number in range(PODS)] + [
        _pod(number, "router") for number in range(PODS, PODS + 3)
    ]
    dead = {each["metadata"]["name"] for each in pods if each["spec"]["nodeName"] == "dead"}
    env = [{"name": "DB_PASSWORD", "value": CANARY}]
    pool = {
        "metadata": {"name": "p", "namespace": "s", "uid": "u", "generation": 1},
        "spec": {"model": {"id": "m"}, "engine": {"env": env}},
        "status": {},
    }
    calls: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        calls.append(f"{request.method} {request.path}")
        if any(f"/pods/{name}/" in request.path or f"/pods/{name}:" in request.path for name in dead):
            await asyncio.sleep(60)
        if "/services" in request.path:
            return web.json_response({"message": "etcd is gone"}, status=500)
        if "/log" in request.path or "/proxy/" in request.path:
            return web.Response(text=f"started with key {CANARY}\n")
        event = {"metadata": {"name": "e"}, "regarding": {"name": "p"}, "note": EVENTS_OF}
        items = [event] if "/events" in request.path else []
        return web.json_response({"items": items, "metadata": {"resourceVersion": "1"}})

    async with answering(answer) as url:
        configuration = client.Configuration()
        configuration.host = url
        async with Kube(configuration, agent="pdpool") as api:
            bundle = await gather(api, Found(pool, (), tuple(pods)), "pdpool-system", NOW, within_s=3)
    problems = "\n".join(bundle.problems)
    assert EVENTS_OF in str(bundle.objects["events.yaml"])
    assert "etcd is gone" in problems
    unread = [each for each in pods if f"logs of {each['metadata']['name']}: not read within 3 s" in problems]
    assert {each["metadata"]["name"] for each in unread} >= dead - {"router-120"}
    read = {name for name in bundle.texts if name.startswith("logs/")}
    assert read
    assert len(read) + len(unread) == len(pods)
    with tarfile.open(fileobj=io.BytesIO(bundle.archive("top", NOW))) as tar:
        texts = [stream.read().decode() for each in tar.getmembers() if (stream := tar.extractfile(each))]
    assert texts
    assert not [each for each in texts if CANARY in each]
    assert not [each for each in calls if not each.startswith("GET ") or "/secrets" in each]


async def test_a_silent_api_server_is_said_in_time() -> None:
    """One that takes connections and never answers ends the reading by a deadline of each request."""

    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with answering(silent) as url:
        configuration = client.Configuration()
        configuration.host = url
        async with Kube(configuration, agent="pdpool", timeout_s=0.5) as api:
            found = Found(
                {"metadata": {"name": "p", "namespace": "s", "uid": "u"}, "spec": {"model": {"id": "m"}}}, (), ()
            )
            bundle = await gather(api, found, "pdpool-system", NOW, within_s=1)
    assert any("not read within 1 s" in each for each in bundle.problems)
    assert bundle.objects["pool.yaml"]
