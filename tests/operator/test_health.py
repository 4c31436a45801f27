"""Verdicts on transfers and routing, from counters as engines and routers show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.pool import InferencePool
from pdpool_operator import health, monitor
from pdpool_operator.health import WINDOW_S, History, Transfers
from pdpool_operator.observe.cluster import Cluster
from pdpool_operator.observe.metrics import Pages
from pdpool_operator.records import PODS, POOLS, HealthVerdict, PoolRef
from tests.operator.metric_pages import engine_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Json = dict[str, Any]


def judged(*readings: Mapping[str, Transfers], bandwidth: float | None = None, every_s: float = 20) -> History:
    history = History()
    for number, told in enumerate(readings):
        history = health.transfer(history.with_reading(told, number * every_s), bandwidth)
    return history


def verdict(history: History) -> tuple[str, str]:
    assert history.verdict is not None
    return history.verdict.status, history.verdict.reason


NONE = Transfers()
GOOD = Transfers(done=1000, seconds=10, bytes=50e9)  # 40 Gbit/s


@pytest.mark.parametrize(
    ("after", "bandwidth", "expected"),
    [
        (NONE, 400, ("Unknown", "NoTraffic")),
        (GOOD, None, ("True", "Transferring")),
        (GOOD, 400, ("True", "Transferring")),
        (GOOD, 401, ("False", "TransferSlow")),
        (Transfers(done=990, failed=5, expired=5), None, ("True", "Transferring")),
        (Transfers(done=989, failed=6, expired=5), None, ("False", "HandoffsFail")),
        (Transfers(failed=1), None, ("False", "HandoffsFail")),
        (Transfers(expired=1), 400, ("False", "HandoffsFail")),
    ],
)
def test_a_window_is_judged(after: Transfers, bandwidth: float | None, expected: tuple[str, str]) -> None:
    """More than one in a hundred failed or expired, or slower than a tenth of the link; without traffic unknown."""
    assert verdict(judged({"d": NONE}, {"d": after}, {"d": after}, bandwidth=bandwidth)) == expected


def test_one_slow_reading_is_not_slow() -> None:
    """A single transfer that waited says nothing about the link; two readings in a row do, and words then stay."""
    slow = Transfers(done=10, seconds=10, bytes=1e9)
    assert verdict(judged({"d": NONE}, {"d": slow}, bandwidth=400))[0] == "True"
    found = judged({"d": NONE}, {"d": slow}, {"d": slow}, bandwidth=400)
    assert found.verdict is not None
    assert found.verdict.message == "KV moved at 0.8 Gbit/s, less than a tenth of the 400 Gbit/s of the link"
    worse = Transfers(done=20, seconds=30, bytes=2e9)
    again = health.transfer(found.with_reading({"d": worse}, 60), 400)
    assert again.verdict == found.verdict, "a message does not move with every reading"


def test_what_lies_before_the_window_does_not_count() -> None:
    """Failures of an hour ago are no failures of now, nor are those before the operator's first look."""
    bad = Transfers(done=100, failed=100)
    assert verdict(judged({"d": bad}, {"d": bad})) == ("Unknown", "NoTraffic")
    later = [{"d": Transfers(done=100 + 10 * each, failed=100)} for each in range(20)]
    assert verdict(judged({"d": NONE}, *later)) == ("True", "Transferring")


def test_an_engine_that_is_gone_is_forgotten() -> None:
    """Readings of a pod that nobody answers for age out; another life of a pool begins empty."""
    found = judged({"a": NONE, "b": NONE}, {"a": NONE, "b": Transfers(failed=9)}, *[{"a": NONE}] * 20)
    assert set(found.readings) == {"a"}
    assert verdict(found) == ("Unknown", "NoTraffic")


_counts = st.integers(0, 1000).map(float)
_steps = st.lists(st.tuples(st.booleans(), _counts, _counts), min_size=1, max_size=10)


@given(_steps)
def test_a_restarted_engine_loses_nothing_that_was_read(steps: list[tuple[bool, float, float]]) -> None:
    """Counters that begin anew count from nothing: the window's sum is that of the steps, never negative."""
    life, total, readings = Transfers(), Transfers(), [{"d": Transfers()}]
    for restarts, done, failed in steps:
        step = Transfers(done=done, failed=failed)
        if restarts and (life.done > done or life.failed > failed):
            before, life = life, step
            total = total.plus(life.since(before))
        else:
            life, total = life.plus(step), total.plus(step)
        readings.append({"d": life})
    moved = judged(*readings, every_s=1).moved
    assert moved == total
    assert moved.done >= 0
    assert moved.failed >= 0


WELL = {"kv_events_missing": 0.0, "index_approximate": 0.0}


@pytest.mark.parametrize(
    ("told", "wants_events", "expected"),
    [
        ([], True, ("Unknown", "RoutersUnread")),
        ([{"kv_events_missing": None, "index_approximate": None}], True, ("Unknown", "RoutersUnread")),
        ([WELL], True, ("True", "RoutingInformed")),
        ([WELL, {"kv_events_missing": 2.0}], True, ("False", "EventsMissing")),
        ([{"kv_events_missing": 0.0, "index_approximate": 1.0}], True, ("False", "IndexApproximate")),
        ([{"kv_events_missing": 0.0, "index_approximate": 1.0}], False, ("True", "RoutingInformed")),
    ],
)  # fmt: skip
def test_routing_is_judged(told: list[dict[str, float | None]], wants_events: bool, expected: tuple[str, str]) -> None:  # noqa: FBT001 - a column
    """Any router that misses events or guesses counts; what was asked for is no fault; silence is unknown (Q110)."""
    found = health.routing(told, wants_events=wants_events)
    assert (found.status, found.reason) == expected


# --- the monitor ---------------------------------------------------------------------------------------------------


class Told(Pages):
    """Pages as given, by address: a stand-in for pods."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        super().__init__()
        self.pages = pages

    async def page(self, address: str, wanted: Iterable[str]) -> Any:
        from pdpool_operator.observe.exposition import Page  # noqa: PLC0415
        from pdpool_operator.observe.prometheus import UnreadError  # noqa: PLC0415

        if address not in self.pages:
            raise UnreadError(f"{address} cannot be reached")
        return Page(self.pages[address], wanted)


def pod(name: str, role: str, ip: str, version: int) -> Json:
    labels = {"pdpool.io/pool": "tiny", "pdpool.io/role": role}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"tiny-{role}-5c9", "controller": True}
    metadata = {"name": name, "namespace": "serving", "uid": name, "labels": labels, "ownerReferences": [owner]}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": ip, "conditions": ready}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, "spec": {}, "status": status}


def transfers(done: int, failed: int = 0) -> bytes:
    text = engine_page().decode()
    lines = [line for line in text.splitlines() if "nixl_num_failed_transfers" not in line and "nixl_xfer" not in line]
    more = [
        f'vllm:nixl_xfer_time_seconds_count{{engine="0"}} {done}',
        f'vllm:nixl_xfer_time_seconds_sum{{engine="0"}} {done / 10}',
        f'vllm:nixl_num_failed_transfers_total{{engine="0"}} {failed}',
    ]
    return ("\n".join([*lines, *more]) + "\n").encode()


async def test_a_verdict_that_turns_wakes_the_pool_once(raw_pool: Json) -> None:
    """Engines and routers are read by their own pages; only a change of a verdict asks for a reconcile."""
    cluster = Cluster()
    cluster.put(POOLS, raw_pool)
    for number, (name, role) in enumerate((("p", "prefill"), ("d", "decode"), ("r", "router"))):
        cluster.put(PODS, pod(name, role, f"10.0.0.{number}", 200 + number))
    gauges = "pdpool_router_kv_events_missing 0\npdpool_router_index_approximate 0\n"
    pages = Told({"10.0.0.0:8000": transfers(0), "10.0.0.1:8000": transfers(0), "10.0.0.2:9090": gauges.encode()})
    woken: list[None] = []
    now = 0.0
    ref = PoolRef("serving", "tiny")
    watch = monitor.Monitor(ref, cluster, pages, lambda: woken.append(None), clock=lambda: now)
    observed = cluster.observed(ref)
    assert observed is not None
    spec = InferencePool.parse(raw_pool).spec
    try:
        first = watch.verdicts(observed, spec)
        assert first.transfer is not None
        assert (first.transfer.status, first.routing.status) == ("Unknown", "Unknown")
        for done, failed, times in ((0, 0, 1), (100, 0, 2), (200, 0, 2), (200, 50, 3), (200, 50, 3)):
            now += 20
            pages.pages["10.0.0.1:8000"] = transfers(done, failed)
            await watch.read()
            assert len(woken) == times
        said = watch.verdicts(observed, spec)
        assert said.transfer is not None
        assert (said.transfer.reason, said.routing.reason) == ("HandoffsFail", "RoutingInformed")
        assert said.transfer.message == "of 250 hand-offs in five minutes 50 failed and 0 expired"
        alone = watch.verdicts(observed, spec.in_mode("Aggregated"))
        assert alone.transfer is None
    finally:
        await watch.close()


async def test_a_replica_that_takes_over_keeps_what_is_said_until_it_knows(raw_pool: Json) -> None:
    """A restart turns no condition: what was said of transfers stays for the window, until this one has seen some."""
    stands = [
        {"type": "TransferHealthy", "status": "True", "reason": "Transferring", "message": "", "observedGeneration": 1},
        {
            "type": "RoutingHealthy",
            "status": "True",
            "reason": "RoutingInformed",
            "message": "",
            "observedGeneration": 1,
        },
    ]
    cluster = Cluster()
    cluster.put(POOLS, {**raw_pool, "status": {"conditions": stands}})
    cluster.put(PODS, pod("p", "prefill", "10.0.0.0", 200))
    now = 1000.0
    ref = PoolRef("serving", "tiny")
    woken: list[None] = []
    watch = monitor.Monitor(
        ref, cluster, Told({"10.0.0.0:8000": transfers(0)}), lambda: woken.append(None), clock=lambda: now
    )
    observed = cluster.observed(ref)
    assert observed is not None
    spec = InferencePool.parse(raw_pool).spec
    try:
        first = watch.verdicts(observed, spec)
        assert first.transfer is not None
        assert (first.transfer.reason, first.routing.reason) == ("Transferring", "RoutingInformed")
        await watch.read()
        young = watch.verdicts(observed, spec)
        assert young.transfer == first.transfer
        now += WINDOW_S + 1
        await watch.read()
        old = watch.verdicts(observed, spec)
        assert old.transfer is not None
        assert old.transfer.reason == "NoTraffic"
    finally:
        await watch.close()


def test_verdicts_are_conditions(raw_pool: Json) -> None:
    """Both stand in the status with their words; one role alone has no transfers to judge."""
    from dataclasses import replace  # noqa: PLC0415

    from pdpool_operator.reconcile import next_plan  # noqa: PLC0415
    from pdpool_operator.records import Outcome, PoolHealth  # noqa: PLC0415
    from pdpool_operator.status import conditions  # noqa: PLC0415
    from tests.operator import test_status as pools  # noqa: PLC0415

    observed = pools.observe(raw_pool)
    plan = next_plan(observed, pools.IMAGES)
    assert plan.desired is not None
    bad = HealthVerdict("False", "TransferSlow", "slow")
    unread = HealthVerdict("Unknown", "RoutersUnread", "")
    for transfer in (bad, None):
        desired = replace(plan.desired, health=PoolHealth(transfer, unread))
        found = conditions(observed, replace(plan, desired=desired), Outcome(), now="2026-01-01T00:00:00Z")
        by_type = {each.type: (each.status, each.reason) for each in found}
        assert by_type["RoutingHealthy"] == ("Unknown", "RoutersUnread")
        assert by_type.get("TransferHealthy") == (("False", "TransferSlow") if transfer else None)
