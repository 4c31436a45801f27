"""How many pools are looked at side by side, and of how many what was built is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pdpool_operator import workers
from pdpool_operator.observe.cluster import Cluster
from pdpool_operator.reconcile import LOOK_AGAIN_S, Result
from pdpool_operator.records import POOLS, Images, PoolRef

if TYPE_CHECKING:
    import pytest

WARM = 32
POOLS_THERE = 3 * max(workers.AT_ONCE, WARM)


async def test_thousands_of_pools_need_no_memory_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are looked at, a few at a time; only what was built of the last ones is kept."""
    cluster = Cluster()
    for number in range(POOLS_THERE):
        metadata = {"name": f"p{number}", "namespace": "n", "uid": str(number), "resourceVersion": str(number + 1)}
        cluster.put(POOLS, {"metadata": metadata, "spec": {}})
    under_way: set[PoolRef] = set()
    looked: set[PoolRef] = set()
    most = 0
    done = asyncio.Event()

    async def reconcile(ref: PoolRef, *_: object, **__: object) -> Result:
        nonlocal most
        under_way.add(ref)
        most = max(most, len(under_way))
        await asyncio.sleep(0.01)
        under_way.remove(ref)
        looked.add(ref)
        if len(looked) == POOLS_THERE:
            done.set()
        return Result(look_again_s=LOOK_AGAIN_S, clean=True)

    monkeypatch.setattr(workers, "reconcile", reconcile)
    monkeypatch.setattr(workers, "MOST_WARM", WARM)
    kube: Any = None  # nothing is asked of an API server before a look
    found = workers.Workers(kube, cluster, Images(engine="e:1", router="r:1"))
    with found._active():
        for ref in cluster.pools():
            found.wake(ref)
        async with asyncio.timeout(60):
            await done.wait()
        assert len(found._warm) <= WARM
        await found._end()
    assert 1 < most <= workers.AT_ONCE
    assert not found._warm
