"""Deletion without an operator: what is deleted while it is down goes by itself (stand-in engines in pods)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.scenarios import standin_pool
from e2e.scenarios.pools import Pool, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Namespaces, Say

    from e2e.scenarios.api import ClusterApi
    from e2e.scenarios.product import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

READY_S = 60.0
GONE_S = 60.0
CHILDREN = ("configmaps", "deployments", "pods", "replicasets", "rolebindings", "roles", "serviceaccounts", "services")


@pytest.fixture(scope="module")
def orphans(api: ClusterApi, operator: Operator, namespaces: Namespaces, say: Say) -> Iterator[tuple[Pool, Pool]]:
    """Two pools, each in a namespace of its own, ready, and then the operator is down."""
    pools = Pool(api, "first", namespaces.make("first")), Pool(api, "second", namespaces.make("second"))
    for pool in pools:
        api.create("inferencepools", pool.namespace, standin_pool.manifest(pool.name, pool.namespace))
    for pool in pools:
        pool.wait_ready(READY_S, say)
    with operator.stopped():
        say("the operator is down")
        yield pools


def _left(pool: Pool) -> list[str]:
    return [
        f"{resource}/{each['metadata']['name']}"
        for resource in CHILDREN
        for each in pool.api.items(resource, pool.namespace, pool.labels)
    ]


def test_a_pool_is_deleted_with_all_its_children(orphans: tuple[Pool, Pool]) -> None:
    """A pool deleted while the operator is down is gone at once, and every child of it within a minute."""
    pool, _ = orphans
    assert (pool.read() or {})["metadata"].get("finalizers", []) == []
    assert _left(pool)
    pool.api.kubectl(["delete", "pdp", pool.name, "--namespace", pool.namespace, "--timeout=10s"])
    wait_for(lambda: not _left(pool), GONE_S, "every child gone", lambda: ", ".join(_left(pool)))


def test_a_namespace_is_deleted_with_its_pool(orphans: tuple[Pool, Pool]) -> None:
    """Q04: a namespace with a pool in it is gone within a minute while the operator is down."""
    _, pool = orphans
    pool.api.delete("namespaces", pool.namespace)
    wait_for(
        lambda: pool.api.get("namespaces", pool.namespace) is None,
        GONE_S,
        f"namespace {pool.namespace} gone",
        lambda: str((pool.api.get("namespaces", pool.namespace) or {}).get("status")),
    )
