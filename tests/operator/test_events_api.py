"""Events of pools, on a real API server under the rules of the install manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api import names
from tests.operator.harness import Api, Json, eventually, pool
from tests.operator.site import make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("pools")]


def told(api: Api, namespace: str) -> list[Json]:
    """The operator's Events about the namespace's pools, oldest first."""
    found: list[Json] = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    ours = [each for each in found if each["regarding"]["kind"] == names.KIND]
    return sorted(ours, key=lambda each: str(each["eventTime"]))


def reasons(api: Api, namespace: str) -> list[str]:
    return [each["reason"] for each in told(api, namespace)]


@pytest.mark.usefixtures("operator")
def test_a_pools_story_is_told_as_events(site: Site, api: Api, namespace: str) -> None:
    """Made, ready, refused, accepted, scaled: one Event for each turn, about this life of the pool; none at rest."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    stored = settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    eventually(lambda: _is(reasons(api, namespace), ["RolloutStarted", "RolloutCompleted"]))
    patch: Json = {"spec": {"prefill": {"args": ["--dtype=float16"]}}}
    api.merge("inferencepools", namespace, "tiny", patch)
    eventually(lambda: _is(reasons(api, namespace)[2:], ["IncompatibleRoles"]))
    api.merge("inferencepools", namespace, "tiny", {"spec": {"prefill": {"args": None}}})
    eventually(lambda: _is(reasons(api, namespace)[3:], ["SpecAccepted"]))
    api.merge("inferencepools", namespace, "tiny", {"spec": {"decode": {"replicas": 2}}})
    eventually(lambda: _is(set(reasons(api, namespace)[4:]), {"Scaled", "RolloutStarted"}))
    events = told(api, namespace)
    assert {each["regarding"]["uid"] for each in events} == {stored["metadata"]["uid"]}
    assert {each["reportingController"] for each in events} == {"pdpool.io/operator"}
    assert [each["type"] for each in events[:4]] == ["Normal", "Normal", "Warning", "Normal"]
    assert "float16" in events[2]["note"]
    # Those who list core Events, as `kubectl describe` does, see the same.
    described = site.cluster.kubectl("describe", names.CRD_NAME, "tiny", "-n", namespace)
    assert "IncompatibleRoles" in described


def _is(found: Any, wanted: Any) -> None:
    assert found == wanted
