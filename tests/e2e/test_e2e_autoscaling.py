"""Autoscaling on the real cluster: real vLLM engines under real load, seen through a real Prometheus."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from e2e.observability.answers import Board
from e2e.scenarios import gpu_exporter, host_page, prometheus
from e2e.scenarios.crowd import Crowd
from e2e.scenarios.pools import wait_for
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import RealPool, Say

    from e2e.scenarios.pools import Pool
    from e2e.scenarios.product import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]

SEQUENCES = 8
"""What an engine of the sample runs at once; what is above waits in it."""
PATIENT_S, HASTY_S = 600, 10
"""Windows before a shrink: while the second replica starts, however long that takes here; and when it has served."""
START_S = 240
PAUSE_S = 2.0


@contextmanager
def scaled(pool: Pool, url: str) -> Iterator[None]:
    """The pool with its decode role following its queue and its GPUs; afterwards as it was."""
    signals = [{"type": "QueueDepth", "target": 4}, {"type": "GpuTensorActive", "target": 0.9}]
    autoscaling = {
        "minReplicas": 1,
        "maxReplicas": 2,
        "signals": signals,
        "scaleDown": {"stabilizationSeconds": PATIENT_S},
    }
    source = {"source": "Prometheus", "intervalSeconds": 2, "prometheus": {"url": url}}
    change: dict[str, Any] = {"decode": {"replicas": None, "autoscaling": autoscaling}, "autoscaling": source}
    pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": change})
    try:
        yield
    finally:
        back = {"decode": {"replicas": 1, "autoscaling": None}, "autoscaling": None}
        pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": back})
        wait_for(lambda: len(pool.pods(Role.DECODE)) == 1 and pool.is_ready(), 120, "one decode replica", pool.summary)


def decode_of(pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = (pool.read() or {}).get("status", {}).get("decode", {})
    return found


def test_a_role_of_real_engines_grows_with_its_queue_and_shrinks_without_a_failed_request(
    real_pool: RealPool, operator: Operator, tmp_path: Path, say: Say
) -> None:
    """1 → 2 → 1 by the queue of real engines, and no client notices.

    The gauges come from a real Prometheus that scrapes the pods, GPU series from a stand-in for the DCGM exporter whose
    pods are named by `exported_pod`, as behind a real Prometheus. Meanwhile every panel of the dashboard has a series.
    """
    pool = real_pool.pool

    def gpus() -> gpu_exporter.Pods:
        ours = {(pool.namespace, pod.name): 0.4 for pod in pool.pods(Role.DECODE)}
        return {**ours, ("elsewhere", "another-workload"): 1.0}

    with (
        host_page.serving(lambda: gpu_exporter.page(gpus()), "text/plain; version=0.0.4") as exporter,
        host_page.serving(lambda: prometheus.targets(pool), "application/json") as discovery,
        prometheus.running(
            tmp_path,
            prometheus.configuration(prometheus.found_at(discovery), exporter, operator.metrics_addresses()),
        ) as url,
        scaled(pool, url),
        Crowd(pool.service_url(), real_pool.model, 3 * SEQUENCES) as crowd,
    ):
        took_s = wait_for(lambda: decode_of(pool).get("desiredReplicas") == 2, 60, "two wanted", pool.summary)
        say(f"decode: 1 → 2 after {took_s:.0f} s of load: {decode_of(pool)['message']}")
        assert decode_of(pool)["reason"] == "QueueDepth"
        assert " waiting / 4 per replica" in decode_of(pool)["message"]
        # One that asks without end would take the core on which the second replica starts.
        crowd.clients, crowd.pause_s = 1, PAUSE_S
        board = Board(url, pool.namespace, pool.name)
        wait_for(lambda: not board.unanswered(), 60, "a series for every panel", lambda: str(board.unanswered()))
        took_s = wait_for(lambda: len(pool.ready_pods(Role.DECODE)) == 2, START_S, "two ready", pool.summary)
        say(f"decode: the second replica is ready after {took_s:.0f} s")
        crowd.pause_s = 0.0
        assert pool.condition("ScalingActive")["status"] == "True"
        of_decode = f'namespace="{pool.namespace}",pool="{pool.name}",role="decode"'
        assert f'pdpool_operator_demand{{{of_decode},signal="GpuTensorActive"}}' in metrics_of(operator)
        hasty = {"decode": {"autoscaling": {"scaleDown": {"stabilizationSeconds": HASTY_S}}}}
        pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": hasty})
        wait_for(lambda: len(pool.pods(Role.DECODE)) == 1, 120, "one left", pool.summary)
        say(f"decode: 2 → 1: {decode_of(pool)['message']}")
        assert decode_of(pool)["desiredReplicas"] == 1
    assert crowd.failures == []
    assert crowd.succeeded > 3 * SEQUENCES


def metrics_of(operator: Operator) -> str:
    """The metrics of the operator's replicas, of which one acts."""
    return "".join(httpx.get(f"http://{each}/metrics", timeout=10).text for each in operator.metrics_addresses())
