"""The operator when things end, hang or refuse: crashes, two replicas, faults of the API server, few rights."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import httpx
import pytest
from aiohttp import web

from e2e.chart import NAMESPACE, OPERATOR, documents, render
from pdpool_api import names
from tests.operator.fault_proxy import FaultProxy
from tests.operator.harness import Api, Operator, eventually
from tests.operator.site import decode_number, holds, seen, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("operator")]


def test_one_namespace_needs_nothing_but_a_role(site: Site, api: Api, make_namespace: Callable[[], str]) -> None:
    """With --namespace and a Role in it the operator serves that namespace, asks for nothing else, and no other one."""
    site.stop_shared()
    home, other = make_namespace(), make_namespace()
    rendered = documents(render(values={"namespaced": True, "crds.install": False}, namespace=home))
    site.cluster.apply([each for each in rendered if each["kind"] != "Deployment"])
    kubeconfig = site.cluster.kubeconfig_for_service_account(home, OPERATOR)
    since = site.cluster.audit.now()
    operator = Operator(kubeconfig, site.logs / f"{home}.log", "--namespace", home).wait_ready()
    try:
        api.apply("inferencepools", home, small("tiny", home))
        api.apply("inferencepools", other, small("tiny", other))
        seen(api, home, "tiny")
        api.delete("services", home, "tiny-router")
        eventually(lambda: holds(api.get("services", home, "tiny-router")), timeout_s=10)
        assert api.children(other) == {}
    finally:
        assert operator.stop() == 0
    user = f"system:serviceaccount:{home}:{OPERATOR}"
    refused = [each for each in site.cluster.audit.entries(since) if each.user == user and each.status_code == 403]
    assert not refused


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    with FaultProxy(site.api.server, site.api.context) as found:
        yield found


def test_too_many_requests_at_the_start_delay_and_end_nothing(
    site: Site, api: Api, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The first 40 requests are answered 429 with Retry-After 2: every pool comes through.

    Q05, with fewer pools than its 200 (`PDPOOL_TEST_POOLS`). No call that got one is repeated earlier, and fewer than
    50 requests are in flight at any time.
    """
    site.stop_shared()
    pools = [f"p{number}" for number in range(int(os.environ.get("PDPOOL_TEST_POOLS", "15")))]
    for name in pools:
        api.apply("inferencepools", namespace, small(name, namespace))

    def busy(_request: web.Request) -> web.Response | None:
        if len(proxy.seen) > 40:
            return None
        return web.json_response({"message": "busy", "code": 429}, status=429, headers={"Retry-After": "2"})

    proxy.spoil = busy
    operator = _behind(proxy, site, tmp_path)
    try:
        seen(api, namespace, *pools, timeout_s=180)
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
        eventually(lambda: holds(sum(each.status == 404 for each in proxy.seen) >= 2))
        assert operator.answer("/readyz").status_code == httpx.codes.SERVICE_UNAVAILABLE
        proxy.spoil = None
        operator.wait_ready()
        seen(api, namespace, "p1", timeout_s=30)

        status = {"kind": "Status", "apiVersion": "v1", "code": 500, "message": "etcd", "reason": "InternalError"}
        eventually(lambda: holds(proxy.inject("deployments", {"type": "ERROR", "object": status})))
        eventually(lambda: holds(operator.metric("pdpool_operator_watch_restarts_total") == 1))
        api.apply("inferencepools", namespace, small("p1", namespace, 1))
        seen(api, namespace, "p1", timeout_s=30)
        eventually(lambda: holds(decode_number(api, namespace, "p1") == "1"), timeout_s=20)

        proxy.spoil = lambda _request: web.json_response({"message": "down", "code": 503}, status=503)
        api.delete("services", namespace, "p1-router")
        api.apply("inferencepools", namespace, small("p1", namespace, 2))
        time.sleep(6)
        assert operator.answer("/livez").status_code == httpx.codes.OK
        proxy.spoil = None
        eventually(lambda: holds(decode_number(api, namespace, "p1") == "2"), timeout_s=30)
        eventually(lambda: holds(api.get("services", namespace, "p1-router")), timeout_s=30)
    finally:
        assert operator.stop() == 0


def test_watches_that_are_too_old_or_fall_silent_are_made_up_for(
    site: Site, api: Api, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """A watch that is answered 410, or told so in its stream, is begun anew; what a silent one hides, lists tell.

    The lists come every few seconds instead of every minute.
    """
    site.stop_shared()
    api.apply("inferencepools", namespace, small("p1", namespace))
    operator = _behind(proxy, site, tmp_path, module="tests.operator.quick_lists")
    try:
        operator.wait_ready()
        seen(api, namespace, "p1")
        gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "message": "too old", "reason": "Expired"}
        refused = []

        def too_old(request: web.Request) -> web.Response | None:
            if "watch" not in request.query or "/deployments" not in request.path or len(refused) == 3:
                return None
            refused.append(request.path_qs)
            return web.json_response(gone, status=410)

        proxy.spoil = too_old
        eventually(lambda: holds(proxy.inject("deployments", {"type": "ERROR", "object": gone})))
        eventually(lambda: holds(len(refused) == 3))
        eventually(lambda: holds(proxy.watched("deployments")))
        _drift(api, namespace)
        eventually(lambda: holds(_decode_size(api, namespace) == 0))

        proxy.deaf = True
        api.apply("inferencepools", namespace, small("p1", namespace, 5))
        _drift(api, namespace)
        # Only the lists tell now.
        eventually(lambda: holds(decode_number(api, namespace, "p1") == "5"), timeout_s=120)
        eventually(lambda: holds(_decode_size(api, namespace) == 0), timeout_s=120)
        assert operator.answer("/readyz").status_code == httpx.codes.OK
        proxy.deaf = False
        api.apply("inferencepools", namespace, small("p1", namespace, 6))
        eventually(lambda: holds(decode_number(api, namespace, "p1") == "6"), timeout_s=120)
    finally:
        proxy.deaf = False
        assert operator.stop() == 0


def _drift(api: Api, namespace: str) -> None:
    """Somebody else sizes the decode role."""
    (found,) = api.items("deployments", namespace, f"{names.LABEL_ROLE}=decode")
    api.merge("deployments", namespace, found["metadata"]["name"], {"spec": {"replicas": 2}})


def _decode_size(api: Api, namespace: str) -> int:
    (found,) = api.items("deployments", namespace, f"{names.LABEL_ROLE}=decode")
    return int(found["spec"]["replicas"])


def _behind(proxy: FaultProxy, site: Site, folder: Path, *, module: str = "pdpool_operator") -> Operator:
    kubeconfig = proxy.kubeconfig(site.kubeconfig, folder / "kubeconfig")
    return Operator(kubeconfig, site.logs / f"proxied-{proxy.port}.log", namespace=NAMESPACE, module=module)
