"""Reading of what pools refer to before a loopback server: a pool at rest asks nothing, a fault is no absence."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from kubernetes.aio import client

from pdpool_operator.kube import Kube
from pdpool_operator.observe.references import References
from pdpool_operator.records import Observed, PoolRef
from tests.operator.loopback import answering

Json = dict[str, Any]


def observed(raw: Json, *config_maps: str) -> Observed:
    volumes = [{"name": name, "configMap": {"name": name}} for name in config_maps]
    decode = {"template": {"volumes": volumes, "serviceAccountName": "runner"}}
    return Observed(PoolRef("serving", "tiny"), {**raw, "spec": {**raw["spec"], "decode": decode}}, {})


async def test_only_what_is_new_or_missing_is_asked_for(raw_pool: Json) -> None:
    """What was there is asked for again amid an edit alone; a kind that may not be read is not missing (Q15)."""
    there, asked = {"a"}, []

    async def handle(request: web.Request) -> web.StreamResponse:
        kind, name = request.path.split("/")[-2:]
        asked.append(name)
        if kind == "serviceaccounts":
            return web.json_response({"message": "no"}, status=403)
        found = name in there
        return web.json_response({} if found else {"message": "not found"}, status=200 if found else 404)

    async with answering(handle) as url:
        configuration = client.Configuration()
        configuration.host = url
        async with Kube(configuration) as kube:
            reader = References(kube)

            async def missing(*config_maps: str, anew: bool = False) -> tuple[tuple[str, ...], list[str]]:
                asked.clear()
                found = (await reader.seen(observed(raw_pool, *config_maps), anew=anew)).missing
                return found, sorted(asked)

            assert await missing("a", "b") == (("ConfigMap b",), ["a", "b", "runner"])
            assert await missing("a", "b") == (("ConfigMap b",), ["b"])
            there.add("b")
            assert await missing("a", "b") == ((), ["b"])
            assert await missing("a", "b") == ((), [])
            there.remove("a")
            assert await missing("a", "b", anew=True) == (("ConfigMap a",), ["a", "b", "runner"])
