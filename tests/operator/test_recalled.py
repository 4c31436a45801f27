"""Records of a live pool that no watch has told: asked for before anything is made anew."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from pdpool_api import names
from pdpool_operator.apply import Writer
from pdpool_operator.build import recipes
from pdpool_operator.kube import Kube
from pdpool_operator.observe.cluster import Cluster
from pdpool_operator.records import ChildKey, Observed, PoolRef
from tests.operator.loopback import answering

OWNER = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "tiny", "controller": True}
ENGINE = {ChildKey("Deployment", "tiny-decode-x"): {"metadata": {"name": "tiny-decode-x"}}}
RECORD = {ChildKey("ControllerRevision", "tiny-spec-1"): {"metadata": {"name": "tiny-spec-1"}}}


def record(name: str, uid: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "7", "ownerReferences": [{**OWNER, "uid": uid}]}
    return {"metadata": metadata, "revision": 1, "data": {"spec": spec}}


@pytest.mark.parametrize(
    ("children", "asked"),
    [({}, False), (RECORD | ENGINE, False), (ENGINE, True)],
    ids=["a new pool", "a known record", "a record that is not known"],
)
async def test_a_live_pool_without_a_record_asks_for_it(children: dict[ChildKey, Any], *, asked: bool) -> None:
    """Only then, by one list of the pool's own; what another pool owns is left out."""
    spec = {"model": {"id": "m"}}
    calls: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        calls.append(f"{request.method} {request.path_qs}")
        items = [record("tiny-spec-1", "u", spec), record("other-spec-1", "other", {})]
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async with answering(handle) as url:
        configuration = client.Configuration()
        configuration.host = url
        async with Kube(configuration) as api:
            pool = {"metadata": {"name": "tiny", "uid": "u"}, "spec": spec}
            before = Observed(PoolRef("serving", "tiny"), pool, children)
            after = await Writer(api, Cluster()).with_records(before)
    assert bool(calls) is asked
    if asked:
        (call,) = calls
        assert call.startswith("GET /apis/apps/v1/namespaces/serving/controllerrevisions?")
        assert "tiny" in call
        (found,) = recipes.kept(after)
        assert found.spec == spec
    else:
        assert after == before
