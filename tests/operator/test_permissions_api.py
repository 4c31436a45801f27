"""The permissions of the operator beside the calls that it makes, in the audit log of a real API server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.chart import NAMESPACE
from e2e.cluster.kinds import definitions
from pdpool_api import names
from pdpool_operator import install
from pdpool_operator.settings import LEASE_NAME
from tests.operator.harness import Json, condition, eventually, pool
from tests.operator.site import make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("apart")]

UNSEEN = {
    # An apply of an absent object is a patch to the audit log, and needs both.
    *(
        ("create", resource)
        for rule in install.pool_rules()
        if "patch" in rule["verbs"]
        for resource in rule["resources"]
    ),
    # Only for admission that checks blockOwnerDeletion.
    ("update", "inferencepools/finalizers"),
    # Given on to routers, and only who holds a right can give it.
    *((verb, "replicasets") for verb in ("get", "list", "watch")),
    ("get", "pods"),
    # Children that go with their pool, by the garbage collector; deleted only where an older operator left them.
    *(("delete", resource) for resource in ("configmaps", "serviceaccounts", "roles", "rolebindings")),
    # Read by lists and watches only.
    ("get", "inferencepools"),
    # The key of digests, where a pool's Secrets may be read: test_rotation_api.
    ("create", "secrets"),
    ("get", "secrets"),
    # Counts of repeated Events: test_news.
    ("patch", "events"),
}
"""Rights that no call of this story shows, and why they are held."""


def test_the_rules_are_what_the_operator_calls(site_apart: Site) -> None:
    """Every right is used by some call, or is named with its reason; no call is refused (least privilege)."""
    site, api, namespace = site_apart, site_apart.api, site_apart.namespace()
    kinds = definitions(("httproutes", "podmonitors"))
    site.cluster.apply(kinds)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"
    with contextlib.suppress(httpx.HTTPStatusError):  # no operator has run yet
        api.request("DELETE", lease)
    since = site.cluster.audit.now()
    operator = site.start().wait_ready()
    cache = {"persistentVolumeClaim": {"claimName": "models"}}
    asked: Json = {
        "model": {"id": "org/tiny", "cache": cache},
        "router": {"httpRoute": {"parentRefs": [{"name": "gw"}]}},
        "monitoring": {"podMonitor": True},
    }
    try:
        api.apply("inferencepools", namespace, pool("tiny", namespace, **asked))
        settled(api, namespace, "tiny")
        make_all_ready(api, namespace, "tiny")
        one = {"mode": "Aggregated", "prefill": None, "router": {"httpRoute": None}, "monitoring": None}
        api.merge("inferencepools", namespace, "tiny", {"spec": one})

        def aggregated() -> None:
            with contextlib.suppress(httpx.HTTPStatusError):  # a pod that went meanwhile
                api.make_ready(namespace, names.LABEL_POOL)
            found = api.get("inferencepools", namespace, "tiny")
            assert found is not None
            assert found["status"]["mode"] == "Aggregated"
            assert condition(found, "Progressing")["status"] == "False"
            left = {each["metadata"]["labels"][names.LABEL_ROLE] for each in api.children(namespace).values()}
            assert left == {"router", "aggregated"}

        eventually(aggregated)
    finally:
        assert operator.stop() == 0
        site.cluster.kubectl("delete", "crd", *(each["metadata"]["name"] for each in kinds))
    calls = [each for each in site.cluster.audit.entries(since) if each.user == site.user]
    assert not [each for each in calls if each.status_code == 403]
    used = {(each.verb, each.resource) for each in calls}
    rules = [*install.pool_rules(), *install.lease_rules(), *install.key_rules()]
    held = {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert used <= held
    assert held - used - UNSEEN == set()
    assert (UNSEEN - {("create", "events")}) & used == set(), "explained, and used after all"
