"""Rollouts and sizes on the real cluster: a node without a spare accelerator, and streams that outlive what they leave.

Engines are stand-ins in pods, and the accelerator is a number in the node's status; scheduler, kubelet, router and
operator are real.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from e2e.images.build import image_name
from e2e.scenarios import engine_metrics, standin_pool
from e2e.scenarios.pools import Pool, wait_for
from e2e.scenarios.stream import Stream
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import ANNOTATION_DRAINING, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Namespaces, Say

    from e2e.scenarios.api import ClusterApi
    from e2e.scenarios.pools import PodView
    from e2e.scenarios.product import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

READY_S: Final = 120.0
RUNNING: Final = "vllm:num_requests_running"
GPU: Final = "nvidia.com/gpu"
STREAM_TOKENS: Final = 2000
STEP_S: Final = 0.2
"""Streams last for minutes, until their pod is told to hurry."""
DRAIN_S: Final = 240
DRAINED: Final = "e2e/drained"


def _patch_status(api: ClusterApi, node: str, patch: list[dict[str, Any]]) -> None:
    path, kind = f"/api/v1/nodes/{node}/status", "application/json-patch+json"
    api.request("PATCH", path, body=patch, content_type=kind)


@pytest.fixture
def one_accelerator(api: ClusterApi) -> Iterator[None]:
    """The node has one, as far as the scheduler knows."""
    (node,) = api.items("nodes")
    name, place = node["metadata"]["name"], f"/status/capacity/{GPU.replace('/', '~1')}"
    _patch_status(api, name, [{"op": "add", "path": place, "value": "1"}])
    wait_for(
        lambda: (api.get("nodes", name) or {})["status"]["allocatable"].get(GPU) == "1", 60.0, "one accelerator", str
    )
    yield
    _patch_status(api, name, [{"op": "remove", "path": place}])


@pytest.mark.usefixtures("one_accelerator")
def test_a_new_image_takes_over_the_only_accelerator(
    api: ClusterApi, operator: Operator, namespaces: Namespaces, say: Say
) -> None:
    """One replica on the only accelerator: its image is changed, and the new one is Ready without help (Q95).

    Then another operator begins to act, and the engine's pod stays.
    """
    space = namespaces.make("one-gpu")
    body = standin_pool.manifest("only", space)
    spec = body["spec"]
    del spec["prefill"], spec["decode"]["hardware"]
    spec["mode"] = "Aggregated"
    spec["decode"]["resources"]["limits"] = {GPU: "1"}
    api.create("inferencepools", space, body)
    pool = Pool(api, "only", space)
    pool.wait_ready(READY_S, say)
    (before,) = pool.ready_pods(Role.AGGREGATED)
    api.patch("inferencepools", "only", space, {"spec": {"engine": {"image": image_name("router")}}})
    took_s = wait_for(
        lambda: pool.is_ready() and before.name not in {pod.name for pod in pool.pods()},
        READY_S,
        "the new image Ready",
        pool.summary,
    )
    say(f"Ready {took_s:.1f} s after the edit")
    (after,) = pool.ready_pods(Role.AGGREGATED)
    operator.kill()
    operator.wait_ready()
    time.sleep(5.0)
    assert [pod.name for pod in pool.pods(Role.AGGREGATED)] == [after.name]


def _running(pod: PodView) -> float:
    return engine_metrics.read(pod.url).total(RUNNING)


def _prompts(pod: PodView) -> float:
    return engine_metrics.read(pod.url).total(engine_metrics.PROMPT_TOKENS)


@pytest.fixture(scope="module")
def streaming(api: ClusterApi, namespaces: Namespaces) -> Pool:
    """A pool whose pods may take minutes to leave."""
    space = namespaces.make("drain")
    api.create("inferencepools", space, standin_pool.manifest("drain", space, decode=2, drain_s=DRAIN_S))
    return Pool(api, "drain", space)


@contextmanager
def streams_on_both(pool: Pool, say: Say) -> Iterator[list[PodView]]:
    """Two decode pods with a long stream on each; after the block every stream has to come to its own end."""
    pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"decode": {"replicas": 2}}})
    wait_for(lambda: len(pool.pods(Role.DECODE)) == 2 and pool.is_ready(), READY_S, "two decode pods", pool.summary)
    decodes = pool.ready_pods(Role.DECODE)
    for pod in decodes:
        standin_pool.set_pace(pod, step_s=STEP_S)
    streams: list[Stream] = []

    def busy() -> bool:
        prompt = f"stream {len(streams)}: tell a long story about blocks"
        streams.append(Stream(pool.service_url(), standin_pool.MODEL, prompt, STREAM_TOKENS))
        time.sleep(1.0)
        return all(_running(pod) >= 1 for pod in decodes)

    wait_for(busy, 30.0, "a stream on each decode pod", pool.summary)
    say(f"{len(streams)} streams on two decode pods")
    yield decodes
    for pod in pool.ready_pods(Role.DECODE):
        standin_pool.set_pace(pod, step_s=0.0)
    for stream in streams:
        stream.thread.join(timeout=120)
        assert stream.is_whole


def _gets_nothing_new(leaving: PodView, trickle: Trickle) -> None:
    """Requests are answered, and none of them by the pod that leaves, whose stream goes on."""
    time.sleep(2.0)  # routers stop choosing it within 2 s

    def passed_over() -> bool:
        reached, answered = _prompts(leaving), len(trickle.outcomes)
        wait_for(lambda: len(trickle.outcomes) > answered + 5, 60.0, "answers meanwhile")
        return _prompts(leaving) == reached

    wait_for(passed_over, 30.0, f"{leaving.name} without a new request")
    assert _running(leaving) >= 1


def test_streams_outlive_a_smaller_size(api: ClusterApi, streaming: Pool, say: Say) -> None:
    """Long streams on both decode pods, one of which leaves: all end with [DONE], and it gets no new request (Q80)."""
    pool = streaming
    with (
        streams_on_both(pool, say) as decodes,
        Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.5, max_tokens=2) as trickle,
    ):
        api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"decode": {"replicas": 1}}})
        wait_for(lambda: bool(_marked(pool)), 60.0, "a pod marked", pool.summary)
        (name,) = _marked(pool)
        victim = next(pod for pod in decodes if pod.name == name)
        _gets_nothing_new(victim, trickle)
        standin_pool.set_pace(victim, step_s=0.0)
        took_s = wait_for(lambda: len(pool.pods(Role.DECODE)) == 1, 120.0, "the marked pod gone", pool.summary)
        say(f"{name} left {took_s:.1f} s after its streams could end")
        assert [pod.name for pod in pool.pods(Role.DECODE)] != [name]
    assert trickle.failures() == []


def test_streams_outlive_a_drain_of_their_node(api: ClusterApi, streaming: Pool, say: Say) -> None:
    """`kubectl drain` takes a decode pod amid a stream: the stream ends whole, requests go to the other pod (Q80).

    There is but one node: the drain is narrowed to one pod by a label, and its replacement waits until the node takes
    pods again.
    """
    pool = streaming
    (node,) = (each["metadata"]["name"] for each in api.items("nodes"))
    with (
        streams_on_both(pool, say) as (victim, other),
        Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.5, max_tokens=2) as trickle,
        ThreadPoolExecutor(1) as threads,
    ):
        api.kubectl(["label", "pod", victim.name, f"--namespace={pool.namespace}", f"{DRAINED}=yes"])
        drain = ["drain", node, f"--pod-selector={DRAINED}=yes", "--delete-emptydir-data", f"--timeout={DRAIN_S}s"]
        drained = threads.submit(api.kubectl, drain, timeout_s=DRAIN_S + 30.0)
        try:
            wait_for(lambda: victim.name in _leaving(pool), 60.0, "the pod asked to go", pool.summary)
            _gets_nothing_new(victim, trickle)
            wait_for(lambda: not pool.is_ready(), 60.0, "the pool told", pool.summary)
            standin_pool.set_pace(victim, step_s=0.0)
            drained.result()
        finally:
            api.kubectl(["uncordon", node])
        pool.wait_ready(READY_S, say)
        assert other.name in {pod.name for pod in pool.ready_pods(Role.DECODE)}
    assert trickle.failures() == []


def _leaving(pool: Pool) -> set[str]:
    return {pod.name for pod in pool.pods() if pod.leaving}


def _marked(pool: Pool) -> list[str]:
    pods = pool.api.items("pods", pool.namespace, pool.labels)
    return [
        pod["metadata"]["name"] for pod in pods if ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {})
    ]
