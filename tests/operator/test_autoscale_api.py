"""Autoscaling against a real API server.

Pages of engines and routers, and a Prometheus, are stand-ins; the test marks pods ready and gives them addresses on
loopback. Intervals are 1 s and windows seconds: time is scaled down.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api import names
from tests.operator.answering import Workload, deployment, size, waiting
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.metric_pages import router_page, serving, vector
from tests.operator.site import holds, settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.operator.harness import Operator

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator"), pytest.mark.xdist_group("operator")]

FAST = {"intervalSeconds": 1}
QUEUE = [{"type": "QueueDepth", "target": 10}]


def role(**autoscaling: Any) -> Json:
    return {"hardware": "cpu", "autoscaling": {"scaleDown": {"stabilizationSeconds": 5}, **autoscaling}}


@pytest.fixture
def workload(api: Api, namespace: str) -> Iterator[Workload]:
    with ExitStack() as stack:
        yield Workload(api, namespace, stack)


def test_a_role_follows_its_queue_and_the_spec_is_never_written(
    api: Api, namespace: str, workload: Workload, operator: Operator
) -> None:
    """A role grows once by its load, is left alone by edits, and shrinks without it (Q13, Q19, Q32).

    Two pods at 20 against 10 become four while two of them load; an edit of the pool changes no size, a manual scale is
    corrected, and the GitOps tool finds nothing changed.
    """
    prefill = role(minReplicas=2, maxReplicas=8, signals=QUEUE)
    body = pool("tiny", namespace, prefill=prefill, decode={"hardware": "cpu"}, autoscaling=FAST)
    api.apply("inferencepools", namespace, body, manager="gitops")
    settled(api, namespace, "tiny")
    for pod in workload.wait_pods("prefill", 2):
        workload.serve(pod, waiting(20))
    watched = [size(api, namespace, "prefill")]

    def four() -> None:
        watched.append(size(api, namespace, "prefill"))
        assert watched[-1] == 4

    eventually(four, timeout_s=20)

    def told() -> None:
        stored = api.get("inferencepools", namespace, "tiny")
        assert stored is not None
        said = stored["status"]["prefill"]
        assert (said["reason"], said["message"]) == ("QueueDepth", "40 waiting / 10 per replica")
        assert (said["desiredReplicas"], said["lastScaleTime"][:3]) == (4, "202")
        assert condition(stored, "ScalingActive")["status"] == "True"

    eventually(told, timeout_s=20)
    generation = deployment(api, namespace, "prefill")["metadata"]["generation"]
    time.sleep(4)  # four ticks on the same readings, with two pods that load
    body["spec"]["decode"]["env"] = [{"name": "LOG", "value": "1"}]
    body["metadata"]["labels"] = {"team": "a"}
    edited = api.apply("inferencepools", namespace, body, manager="gitops")
    api.merge(
        "deployments", namespace, deployment(api, namespace, "prefill")["metadata"]["name"], {"spec": {"replicas": 7}}
    )
    eventually(four, timeout_s=20)
    live = deployment(api, namespace, "prefill")["metadata"]["generation"]
    assert live == generation + 2, "the manual edit and its correction"
    assert set(watched) <= {2, 4, 7}
    again = api.apply("inferencepools", namespace, body, manager="gitops")
    assert again["metadata"]["generation"] == edited["metadata"]["generation"]
    for entry in again["metadata"]["managedFields"]:
        assert entry["manager"] == "gitops" or "f:spec" not in entry["fieldsV1"], entry
    assert "replicas" not in again["spec"]["prefill"]
    text = operator.answer("/metrics").text
    label = f'{{namespace="{namespace}",pool="tiny",role="prefill"'
    assert f"pdpool_operator_desired_replicas{label}}} 4.0" in text
    assert f'pdpool_operator_demand{label},signal="QueueDepth"}} 4.0' in text
    assert f"pdpool_operator_scaling_active{label}}} 1.0" in text
    for pod in workload.servers:
        workload.show(pod, waiting(0))
    eventually(lambda: holds(size(api, namespace, "prefill") == 2), timeout_s=30)
    api.delete("inferencepools", namespace, "tiny")
    eventually(lambda: holds(label not in operator.answer("/metrics").text), timeout_s=20)


def test_a_broken_pipeline_shows_on_the_pool(api: Api, namespace: str, workload: Workload) -> None:
    """Prometheus answers 401: the size holds, and condition and Event name the address and no credential (Q30, Q109).

    Its time moves only when it turns, and it turns back after the repair.
    """
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "prom"}, "stringData": {"token": "CANARY"}}
    api.create("secrets", namespace, token)
    with serving(lambda _path: (401, b"CANARY")) as prometheus:
        url = f"http://{prometheus.address}"
        scaling = {**FAST, "source": "Prometheus", "prometheus": {"url": url}}
        prefill = role(minReplicas=1, maxReplicas=8, signals=QUEUE)
        body = pool("tiny", namespace, prefill=prefill, decode={"hardware": "cpu"}, autoscaling=scaling)
        api.apply("inferencepools", namespace, body)
        settled(api, namespace, "tiny")
        (first,) = workload.wait_pods("prefill", 1)
        api.set_ready(namespace, first)

        def broken() -> Json:
            found = api.get("inferencepools", namespace, "tiny")
            assert found is not None
            active = condition(found, "ScalingActive")
            assert (active["status"], active["reason"]) == ("False", "SignalsUnknown")
            assert f"{url}: answered 401" in active["message"]
            return found

        found = eventually(broken, timeout_s=20)
        assert condition(found, "ScalingActive")["message"].startswith("prefill")
        assert found["status"]["prefill"]["reason"] == "SignalsUnknown"
        assert "CANARY" not in str(found)
        since = condition(found, "ScalingActive")["lastTransitionTime"]

        def at_rest() -> None:
            version = broken()["metadata"]["resourceVersion"]
            time.sleep(3)  # some readings
            held = broken()
            assert condition(held, "ScalingActive")["lastTransitionTime"] == since
            assert held["metadata"]["resourceVersion"] == version, "a reading alone writes nothing"

        eventually(at_rest, timeout_s=60)
        eventually(lambda: holds(_events(api, namespace, "SignalsUnknown") == ["Warning"]), timeout_s=20)
        series = {"namespace": namespace, "pod": first}
        prometheus.answer = lambda _path: vector((series, 30))
        eventually(lambda: holds(size(api, namespace, "prefill") == 3), timeout_s=20)

        def repaired() -> None:
            after = api.get("inferencepools", namespace, "tiny")
            assert after is not None
            assert condition(after, "ScalingActive")["status"] == "True"

        eventually(repaired, timeout_s=20)
        for absent in (vector(), (503, b""), vector((series, "NaN"))):
            prometheus.answer = lambda _path, reply=absent: reply
            time.sleep(2.5)
            assert size(api, namespace, "prefill") == 3
        prometheus.answer = lambda _path: vector((series, 0))
        eventually(lambda: holds(size(api, namespace, "prefill") == 1), timeout_s=30)


def _events(api: Api, namespace: str, reason: str) -> list[str]:
    """The types of the Events with a reason."""
    found = _all_events(api, namespace)
    return [each["type"] for each in found if each["reason"] == reason and "CANARY" not in str(each)]


def _all_events(api: Api, namespace: str) -> list[Json]:
    found: list[Json] = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return found


def test_a_pool_goes_to_zero_and_wakes(api: Api, namespace: str, workload: Workload) -> None:
    """It begins at zero; a held request wakes both roles within seconds; a cancelled one lets it go back (Q38)."""
    zero = role(minReplicas=0, maxReplicas=4)
    api.apply("inferencepools", namespace, pool("tiny", namespace, prefill=zero, decode=zero, autoscaling=FAST))
    settled(api, namespace, "tiny")
    (router,) = workload.wait_pods("router", 1)
    workload.serve(router, router_page(), names.ROUTER_ADMIN_PORT)
    assert size(api, namespace, "decode") == 0
    workload.show(router, router_page(queued=1))

    def both(count: int) -> None:
        assert (size(api, namespace, "prefill"), size(api, namespace, "decode")) == (count, count)

    eventually(lambda: both(1), timeout_s=15)
    stored = api.get("inferencepools", namespace, "tiny")
    assert stored is not None
    workload.show(router, router_page(queued=0))
    eventually(lambda: both(0), timeout_s=30)

    def said() -> None:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert found["status"]["decode"]["reason"] == "ScaledToZero"
        assert condition(found, "ScalingActive")["status"] == "True"

    eventually(said)


def test_a_dry_run_changes_nothing(api: Api, namespace: str, workload: Workload) -> None:
    """Status says what would be done; a size that somebody else gives the workload stays, and is what is desired."""
    prefill = role(minReplicas=1, maxReplicas=8, dryRun=True, signals=QUEUE)
    body = pool("tiny", namespace, prefill=prefill, decode={"hardware": "cpu"}, autoscaling=FAST)
    api.apply("inferencepools", namespace, body)
    settled(api, namespace, "tiny")
    (pod,) = workload.wait_pods("prefill", 1)
    workload.serve(pod, waiting(35))

    def told() -> None:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        words = "dry run, would be 4 instead of 1: 35 waiting / 10 per replica"
        assert found["status"]["prefill"]["message"] == words

    eventually(told, timeout_s=20)
    assert size(api, namespace, "prefill") == 1
    name = deployment(api, namespace, "prefill")["metadata"]["name"]
    api.merge("deployments", namespace, name, {"spec": {"replicas": 3}})

    def followed() -> None:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert found["status"]["prefill"]["desiredReplicas"] == 3

    eventually(followed, timeout_s=20)
    assert size(api, namespace, "prefill") == 3


def test_a_refused_edit_keeps_the_pool_scaling(api: Api, namespace: str, workload: Workload) -> None:
    """The last spec that was acted on goes on, sizes included, while status says what is refused of the edit.

    Bounds of the next one that is taken act at once, and the Event names them.
    """
    prefill = role(minReplicas=1, maxReplicas=8, signals=QUEUE)
    body = pool("tiny", namespace, prefill=prefill, decode={"hardware": "cpu"}, autoscaling=FAST)
    api.apply("inferencepools", namespace, body)
    settled(api, namespace, "tiny")
    (pod,) = workload.wait_pods("prefill", 1)
    workload.serve(pod, waiting(5))
    body["spec"]["decode"]["args"] = ["--port=1"]
    api.apply("inferencepools", namespace, body)

    def refused() -> Json:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "SpecValid")["reason"] == "ReservedArgument"
        return found

    eventually(refused, timeout_s=20)
    workload.show(pod, waiting(35))
    eventually(lambda: holds(size(api, namespace, "prefill") == 4), timeout_s=20)

    def told() -> None:
        status = refused()["status"]
        assert (status["prefill"]["desiredReplicas"], status["prefill"]["reason"]) == (4, "QueueDepth")

    eventually(told, timeout_s=20)
    assert len(api.items("deployments", namespace, f"{names.LABEL_ROLE}=decode")) == 1
    del body["spec"]["decode"]["args"]
    body["spec"]["prefill"]["autoscaling"]["maxReplicas"] = 2
    api.apply("inferencepools", namespace, body)

    def bounded() -> None:
        notes = [each.get("note") for each in _all_events(api, namespace) if each["reason"] == "Scaled"]
        assert "prefill from 4 to 2, MaxReplicas: maxReplicas is 2" in notes

    eventually(bounded, timeout_s=20)
