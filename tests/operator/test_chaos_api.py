"""A short story of chaos, and a node that is lost: a real control plane, with stand-ins for its nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from e2e.chaos import judge as rules
from e2e.chaos.ground import ControlPlane, control_plane
from e2e.chaos.operators import Operators
from e2e.chaos.run import Plan, play, table
from e2e.chaos.story import Kind
from pdpool_api import names
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.site import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# On one worker: both need a control plane in which nothing else happens.
pytestmark = [pytest.mark.api, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(900)]

SEED = 2
ALWAYS = (
    Kind.STOP_LEADER,
    Kind.API,
    Kind.NODE,
    Kind.KILL,
    Kind.EVICT,
    Kind.MODE,
    Kind.INVALID,
    Kind.DELETE,
    Kind.EDIT,
)
PATIENCE_S = 240.0
"""Two operators start, and controllers follow: minutes on a busy machine."""


def patiently(look: Callable[[], None]) -> None:
    eventually(look, timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def place() -> Iterator[ControlPlane]:
    with control_plane() as found:
        yield found


def test_a_short_story_of_chaos(place: ControlPlane, tmp_path: Path) -> None:
    """A round of edits, kills and losses, each kind once: what must hold is looked at often, and holds."""
    plan = Plan(SEED, minutes=10, acts=13, quiet_s=5, node_s=6, always=[ALWAYS], most_rounds=1)
    report = play(place, plan, tmp_path, print)
    assert report.findings == [], table(report, 0)
    assert len(report.ready_s) == 2
    assert report.takeover_s
    # Not NEEDED: a pod may be gone before it served, and then its leaving says nothing.
    for rule in (rules.WRITER, rules.CAP, rules.SURGE, rules.ORPHAN, rules.CALM_READY, rules.CALM_QUIET):
        assert report.tally.checked[rule] > 0, rule


def test_pods_of_a_lost_node_are_replaced_and_block_no_smaller_size(place: ControlPlane, tmp_path: Path) -> None:
    """A node falls silent: its pods are evicted and never end, others take their place; a smaller size goes on.

    The eviction, five minutes after the loss, is the test's.
    """
    api, namespace = Api(place.cluster.kubeconfig), "lost-node"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        with Operators(place.cluster, tmp_path):
            _loses_two_nodes(place, api, namespace)
    finally:
        place.nodes.heal()
        api.close()


def _loses_two_nodes(place: ControlPlane, api: Api, namespace: str) -> None:
    decode: Json = {"replicas": 4, "drainSeconds": 5}
    api.apply("inferencepools", namespace, pool("p", namespace, prefill={"drainSeconds": 5}, decode=decode))
    patiently(lambda: _whole(api, namespace, 4))
    lost = _busiest(api, namespace)
    place.nodes.silence(lost)
    gone = {each["metadata"]["name"] for each in _decodes(api, namespace) if _node(each) == lost}
    patiently(lambda: holds(_ready(api, namespace) == 4 - len(gone)))
    for pod in api.items("pods", namespace):
        if _node(pod) == lost:
            api.delete("pods", namespace, pod["metadata"]["name"])
    patiently(lambda: _whole(api, namespace, 4))
    stuck = {each["metadata"]["name"] for each in _decodes(api, namespace)} - _live(api, namespace)
    assert stuck == gone, "nobody can end the pods of a node that is silent"

    other = _busiest(api, namespace)
    place.nodes.silence(other)
    serving = {each["metadata"]["name"] for each in _decodes(api, namespace) if _node(each) not in (lost, other)}
    patiently(lambda: holds(_ready(api, namespace) == len(serving)))
    api.merge("inferencepools", namespace, "p", {"spec": {"decode": {"replicas": len(serving)}}})
    patiently(lambda: _serve(api, namespace, serving))
    place.nodes.heal()
    patiently(lambda: _whole(api, namespace, len(serving)))
    assert serving <= {each["metadata"]["name"] for each in _decodes(api, namespace)}


def _decodes(api: Api, namespace: str) -> list[Json]:
    return api.items("pods", namespace, f"{names.LABEL_ROLE}=decode")


def _live(api: Api, namespace: str) -> set[Any]:
    """Decode pods that nobody has asked to go."""
    pods = _decodes(api, namespace)
    return {each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"]}


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _busiest(api: Api, namespace: str) -> str:
    """The node with the most decode pods that are not on their way out."""
    live = [each for each in _decodes(api, namespace) if "deletionTimestamp" not in each["metadata"]]
    return Counter(_node(each) for each in live).most_common(1)[0][0]


def _ready(api: Api, namespace: str) -> int:
    found = api.get("inferencepools", namespace, "p")
    assert found is not None
    return int(found["status"]["decode"]["readyReplicas"])


def _whole(api: Api, namespace: str, replicas: int) -> None:
    found = api.get("inferencepools", namespace, "p")
    assert found is not None
    assert condition(found, "Ready")["status"] == "True"
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert _ready(api, namespace) == replicas


def _serve(api: Api, namespace: str, serving: set[Any]) -> None:
    """The size is the new one, and exactly those that served do."""
    (deployment,) = api.items("deployments", namespace, f"{names.LABEL_ROLE}=decode")
    assert deployment["spec"]["replicas"] == len(serving)
    assert _live(api, namespace) == serving
    assert _ready(api, namespace) == len(serving)
