"""Edits that come fast, leftovers of other frameworks, and a leader that nobody answers any more: real API server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.chart import NAMESPACE
from tests.operator.fault_proxy import FaultProxy
from tests.operator.harness import Api, Operator, eventually
from tests.operator.site import decode_number, holds, leads, seen, small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("apart")]

POOLS = tuple(f"p{number}" for number in range(8))
EDITS = 20
PEERING = "kopfpeerings.kopf.dev"


def _peering(api: Api, namespace: str) -> None:
    """What another framework's election leaves behind: a peer of high priority that is long dead."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": PEERING},
        "spec": {
            "group": "kopf.dev",
            "scope": "Namespaced",
            "names": {"kind": "KopfPeering", "plural": "kopfpeerings", "singular": "kopfpeering"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            ],
        },
    }
    api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    foreign = {"priority": 1000, "lastseen": "2020-01-01T00:00:00+00:00", "lifetime": 10**9}
    body = {
        "apiVersion": "kopf.dev/v1",
        "kind": "KopfPeering",
        "metadata": {"name": "default", "namespace": namespace},
        "status": {"somebody@else": foreign},
    }

    def make() -> None:
        try:
            api.request("POST", f"/apis/kopf.dev/v1/namespaces/{namespace}/kopfpeerings", body)
        except httpx.HTTPStatusError as error:  # the kind is not served yet
            raise AssertionError(str(error)) from error

    eventually(make)


def test_quick_edits_all_arrive_and_a_foreign_peer_stops_nobody(site_apart: Site) -> None:
    """Twenty edits of each pool in a row end in the last one, and probes answer meanwhile (Q06: 8 pools for 100).

    A dead peer of another operator, of a priority above all, freezes nobody (Q03).
    """
    site, api, namespace = site_apart, site_apart.api, site_apart.namespace()
    _peering(api, namespace)
    operator = site.start().wait_ready()
    try:
        for name in POOLS:
            api.apply("inferencepools", namespace, small(name, namespace))
        seen(api, namespace, *POOLS)
        since = site.cluster.audit.now()

        def edit(name: str) -> None:
            for number in range(1, EDITS + 1):
                env = [{"name": "N", "value": str(number)}]
                api.merge("inferencepools", namespace, name, {"spec": {"decode": {"env": env}}})

        with ThreadPoolExecutor(len(POOLS)) as hands:
            working = [hands.submit(edit, name) for name in POOLS]
            while not all(each.done() for each in working):
                assert operator.answer("/livez").status_code == httpx.codes.OK
                time.sleep(0.2)
            for each in working:
                each.result()
        seen(api, namespace, *POOLS)
        for name in POOLS:
            eventually(lambda name=name: holds(decode_number(api, namespace, name) == str(EDITS)))  # type: ignore[misc]
        writes = [each for each in site.child_writes(since, {namespace}) if "deployments" in each]
        assert len(writes) < len(POOLS) * EDITS, "edits in a row are one look"
    finally:
        assert operator.stop() == 0
        site.cluster.kubectl("delete", "crd", PEERING)


def test_a_leader_that_nobody_answers_writes_nothing_after_the_next_one(site_apart: Site, tmp_path: Path) -> None:
    """The leader's network goes silent; the other acts, and no write of the old one comes after its first (Q03)."""
    site, api, namespace = site_apart, site_apart.api, site_apart.namespace()
    second_user = "second-operator"
    with FaultProxy(api.server, api.context) as proxy:
        # To the API server whatever comes through the proxy is the administrator's; the other has a name of its own.
        through = proxy.kubeconfig(site.kubeconfig, tmp_path / "kubeconfig")
        first = Operator(through, site.logs / "silent-first.log", namespace=NAMESPACE)
        second = None
        try:
            first.wait_ready()
            eventually(lambda: holds(leads(first)))
            direct = site.cluster.kubeconfig_for_user(second_user, ["system:masters"])
            second = Operator(direct, site.logs / "silent-second.log", namespace=NAMESPACE).wait_ready()
            api.apply("inferencepools", namespace, small("p", namespace))
            seen(api, namespace, "p")
            since = site.cluster.audit.now()
            api.apply("inferencepools", namespace, small("p", namespace, 1))
            seen(api, namespace, "p")
            proxy.silent = True
            api.apply("inferencepools", namespace, small("p", namespace, 2))
            eventually(lambda: holds(leads(second)), timeout_s=75)
            eventually(lambda: holds(decode_number(api, namespace, "p") == "2"))
            api.apply("inferencepools", namespace, small("p", namespace, 3))
            assert first.metric("pdpool_operator_leading") == 0
            assert first.answer("/livez").status_code == httpx.codes.OK
            proxy.silent = False
            eventually(lambda: holds(decode_number(api, namespace, "p") == "3"))
            first.wait_ready()
            time.sleep(5)
            assert not leads(first)
        finally:
            proxy.silent = False
            for each in (first, second):
                if each is not None:
                    assert each.stop() == 0
    writers = [
        each.user
        for each in site.cluster.audit.entries(since)
        if each.user_agent == "pdpool-operator"
        and each.namespace == namespace
        and each.is_write
        and each.succeeded
        and each.resource != "events"
    ]
    assert writers[0] != second_user, "the first has written before it fell silent"
    assert set(writers[writers.index(second_user) :]) == {second_user}
