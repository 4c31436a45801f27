"""References to what is not there (Secrets: `test_rotation_api.py`, as not every operator may read them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api import names
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.site import generations, holds, make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator"), pytest.mark.xdist_group("pools")]

DECODE = f"{names.LABEL_ROLE}=decode"


def cached(claim: str) -> Json:
    return {"id": "org/tiny", "cache": {"persistentVolumeClaim": {"claimName": claim}}}


def create(api: Api, namespace: str, kind: str, name: str, **content: Any) -> None:
    api.request("POST", f"/api/v1/namespaces/{namespace}/{kind}", {"metadata": {"name": name}, **content})


def create_claim(api: Api, namespace: str, name: str) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    create(api, namespace, "persistentvolumeclaims", name, spec=spec)


def ready_of(api: Api, namespace: str) -> Json:
    found = api.get("inferencepools", namespace, "tiny")
    assert found is not None
    ready = condition(found, "Ready")
    assert ready["observedGeneration"] == found["metadata"]["generation"]
    return ready


def is_missing(api: Api, namespace: str, *wanted: str) -> None:
    ready = ready_of(api, namespace)
    assert ready["reason"] == "MissingReference"
    for each in wanted:
        assert each in ready["message"]


def test_a_new_pool_names_what_is_not_there(api: Api, namespace: str) -> None:
    """Its pods wait, the condition names what for, and is over soon after all of it has appeared (Q15).

    A claim, a ConfigMap as a volume and as a variable.
    """
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}
    volume = {"name": "v", "configMap": {"name": "files"}}
    decode = {"hardware": "cpu", "env": [variable], "template": {"volumes": [volume]}}
    create(api, namespace, "configmaps", "settings", data={"b": "1"})
    api.apply("inferencepools", namespace, pool("tiny", namespace, model=cached("models"), decode=decode))
    wanted = ("key a of ConfigMap settings", "ConfigMap files is missing", "PersistentVolumeClaim models is missing")
    settled(api, namespace, "tiny")
    eventually(lambda: is_missing(api, namespace, *wanted))
    api.merge("configmaps", namespace, "settings", {"data": {"a": "1"}})
    create(api, namespace, "configmaps", "files", binaryData={"f": "eA=="})
    create_claim(api, namespace, "models")
    eventually(lambda: holds(ready_of(api, namespace)["reason"] == "RollingOut"))
    make_all_ready(api, namespace, "tiny")


@pytest.mark.parametrize("place", ["cache", "template"])
def test_an_edit_that_names_what_is_not_there_waits(site: Site, api: Api, namespace: str, place: str) -> None:
    """What runs goes on with its sizes, nothing of the edit is begun; the appearance begins it (Q15).

    A claim for the model's cache; a ConfigMap as a volume, and a ServiceAccount. A second edit, back to what was
    accepted, ends the wait as well.
    """
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    make_all_ready(api, namespace, "tiny")
    before, since = generations(api, namespace), site.cluster.audit.now()
    volume = {"name": "v", "configMap": {"name": "later"}}
    edit: Json = {"model": cached("later")}
    back: Json = {"model": {"id": "/models/tiny", "cache": None}}
    missing = ["PersistentVolumeClaim later"]
    if place == "template":
        edit = {"decode": {"template": {"volumes": [volume], "serviceAccountName": "runner"}}}
        back = {"decode": {"template": None}}
        missing = ["ConfigMap later", "ServiceAccount runner"]
    api.merge("inferencepools", namespace, "tiny", {"spec": edit})
    eventually(lambda: is_missing(api, namespace, *missing))
    assert generations(api, namespace) == before
    assert site.child_writes(since, {namespace}) == []
    api.merge("inferencepools", namespace, "tiny", {"spec": back})
    eventually(lambda: holds(ready_of(api, namespace)["status"] == "True"))
    assert site.child_writes(since, {namespace}) == []
    api.merge("inferencepools", namespace, "tiny", {"spec": edit})
    eventually(lambda: is_missing(api, namespace, *missing))
    if place == "template":
        create(api, namespace, "configmaps", "later")
        create(api, namespace, "serviceaccounts", "runner")
    else:
        create_claim(api, namespace, "later")

    def begun() -> None:
        mounted = [each["spec"]["template"]["spec"]["volumes"] for each in api.items("deployments", namespace, DECODE)]
        assert any("later" in str(volumes) for volumes in mounted)

    eventually(begun)


def test_a_quota_that_lets_no_pod_in_is_told(api: Api, namespace: str) -> None:
    """What the API server says of pods that nobody can make is in the condition."""
    create(api, namespace, "resourcequotas", "none", spec={"hard": {"pods": "0"}})
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    refused = "pods are forbidden: exceeded quota: none, requested: pods=1"

    def told() -> None:
        message = ready_of(api, namespace)["message"]
        assert all(f"{role} {refused}" in message for role in ("prefill", "decode", "router")), message

    eventually(told)
