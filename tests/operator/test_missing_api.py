"""PersistentVolumeClaims that are not there (Secrets: `test_rotation_api.py`, as not every operator may read them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdpool_api import names
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.site import generations, holds, make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]

SEEN_S = 30.0
DECODE = f"{names.LABEL_ROLE}=decode"


def cached(claim: str) -> Json:
    return {"id": "org/tiny", "cache": {"persistentVolumeClaim": {"claimName": claim}}}


def create_claim(api: Api, namespace: str, name: str) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    api.request("POST", path, {"metadata": {"name": name}, "spec": spec})


def ready_of(api: Api, namespace: str) -> Json:
    found = api.get("inferencepools", namespace, "tiny")
    assert found is not None
    ready = condition(found, "Ready")
    assert ready["observedGeneration"] == found["metadata"]["generation"]
    return ready


def is_missing(api: Api, namespace: str, claim: str) -> None:
    ready = ready_of(api, namespace)
    assert ready["reason"] == "MissingReference"
    assert f"PersistentVolumeClaim {claim} " in f"{ready['message']} "


def test_a_new_pool_names_a_claim_that_is_not_there(api: Api, namespace: str) -> None:
    """Its pods wait, the condition says for what, and is over within 30 s of the claim's appearance (Q15)."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, model=cached("models")))
    settled(api, namespace, "tiny")
    eventually(lambda: is_missing(api, namespace, "models"))
    create_claim(api, namespace, "models")
    eventually(lambda: holds(ready_of(api, namespace)["reason"] == "RollingOut"), timeout_s=SEEN_S)
    make_all_ready(api, namespace, "tiny")


@pytest.mark.parametrize("place", ["cache", "volume"])
def test_an_edit_that_names_a_claim_that_is_not_there_waits(site: Site, api: Api, namespace: str, place: str) -> None:
    """What runs goes on with its sizes, nothing of the edit is begun; the claim's appearance begins it (Q15).

    A second edit, back to what was accepted, ends the wait as well.
    """
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    make_all_ready(api, namespace, "tiny")
    before, since = generations(api, namespace), site.cluster.audit.now()
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "later"}}
    edit = {"decode": {"template": {"volumes": [volume]}}} if place == "volume" else {"model": cached("later")}
    back = {"decode": {"template": None}} if place == "volume" else {"model": {"id": "/models/tiny", "cache": None}}
    api.merge("inferencepools", namespace, "tiny", {"spec": edit})
    eventually(lambda: is_missing(api, namespace, "later"))
    assert generations(api, namespace) == before
    assert site.child_writes(since, {namespace}) == []
    api.merge("inferencepools", namespace, "tiny", {"spec": back})
    eventually(lambda: holds(ready_of(api, namespace)["status"] == "True"))
    assert site.child_writes(since, {namespace}) == []
    api.merge("inferencepools", namespace, "tiny", {"spec": edit})
    eventually(lambda: is_missing(api, namespace, "later"))
    create_claim(api, namespace, "later")

    def begun() -> None:
        mounted = [each["spec"]["template"]["spec"]["volumes"] for each in api.items("deployments", namespace, DECODE)]
        assert any("later" in str(volumes) for volumes in mounted)

    eventually(begun, timeout_s=SEEN_S)
