"""Rollouts and sizes on the real cluster: a node without a spare accelerator, and streams that outlive a smaller size.

Engines are stand-ins in pods, and the accelerator is a number in the node's status; scheduler, kubelet, router and
operator are real.
"""

from __future__ import annotations

import time
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
STREAM_TOKENS: Final = 200
STEP_S: Final = 0.2


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


def test_streams_outlive_a_smaller_size(api: ClusterApi, namespaces: Namespaces, say: Say) -> None:
    """Long streams on both decode pods, one of which leaves: all end with [DONE], and it gets no new request (Q80)."""
    space = namespaces.make("drain")
    settings = {"pace": {"step_s": STEP_S}}
    api.create("inferencepools", space, standin_pool.manifest("drain", space, decode=2, drain_s=90, settings=settings))
    pool = Pool(api, "drain", space)
    pool.wait_ready(READY_S, say)
    decodes = pool.ready_pods(Role.DECODE)
    streams: list[Stream] = []

    def busy() -> bool:
        prompt = f"stream {len(streams)}: tell a long story about blocks"
        streams.append(Stream(pool.service_url(), standin_pool.MODEL, prompt, STREAM_TOKENS))
        time.sleep(1.0)
        return all(_running(pod) >= 1 for pod in decodes)

    wait_for(busy, 10.0, "a stream on each decode pod", pool.summary)
    with Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.5, max_tokens=2) as trickle:
        api.patch("inferencepools", "drain", space, {"spec": {"decode": {"replicas": 1}}})
        wait_for(lambda: bool(_marked(pool)), 20.0, "a pod marked", pool.summary)
        (name,) = _marked(pool)
        victim = next(pod for pod in decodes if pod.name == name)
        time.sleep(2.0)
        reached = _prompts(victim)
        time.sleep(8.0)
        assert _running(victim) >= 1
        assert _prompts(victim) == reached
        took_s = wait_for(lambda: len(pool.pods(Role.DECODE)) == 1, 120.0, "the marked pod gone", pool.summary)
        say(f"{name} left {took_s:.1f} s later, with {len(streams)} streams behind it")
        assert [pod.name for pod in pool.pods(Role.DECODE)] != [name]
    assert trickle.failures() == []
    for stream in streams:
        stream.thread.join(timeout=60)
        assert stream.is_whole


def _marked(pool: Pool) -> list[str]:
    pods = pool.api.items("pods", pool.namespace, pool.labels)
    return [
        pod["metadata"]["name"] for pod in pods if ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {})
    ]
