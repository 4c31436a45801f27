"""What takes minutes on a real node: a kubelet that falls silent, and an engine that starts slowly and then hangs.

Outside CI (`make e2e-node`): the node controller believes in a silent node for most of a minute, and a liveness probe
needs three periods. Engines are stand-ins in pods.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from e2e.cluster import start_daemon, stop_daemon
from e2e.scenarios import standin_pool
from e2e.scenarios.pools import Pool, wait_for
from e2e.scenarios.stream import Stream
from pdpool_api.names import Role

if TYPE_CHECKING:
    from conftest import Namespaces, Say

    from e2e.cluster import Cluster
    from e2e.scenarios.api import ClusterApi
    from e2e.scenarios.product import Operator

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

READY_S: Final = 120.0
NOTICED_S: Final = 180.0
"""A node controller believes in a node for 50 s."""
OPEN_AFTER_S, MODELS_EMPTY_S = 40.0, 20.0
STREAM_TOKENS: Final = 4000
STEP_S: Final = 0.2


def test_a_silent_kubelet_is_told_and_nothing_is_torn_down(
    cluster: Cluster, api: ClusterApi, operator: Operator, namespaces: Namespaces, say: Say
) -> None:
    """The only node is not heard: the pool says so, keeps every pod and stream, and is Ready again with the kubelet."""
    space = namespaces.make("silent")
    api.create("inferencepools", space, standin_pool.manifest("silent", space, decode=2, drain_s=60))
    pool = Pool(api, "silent", space)
    pool.wait_ready(READY_S, say)
    for pod in pool.ready_pods(Role.DECODE):
        standin_pool.set_pace(pod, step_s=STEP_S)
    stream = Stream(pool.service_url(), standin_pool.MODEL, "a long story about blocks", STREAM_TOKENS)
    wait_for(lambda: bool(stream.text), 60.0, "the stream's first words", pool.summary)
    # Its routers are read some seconds after it is ready; that turns a condition once.
    wait_for(lambda: pool.condition("RoutingHealthy").get("status") == "True", READY_S, "routers read", pool.summary)
    before, since = _pods(pool), cluster.audit.now()
    stop_daemon(cluster, "kubelet")
    try:
        took_s = wait_for(lambda: not pool.is_ready(), NOTICED_S, "the pool not Ready", pool.summary)
        say(f"told {took_s:.0f} s after the kubelet was killed: {pool.summary()}")
        told = pool.condition("Ready")
        assert (told["status"], told["reason"]) == ("False", "ReplicasNotReady")
        wait_for(
            lambda: pool.ready_replicas() == {"prefill": 0, "decode": 0},
            60.0,
            "no replica ready",
            lambda: str(pool.ready_replicas()),
        )
        time.sleep(20.0)
        assert _pods(pool).keys() == before.keys()
        assert stream.is_running
    finally:
        start_daemon(cluster, "kubelet")
    wait_for(cluster.node_is_ready, READY_S, "the node Ready")
    pool.wait_ready(READY_S, say)
    assert _pods(pool) == before
    written = [
        f"{entry.verb} {entry.resource}/{entry.name}"
        for entry in cluster.audit.entries(since)
        if entry.is_write and entry.succeeded and entry.user == operator.user and entry.namespace == space
    ]
    assert [each for each in written if "/status" not in each and not each.split()[1].startswith("events/")] == []
    for pod in pool.ready_pods(Role.DECODE):
        standin_pool.set_pace(pod, step_s=0.0)
    stream.thread.join(timeout=120)
    assert stream.is_whole


def _pods(pool: Pool) -> dict[str, int]:
    """Restarts of its containers by the uid of each pod that is not leaving."""
    return {
        pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
        for pod in pool.api.items("pods", pool.namespace, pool.labels)
        if "deletionTimestamp" not in pod["metadata"]
    }


def test_a_slow_start_is_no_failure_and_a_hanging_engine_is_restarted(
    api: ClusterApi, namespaces: Namespaces, say: Say
) -> None:
    """A port that opens after 40 s, and a model that is listed 20 s later, cost no restart; the pod is Ready only then.

    Afterwards `/health` hangs: liveness restarts the engine, which serves again (Q97, its 200 s scaled to 40).
    """
    space = namespaces.make("slow")
    startup = {"open_after_s": OPEN_AFTER_S, "models_empty_s": MODELS_EMPTY_S}
    body = standin_pool.manifest("slow", space, settings={"startup": startup})
    del body["spec"]["prefill"]
    body["spec"]["mode"] = "Aggregated"
    api.create("inferencepools", space, body)
    pool = Pool(api, "slow", space)
    seen: set[tuple[bool, bool]] = set()
    healthy: list[str] = []

    def started() -> bool:
        for pod in pool.pods(Role.AGGREGATED):
            # The pod's word is read first: between the two the model may appear, and never go.
            seen.add((pod.ready, _lists_the_model(pod.url)))
            if _is_healthy(pod.url) and not pod.ready:
                healthy.append(pod.name)
        return pool.is_ready()

    wait_for(started, 2 * READY_S, "the slow pool Ready", pool.summary, say)
    assert (True, False) not in seen
    assert healthy, "it was healthy before its model was listed, and not Ready"
    assert set(_pods(pool).values()) == {0}
    (engine,) = pool.ready_pods(Role.AGGREGATED)
    standin_pool.add_rule(engine, path="/health$", never_answer=True)
    took_s = wait_for(lambda: 1 in _pods(pool).values(), NOTICED_S, "a restart", pool.summary)
    say(f"restarted {took_s:.0f} s after it began to hang")
    pool.wait_ready(2 * READY_S, say)
    assert sorted(_pods(pool).values()) == [0, 1]


def _is_healthy(url: str) -> bool:
    return _answer(url, "/health") is not None


def _lists_the_model(url: str) -> bool:
    answer = _answer(url, "/v1/models")
    return answer is not None and standin_pool.MODEL in {each["id"] for each in answer.json()["data"]}


def _answer(url: str, path: str) -> httpx.Response | None:
    try:
        answer = httpx.get(f"{url}{path}", timeout=5.0)
    except httpx.HTTPError:
        return None
    return answer if answer.is_success else None
