"""When pools are looked at, how many side by side, and of how many what was built is kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from pdpool_operator import workers
from pdpool_operator.observe.cluster import OVERDUE_S, Cluster
from pdpool_operator.reconcile import GIVEN_UP_S, LOOK_AGAIN_S, Result, look_again_s
from pdpool_operator.records import POOLS, Images, Observed, Outcome, Plan, PoolRef

WARM = 32
POOLS_THERE = 3 * max(workers.AT_ONCE, WARM)


@pytest.mark.parametrize(("late_s", "expected_s"), [(-20, OVERDUE_S + 20), (0, OVERDUE_S), (59.9, GIVEN_UP_S)])
def test_a_pool_is_looked_at_when_a_pod_of_it_is_given_up(late_s: float, expected_s: float) -> None:
    """No event tells that nobody ends a pod: the clock does, where one is leaving."""
    ends = datetime(2026, 1, 1, tzinfo=UTC)
    pods: tuple[Any, ...] = ({"metadata": {}}, {"metadata": {"deletionTimestamp": ends.isoformat()}})
    seen = Observed(PoolRef("n", "p"), {"metadata": {}}, {}, pods)
    step, outcome, now_s = Plan(desired=None), Outcome(), ends.timestamp() + late_s
    assert look_again_s(seen, step, outcome, now_s) == expected_s
    assert look_again_s(Observed(seen.ref, seen.pool, {}, pods[:1]), step, outcome, now_s) == LOOK_AGAIN_S


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
