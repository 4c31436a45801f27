"""Rotation of Secrets on a real API server: under the rights of the install manifest, in listed namespaces only."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import TYPE_CHECKING

import pytest

from e2e.chart import NAMESPACE, OPERATOR
from pdpool_api import names
from pdpool_operator import install
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.site import SMALL, holds, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("apart")]

CANARY = "CANARY-HF-8c1d"
SEEN_S = 60.0


def secret(value: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}, "stringData": {"HF_TOKEN": value}}


def with_token(namespace: str) -> Json:
    model = {"id": "/models/tiny", "tokenSecretRef": {"name": "hf", "key": "HF_TOKEN"}}
    return pool("tiny", namespace, model=model, prefill=SMALL, decode={**SMALL, "replicas": 1})


def may_read_secrets(site: Site, namespace: str) -> None:
    """The Role and RoleBinding that the chart renders for a namespace of `secretNamespaces`."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": f"{OPERATOR}-secrets", "namespace": namespace}
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": install.secret_rules()}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}],
    }
    site.cluster.apply([role, binding])


def template(api: Api, namespace: str, role: str) -> Json:
    (found,) = api.items("deployments", namespace, f"{names.LABEL_ROLE}={role}")
    answer: Json = found["spec"]["template"]
    return answer


def test_a_new_value_rolls_engines_where_secrets_may_be_read(site_apart: Site) -> None:
    """A missing Secret is named and awaited; a new value rolls, a label does not; the token is nowhere (Q105, Q15).

    In a namespace that is not listed nothing is read and the pool says so. Secrets are only ever got, by name.
    """
    site, api = site_apart, site_apart.api
    listed, other = site.namespace(), site.namespace()
    may_read_secrets(site, listed)
    since = site.cluster.audit.now()
    operator = site.start(f"--secret-namespace={listed}").wait_ready()
    try:
        for each in (listed, other):
            api.apply("inferencepools", each, with_token(each))
            settled(api, each, "tiny")

        def missing() -> None:
            ready = condition(api.get("inferencepools", listed, "tiny") or {}, "Ready")
            assert ready["reason"] == "MissingReference"
            assert "Secret hf is missing" in ready["message"]

        eventually(missing)
        api.create("secrets", listed, secret(CANARY))
        started = time.monotonic()
        eventually(lambda: holds(_reason(api, listed) == "RollingOut"), timeout_s=30)
        assert time.monotonic() - started < 30
        before = template(api, listed, "decode")
        assert not before["metadata"].get("annotations"), "what was missing and came rolls nothing"

        api.merge("secrets", listed, "hf", {"metadata": {"labels": {"touched": "yes"}}})
        api.create("secrets", other, secret(CANARY))
        time.sleep(20)
        assert template(api, listed, "decode") == before
        api.merge("secrets", listed, "hf", {"stringData": {"HF_TOKEN": f"{CANARY}-2"}})

        def rolled() -> str:
            for role in ("prefill", "decode"):
                assert template(api, listed, role) != before
            return str(template(api, listed, "decode")["metadata"]["annotations"][names.ANNOTATION_SECRETS_ROLLED])

        mark = eventually(rolled, timeout_s=SEEN_S)
        for guess in (CANARY, f"{CANARY}-2"):
            assert hashlib.sha256(guess.encode()).hexdigest()[:16] not in mark
        key = api.get("secrets", NAMESPACE, names.DIGEST_KEY_SECRET)
        assert key is not None
        assert len(base64.b64decode(key["data"]["key"])) == 32

        _an_edit_waits_for_its_secret(site, listed)
        valid = condition(api.get("inferencepools", other, "tiny") or {}, "SpecValid")
        assert valid["status"] == "True"
        assert f"may not read Secrets of namespace {other}" in valid["message"]
    finally:
        assert operator.stop() == 0
    kept = [api.get("inferencepools", listed, "tiny"), api.children(listed), _events(api, listed)]
    assert CANARY not in json.dumps(kept)
    assert CANARY not in operator.log.read_text()
    calls = [
        each for each in site.cluster.audit.entries(since) if each.user == site.user and each.resource == "secrets"
    ]
    assert {(each.verb, each.namespace) for each in calls} == {
        ("get", NAMESPACE),
        ("create", NAMESPACE),
        ("get", listed),
    }


def _an_edit_waits_for_its_secret(site: Site, namespace: str) -> None:
    """An edit of a live pool that names a Secret which is not there changes nothing until it is (Q15)."""
    api = site.api
    eventually(lambda: holds(_reason(api, namespace) == "RollingOut"))
    before, since = template(api, namespace, "decode"), site.cluster.audit.now()
    variable = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "later", "key": "k"}}}
    api.merge("inferencepools", namespace, "tiny", {"spec": {"decode": {"replicas": 2, "env": [variable]}}})

    def waits() -> None:
        found = api.get("inferencepools", namespace, "tiny") or {}
        ready = condition(found, "Ready")
        assert ready["observedGeneration"] == found["metadata"]["generation"]
        assert (ready["reason"], "Secret later" in ready["message"]) == ("MissingReference", True)
        assert condition(found, "SpecValid")["status"] == "True"
        assert found["status"]["decode"]["desiredReplicas"] == 1

    eventually(waits)
    assert site.child_writes(since, {namespace}) == []
    api.create("secrets", namespace, {"metadata": {"name": "later"}, "stringData": {"k": "v"}})
    eventually(lambda: holds(template(api, namespace, "decode") != before), timeout_s=SEEN_S)


def _reason(api: Api, namespace: str) -> str:
    return str(condition(api.get("inferencepools", namespace, "tiny") or {}, "Ready")["reason"])


def _events(api: Api, namespace: str) -> Json:
    found: Json = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return found
