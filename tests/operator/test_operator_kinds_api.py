"""Modes and optional kinds on a real API server, under the permissions of the install manifest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pdpool_api import names
from pdpool_operator.records import HTTP_ROUTES, POD_MONITORS, Resource
from tests.operator.harness import Api, Json, condition, eventually, pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.operator.conftest import Site

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator"), pytest.mark.xdist_group("pools")]

PICKED_UP_S = 100.0
"""Kinds are looked for with every re-list, once a minute."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _text() -> Json:
    return {"type": "string"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_SELECTOR = _object(matchLabels={"type": "object", "additionalProperties": _text()})
SCHEMAS: dict[Resource, Json] = {
    # As in the projects' own definitions, cut to what is applied; both declare these lists without a type, so atomic.
    HTTP_ROUTES: _object(
        parentRefs=_list(
            _object(
                group={**_text(), "default": "gateway.networking.k8s.io"},
                kind={**_text(), "default": "Gateway"},
                namespace=_text(),
                name=_text(),
            )
        ),
        hostnames=_list(_text()),
        rules=_list(
            _object(
                backendRefs=_list(
                    _object(
                        group={**_text(), "default": ""},
                        kind=_text(),
                        name=_text(),
                        port={"type": "integer"},
                        weight={"type": "integer", "default": 1},
                    )
                ),
                timeouts=_object(request=_text()),
                matches={**_list(_object(type=_text())), "default": [{"type": "PathPrefix"}]},
            )
        ),
    ),
    POD_MONITORS: _object(
        selector=_SELECTOR,
        podMetricsEndpoints=_list(_object(port=_text(), path=_text())),
        podTargetLabels=_list(_text()),
    ),
}


def _definition(resource: Resource) -> Json:
    """A stand-in for the CRD of another project."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            # Groups of Kubernetes' own domain need a word of approval.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"},
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()},
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _object(spec=SCHEMAS[resource])},
                }
            ],
        },
    }


@pytest.fixture
def later(api: Api) -> Iterator[Any]:
    """Installs the optional kinds when called; they are gone after the test."""
    made: list[Resource] = []

    def install() -> None:
        for resource in SCHEMAS:
            api.request("POST", CRDS, _definition(resource))
            made.append(resource)

    yield install
    for resource in made:
        api.request("DELETE", f"{CRDS}/{resource.plural}.{resource.group}")


def _of_kind(api: Api, resource: Resource, namespace: str) -> list[Json]:
    path = f"/apis/{resource.group}/{resource.version}/namespaces/{namespace}/{resource.plural}"
    try:
        found: list[Json] = api.request("GET", path)["items"]
    except httpx.HTTPStatusError as error:
        # While it sets up a new kind, the server says so with 429.
        raise AssertionError(str(error)) from error
    return found


def _pool(api: Api, namespace: str) -> Json:
    found = api.get("inferencepools", namespace, "tiny")
    assert found is not None
    return found


def test_kinds_that_appear_are_picked_up(site: Site, api: Api, namespace: str, later: Any) -> None:
    """Without their CRDs the pool says so and works; when they come, the objects are made, and then left alone."""
    asked = {
        "router": {"httpRoute": {"parentRefs": [{"name": "gw"}], "hostnames": ["a.example"]}},
        "monitoring": {"podMonitor": True},
    }
    api.apply("inferencepools", namespace, pool("tiny", namespace, **asked))

    def missing() -> None:
        advisory = condition(_pool(api, namespace), "Advisory")
        assert (advisory["status"], advisory["reason"]) == ("True", "OptionalApiMissing")
        assert "HTTPRoute" in advisory["message"]
        assert "PodMonitor" in advisory["message"]

    eventually(missing)
    assert len(api.children(namespace)) == 16
    later()

    def present() -> None:
        assert [each["metadata"]["name"] for each in _of_kind(api, HTTP_ROUTES, namespace)] == ["tiny-router"]
        assert len(_of_kind(api, POD_MONITORS, namespace)) == 3
        assert condition(_pool(api, namespace), "Advisory")["status"] == "False"

    eventually(present, timeout_s=PICKED_UP_S)
    since = site.cluster.audit.now()
    # A look at the pool that finds nothing to do: the defaults that the server filled in are no difference.
    api.merge("inferencepools", namespace, "tiny", {"spec": {"router": {"drainSeconds": 9}}})

    def seen() -> None:
        found = _pool(api, namespace)
        assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2

    eventually(seen)
    written = site.child_writes(since, {namespace})
    assert not [each for each in written if "httproutes" in each or "podmonitors" in each]
    assert any("deployments/tiny-router" in each for each in written)


def test_a_change_of_the_mode_is_a_rollout(api: Api, namespace: str) -> None:
    """The aggregated role is made beside the two, takes over when it is ready, and then everything of theirs goes."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))

    def ready(mode: str) -> Json:
        with contextlib.suppress(httpx.HTTPStatusError):  # a pod that went meanwhile
            api.make_ready(namespace, names.LABEL_POOL)
        found = _pool(api, namespace)
        assert found["status"]["mode"] == mode
        assert condition(found, "Ready")["status"] == "True"
        return found

    eventually(lambda: ready("Disaggregated"), every_s=0.5)
    whole = {"spec": {"mode": "Aggregated", "prefill": None}}
    api.merge("inferencepools", namespace, "tiny", whole)

    def beside() -> None:
        roles = [each["metadata"]["labels"][names.LABEL_ROLE] for each in api.items("deployments", namespace)]
        assert sorted(roles) == ["aggregated", "decode", "prefill", "router"]

    eventually(beside)
    found = eventually(lambda: ready("Aggregated"), every_s=0.5)
    assert found["status"]["decode"]["ready"] == "1/1"
    assert "prefill" not in found["status"]

    def gone() -> None:
        left = {each["metadata"]["labels"][names.LABEL_ROLE] for each in api.children(namespace).values()}
        assert left == {"router", "aggregated"}

    eventually(gone)


def test_auto_keeps_what_it_decided(api: Api, namespace: str) -> None:
    """A model of unknown size is Aggregated and says why; the decision and what it rests on stand in status."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, mode="Auto"))

    def decided() -> Json:
        found = _pool(api, namespace)
        assert found["status"]["mode"] == "Aggregated"
        assert condition(found, "Advisory")["reason"] == "ModelUnknown"
        return found

    first = eventually(decided)
    api.merge("inferencepools", namespace, "tiny", {"spec": {"decode": {"replicas": 2}}})

    def scaled() -> Json:
        found = _pool(api, namespace)
        assert found["status"]["decode"]["desiredReplicas"] == 2
        return found

    assert eventually(scaled)["status"]["modeInputs"] == first["status"]["modeInputs"]
