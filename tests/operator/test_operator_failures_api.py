"""The operator when things end, hang or refuse: crashes, two replicas, faults of the API server, few rights."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest
from aiohttp import web

from pdpool_api import names
from pdpool_operator import install
from tests.operator.fault_proxy import FaultProxy
from tests.operator.harness import Api, Json, Operator, eventually, pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.operator.conftest import Site

pytestmark = pytest.mark.api

SMALL: Json = {"hardware": "cpu", "replicas": 0}


def small(name: str, namespace: str, number: int = 0) -> Json:
    """A pool without engine pods; `number` stands in a variable of decode."""
    decode = {**SMALL, "env": [{"name": "N", "value": str(number)}]}
    return pool(name, namespace, prefill=SMALL, decode=decode)


def seen(api: Api, namespace: str, *pools: str, timeout_s: float = 60) -> None:
    """Waits until the pools' statuses speak of their present generations."""

    def look() -> None:
        for name in pools:
            found = api.get("inferencepools", namespace, name)
            assert found is not None
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]

    eventually(look, timeout_s=timeout_s)


def decode_number(api: Api, namespace: str, name: str) -> str:
    selector = f"{names.LABEL_POOL}={name},{names.LABEL_ROLE}=decode"
    (found,) = api.items("deployments", namespace, selector)
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return str({each["name"]: each for each in env}["N"]["value"])


def leads(operator: Operator) -> bool:
    return operator.metric("pdpool_operator_leading") == 1


def test_one_of_two_replicas_acts_and_the_other_takes_over(site: Site, api: Api, namespace: str) -> None:
    """After kill -9 of the acting replica the other acts within 60 s and writes only what differs (Q03, Q07).

    Meanwhile a deleted pool's children go without any operator (Q04), and a clean restart writes no child.
    """
    site.stop_shared()
    first, second = site.start().wait_ready(), None
    third = None
    try:
        eventually(lambda: _assert(leads(first)))
        second = site.start().wait_ready()
        for name in ("p1", "p2", "p3"):
            api.apply("inferencepools", namespace, small(name, namespace))
        seen(api, namespace, "p1", "p2", "p3")
        assert not leads(second)
        assert "applied" not in second.log.read_text()
        first.kill()
        since, ended = site.cluster.audit.now(), time.monotonic()
        api.delete("inferencepools", namespace, "p3")
        api.apply("inferencepools", namespace, small("p2", namespace, 7))
        api.apply("inferencepools", namespace, small("p4", namespace))
        eventually(lambda: _assert(not api.items("deployments", namespace, f"{names.LABEL_POOL}=p3")), timeout_s=25)
        assert site.child_writes(since) == []
        eventually(lambda: _assert(leads(second)), timeout_s=60)
        assert time.monotonic() - ended < 60
        seen(api, namespace, "p1", "p2", "p4")
        writes = site.child_writes(since, {namespace})
        assert [each for each in writes if "p4-" not in each] == [each for each in writes if "/p2-decode" in each]
        assert len([each for each in writes if "/p2-decode" in each]) == 1
        assert decode_number(api, namespace, "p2") == "7"
        assert len(api.children(namespace)) == 3 * 16
        assert second.stop() == 0
        since = site.cluster.audit.now()
        third = site.start().wait_ready()
        # The Lease was given back: no need to wait until it expires.
        eventually(lambda: _assert(leads(third)), timeout_s=10)
        time.sleep(3)
        assert site.child_writes(since, {namespace}) == []
    finally:
        for each in (first, second, third):
            if each is not None and each.running:
                each.stop()


def _assert(value: object) -> None:
    assert value


def test_one_namespace_needs_nothing_but_a_role(site: Site, api: Api, make_namespace: Callable[[], str]) -> None:
    """With --namespace and a Role in it the operator serves that namespace, asks for nothing else, and no other one."""
    site.stop_shared()
    home, other = make_namespace(), make_namespace()
    site.cluster.apply([install.service_account(home), *install.namespaced_permissions(home)])
    kubeconfig = site.cluster.kubeconfig_for_service_account(home, install.NAME)
    since = site.cluster.audit.now()
    operator = Operator(kubeconfig, site.logs / f"{home}.log", "--namespace", home).wait_ready()
    try:
        api.apply("inferencepools", home, small("tiny", home))
        api.apply("inferencepools", other, small("tiny", other))
        seen(api, home, "tiny")
        api.delete("services", home, "tiny-router")
        eventually(lambda: _assert(api.get("services", home, "tiny-router")), timeout_s=10)
        assert api.children(other) == {}
    finally:
        assert operator.stop() == 0
    user = f"system:serviceaccount:{home}:{install.NAME}"
    refused = [each for each in site.cluster.audit.entries(since) if each.user == user and each.status_code == 403]
    assert not refused


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    with FaultProxy(site.api.server, site.api.context) as found:
        yield found


def test_too_many_requests_at_the_start_delay_and_end_nothing(
    site: Site, api: Api, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The first 40 requests are answered 429 with Retry-After 2: every pool comes through (Q05; 12 pools for 200).

    No call that got one is repeated earlier, and fewer than 50 requests are in flight at any time.
    """
    site.stop_shared()
    pools = [f"p{number}" for number in range(12)]
    for name in pools:
        api.apply("inferencepools", namespace, small(name, namespace))

    def busy(_request: web.Request) -> web.Response | None:
        if len(proxy.seen) > 40:
            return None
        return web.json_response({"message": "busy", "code": 429}, status=429, headers={"Retry-After": "2"})

    proxy.spoil = busy
    operator = _behind(proxy, site, tmp_path)
    try:
        seen(api, namespace, *pools, timeout_s=90)
        assert operator.running
    finally:
        assert operator.stop() == 0
    assert sum(each.status == 429 for each in proxy.seen) == 40
    assert proxy.most_at_once <= 50
    for at, each in enumerate(proxy.seen):
        if each.status == 429:
            again = next((later for later in proxy.seen[at + 1 :] if later.call == each.call), None)
            assert again is None or again.at - each.at >= 1.9, each


def test_faults_of_the_api_server_are_outlived(
    site: Site, api: Api, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """A CRD that comes late, an ERROR event that ends kopf, and a while of 503: each time work goes on by itself."""
    site.stop_shared()
    api.apply("inferencepools", namespace, small("p1", namespace))

    def without_kind(request: web.Request) -> web.Response | None:
        if names.GROUP not in request.path:
            return None
        return web.json_response({"message": "not found", "code": 404}, status=404)

    proxy.spoil = without_kind
    operator = _behind(proxy, site, tmp_path)
    try:
        eventually(lambda: _assert(sum(each.status == 404 for each in proxy.seen) >= 2))
        assert operator.answer("/readyz").status_code == httpx.codes.SERVICE_UNAVAILABLE
        proxy.spoil = None
        operator.wait_ready()
        seen(api, namespace, "p1", timeout_s=30)

        status = {"kind": "Status", "apiVersion": "v1", "code": 500, "message": "etcd", "reason": "InternalError"}
        eventually(lambda: _assert(proxy.inject("deployments", {"type": "ERROR", "object": status})))
        eventually(lambda: _assert(operator.metric("pdpool_operator_watch_restarts_total") == 1))
        api.apply("inferencepools", namespace, small("p1", namespace, 1))
        seen(api, namespace, "p1", timeout_s=30)
        eventually(lambda: _assert(decode_number(api, namespace, "p1") == "1"), timeout_s=20)

        proxy.spoil = lambda _request: web.json_response({"message": "down", "code": 503}, status=503)
        api.delete("services", namespace, "p1-router")
        api.apply("inferencepools", namespace, small("p1", namespace, 2))
        time.sleep(6)
        assert operator.answer("/livez").status_code == httpx.codes.OK
        proxy.spoil = None
        eventually(lambda: _assert(decode_number(api, namespace, "p1") == "2"), timeout_s=30)
        eventually(lambda: _assert(api.get("services", namespace, "p1-router")), timeout_s=30)
    finally:
        assert operator.stop() == 0


def _behind(proxy: FaultProxy, site: Site, folder: Path) -> Operator:
    kubeconfig = proxy.kubeconfig(site.kubeconfig, folder / "kubeconfig")
    return Operator(kubeconfig, site.logs / f"proxied-{proxy.port}.log", namespace=install.NAMESPACE)
