"""The operator as a process, under the permissions of the install manifest, against a real API server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest

from pdpool_api import names, router_config
from tests.operator.harness import CHILD_PATHS, Api, Json, Operator, condition, eventually, pool
from tests.operator.site import CHILDREN, generations, make_all_ready, settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("operator")]

ROLES = ("router", "prefill", "decode")


def engine_deployments(api: Api, namespace: str, role: str) -> list[Json]:
    return api.items("deployments", namespace, f"{names.LABEL_ROLE}={role}")


@pytest.mark.usefixtures("operator")
def test_a_pool_becomes_children_that_belong_to_it(api: Api, namespace: str) -> None:
    """Three required fields make every child, owned and labelled, and leave nothing on the pool (Q04, Q19, Q21)."""
    body = pool("tiny", namespace)
    body["metadata"]["labels"] = {"argocd.argoproj.io/instance": "app"}
    body["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "app:pool"}
    api.apply("inferencepools", namespace, body, manager="gitops")
    stored = settled(api, namespace, "tiny")
    children = api.children(namespace)
    revision = stored["status"]["revision"]
    assert set(children) == {
        "serviceaccounts/tiny-router",
        "roles/tiny-router",
        "rolebindings/tiny-router",
        "configmaps/tiny-router",
        *(f"{kind}/tiny-{role}" for kind in ("networkpolicies", "poddisruptionbudgets") for role in ROLES),
        "services/tiny-router",
        "services/tiny-prefill",
        "services/tiny-decode",
        "deployments/tiny-router",
        f"deployments/tiny-prefill-{revision}",
        f"deployments/tiny-decode-{revision}",
    }
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == stored["metadata"]["uid"]
        assert owner["controller"] is True
        assert child["metadata"]["labels"][names.LABEL_POOL] == "tiny"
        assert "argocd" not in str(child["metadata"])
    assert children["services/tiny-prefill"]["spec"]["clusterIP"] == "None"
    assert children["services/tiny-router"]["spec"]["ports"][0]["port"] == 80
    file = router_config.parse(children["configmaps/tiny-router"]["data"][names.ROUTER_CONFIG_FILE])
    assert file.endpoints.pods is not None
    assert file.endpoints.pods.uid == stored["metadata"]["uid"]
    assert stored["status"]["url"] == f"http://tiny-router.{namespace}.svc"
    assert "finalizers" not in stored["metadata"]
    assert set(stored["metadata"]["annotations"]) == {"argocd.argoproj.io/tracking-id"}
    for entry in stored["metadata"]["managedFields"]:
        assert entry["manager"] == "gitops" or "f:spec" not in entry["fieldsV1"], entry
    # The gitops tool's next sync changes nothing.
    again = api.apply("inferencepools", namespace, body, manager="gitops")
    assert again["metadata"]["generation"] == stored["metadata"]["generation"]


@pytest.mark.usefixtures("operator")
def test_what_others_change_or_delete_comes_back(api: Api, namespace: str) -> None:
    """Children deleted by hand are back within 10 s; fields and sizes changed by hand are corrected (Q13, Q15)."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    stored = settled(api, namespace, "tiny")
    decode = f"tiny-decode-{stored['status']['revision']}"
    before = api.children(namespace)
    for key in before:
        if key not in ("services/tiny-router", f"deployments/{decode}"):
            api.delete(*_in(namespace, key))
    port = [{"op": "replace", "path": "/spec/ports/0/port", "value": 81}]
    path = api.path("services", namespace, "tiny-router")
    api.request("PATCH", path, port, content_type="application/json-patch+json")
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other:1"}]
    path = api.path("deployments", namespace, decode)
    api.request("PATCH", path, image, content_type="application/json-patch+json")
    api.merge("deployments", namespace, decode, {"spec": {"replicas": 5, "paused": True}})
    api.merge("deployments", namespace, decode, {"metadata": {"labels": {names.LABEL_POOL: None}}})
    api.merge("deployments", namespace, decode, {"metadata": {"ownerReferences": None}})

    def restored() -> None:
        after = api.children(namespace)
        assert set(after) == set(before)
        for key, child in after.items():
            if key not in ("services/tiny-router", f"deployments/{decode}"):
                assert child["metadata"]["uid"] != before[key]["metadata"]["uid"]
        assert after["services/tiny-router"]["spec"] == before["services/tiny-router"]["spec"]
        live = after[f"deployments/{decode}"]
        assert live["spec"]["replicas"] == 1
        assert not live["spec"].get("paused")
        container = live["spec"]["template"]["spec"]["containers"][0]
        was = before[f"deployments/{decode}"]["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == was["image"]
        assert live["metadata"]["labels"] == before[f"deployments/{decode}"]["metadata"]["labels"]

    eventually(restored, timeout_s=20)


def _in(namespace: str, key: str) -> tuple[str, str, str]:
    kind, _, name = key.partition("/")
    return kind, namespace, name


@pytest.mark.usefixtures("operator")
def test_a_child_whose_owner_was_taken_off_is_taken_back(api: Api, namespace: str) -> None:
    """A child that somebody orphaned is recognised by what was applied, and owned again; that is no name conflict."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    settled(api, namespace, "tiny")
    before = api.children(namespace)
    for key in before:
        api.merge(*_in(namespace, key), {"metadata": {"ownerReferences": None}})

    def taken_back() -> None:
        after = api.children(namespace)
        assert set(after) == set(before)
        for key, child in after.items():
            assert child["metadata"]["uid"] == before[key]["metadata"]["uid"]

    eventually(taken_back, timeout_s=20)


@pytest.mark.usefixtures("operator")
def test_objects_of_others_are_never_touched(api: Api, namespace: str) -> None:
    """Objects that only share a child's name stay as they are, and the pool says so until they are gone."""
    foreign = {"metadata": {"name": "tiny-router"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "x"}}}
    service = api.create("services", namespace, foreign)
    account = api.create("serviceaccounts", namespace, {"metadata": {"name": "tiny-router"}})
    api.apply("inferencepools", namespace, pool("tiny", namespace))

    def conflicted() -> Json:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        ready = condition(found, "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NameConflict")
        return found

    found = eventually(conflicted)
    message = condition(found, "Ready")["message"]
    assert "Service tiny-router" in message
    assert "ServiceAccount tiny-router" in message
    assert condition(found, "Stalled")["status"] == "True"
    for kind, before in (("services", service), ("serviceaccounts", account)):
        after = api.get(kind, namespace, "tiny-router")
        assert after is not None
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        api.delete(kind, namespace, "tiny-router")

    def freed() -> None:
        after = api.get("inferencepools", namespace, "tiny")
        assert after is not None
        assert "Stalled" not in {each["type"] for each in after["status"]["conditions"]}
        assert condition(after, "Ready")["reason"] != "NameConflict"

    eventually(freed)


@pytest.mark.usefixtures("operator")
def test_status_follows_the_pods(api: Api, namespace: str) -> None:
    """Ready is True only when every desired replica of this generation is available, and says why when it is not."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, prefill={"hardware": "cpu", "replicas": 2}))
    stored = settled(api, namespace, "tiny")
    ready = condition(stored, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "RollingOut")
    assert "prefill" in ready["message"]
    stored = make_all_ready(api, namespace, "tiny")
    assert condition(stored, "Ready")["reason"] == "Available"
    assert condition(stored, "Progressing")["status"] == "False"
    assert condition(stored, "SpecValid")["status"] == "True"
    assert stored["status"]["prefill"]["ready"] == "2/2"
    assert stored["status"]["router"] == {"replicas": 1, "readyReplicas": 1}
    assert all(each["observedGeneration"] == 1 for each in stored["status"]["conditions"])
    since = condition(stored, "SpecValid")["lastTransitionTime"]
    (victim, *_) = api.items("pods", namespace, f"{names.LABEL_ROLE}=prefill")
    api.set_ready(namespace, victim["metadata"]["name"], ready=False)

    def reason(wanted: str, message: str = "") -> Callable[[], Json]:
        def look() -> Json:
            found = api.get("inferencepools", namespace, "tiny")
            assert found is not None
            assert condition(found, "Ready")["reason"] == wanted
            assert message in condition(found, "Ready")["message"]
            return found

        return look

    found = eventually(reason("ReplicasNotReady", "prefill 2/2 updated 1/2 ready"))
    assert condition(found, "SpecValid")["lastTransitionTime"] == since
    zero = {"hardware": "cpu", "replicas": 0}
    api.merge("inferencepools", namespace, "tiny", {"spec": {"prefill": zero, "decode": zero}})
    found = eventually(reason("ScaledToZero"))
    assert condition(found, "Ready")["status"] == "True"


@pytest.mark.usefixtures("operator")
def test_a_missing_secret_is_named(api: Api, namespace: str) -> None:
    """A pod that waits for a Secret makes the pool say which, in the pod's own words (Q15)."""
    variable = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "k"}}}
    api.apply("inferencepools", namespace, pool("tiny", namespace, prefill={"hardware": "cpu", "env": [variable]}))
    settled(api, namespace, "tiny")
    (pod,) = eventually(lambda: _one_pod(api, namespace, "prefill"))
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}
    container = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": waiting}
    status = {"phase": "Pending", "containerStatuses": [container]}
    api.merge("pods", namespace, pod["metadata"]["name"], {"status": status}, subresource="status")

    def named() -> None:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "Ready")["reason"] == "MissingReference"
        assert 'secret "hf" not found' in condition(found, "Ready")["message"]

    eventually(named)
    make_all_ready(api, namespace, "tiny")


def _one_pod(api: Api, namespace: str, role: str) -> list[Json]:
    pods = api.items("pods", namespace, f"{names.LABEL_ROLE}={role}")
    assert len(pods) == 1
    return pods


@pytest.mark.usefixtures("operator")
def test_a_pool_with_a_very_large_variable_is_carried_out_and_deleted(api: Api, namespace: str) -> None:
    """A chat template of 300,000 bytes for both roles: nothing keeps a copy that passes a limit (Q01)."""
    text = "".join(f"{number:x}" for number in range(70_000))[:300_000]
    large = {"env": [{"name": "TEMPLATE", "value": text}]}
    api.apply("inferencepools", namespace, pool("tiny", namespace, engine=large))

    def made() -> None:
        assert len(api.items("deployments", namespace, names.LABEL_REVISION)) == 2

    eventually(made, timeout_s=30)
    found = settled(api, namespace, "tiny")
    assert condition(found, "SpecValid")["status"] == "True"
    assert sum(map(len, (found["metadata"].get("annotations") or {}).values())) < 262_144
    api.delete("inferencepools", namespace, "tiny")

    def gone() -> None:
        assert api.get("inferencepools", namespace, "tiny") is None
        assert not api.children(namespace)

    eventually(gone, timeout_s=30)


@pytest.mark.usefixtures("operator")
def test_an_edit_that_is_refused_changes_nothing_that_runs(site: Site, api: Api, namespace: str) -> None:
    """A live pool whose edit contradicts itself keeps its children as they are and says what is refused."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    settled(api, namespace, "tiny")
    before = generations(api, namespace)
    since = site.cluster.audit.now()
    prefill = {"hardware": "cpu", "args": ["--dtype=float16"]}
    api.merge("inferencepools", namespace, "tiny", {"spec": {"prefill": prefill}})

    def refused() -> Json:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "SpecValid")["status"] == "False"
        return found

    found = eventually(refused)
    for kind in ("Ready", "SpecValid", "Stalled"):
        assert condition(found, kind)["reason"] == "IncompatibleRoles"
        assert "float16" in condition(found, kind)["message"]
    assert found["status"]["observedGeneration"] == 2
    assert generations(api, namespace) == before
    assert site.child_writes(since, {namespace}) == []


@pytest.mark.usefixtures("operator")
def test_a_spec_that_the_api_server_refuses_in_part_begins_nothing(site: Site, api: Api, namespace: str) -> None:
    """A Deployment that cannot be stored makes the whole spec invalid: a new pool gets no pod, a live one no change."""
    more = {"hardware": "cpu", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
    api.apply("inferencepools", namespace, pool("new", namespace, decode=more))
    api.apply("inferencepools", namespace, pool("live", namespace))
    settled(api, namespace, "live")
    before = generations(api, namespace)
    since = site.cluster.audit.now()
    edit = {"model": {"id": "/models/other"}, "decode": more}
    api.merge("inferencepools", namespace, "live", {"spec": edit})

    def refused(name: str) -> None:
        found = api.get("inferencepools", namespace, name)
        assert found is not None
        assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
        for kind, word in (("Ready", "False"), ("SpecValid", "False"), ("Stalled", "True")):
            said = condition(found, kind)
            assert (said["status"], said["reason"]) == (word, "InvalidSpec")
            assert "resources.requests" in said["message"]
            assert "less than or equal to cpu limit" in said["message"]

    for name in ("new", "live"):
        eventually(lambda name=name: refused(name))  # type: ignore[misc]
    assert generations(api, namespace) == before
    assert site.child_writes(since, {namespace}) == []


@pytest.mark.usefixtures("operator")
def test_a_new_revision_takes_over_whole(api: Api, namespace: str) -> None:
    """A change of what both roles share brings a second set of Deployments; the first goes when that is available."""
    api.apply("inferencepools", namespace, pool("tiny", namespace))
    settled(api, namespace, "tiny")
    old = make_all_ready(api, namespace, "tiny")["status"]["revision"]
    before = engine_deployments(api, namespace, "decode")
    model = {"id": "/models/tiny", "revision": "v2"}
    api.merge("inferencepools", namespace, "tiny", {"spec": {"model": model}})

    def both() -> Json:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert found["status"]["revision"] != old
        for role in ("prefill", "decode"):
            assert len(engine_deployments(api, namespace, role)) == 2
        return found

    found = eventually(both)
    new = found["status"]["revision"]
    assert condition(found, "Ready")["reason"] == "RollingOut"
    after = {each["metadata"]["uid"]: each["spec"]["selector"] for each in engine_deployments(api, namespace, "decode")}
    assert all(after[each["metadata"]["uid"]] == each["spec"]["selector"] for each in before)
    # One role of the new revision is not enough: a pair is never mixed.
    api.make_ready(namespace, f"{names.LABEL_REVISION}={new},{names.LABEL_ROLE}=decode")
    time.sleep(2)
    assert len(engine_deployments(api, namespace, "decode")) == 2
    api.make_ready(namespace, f"{names.LABEL_REVISION}={new}")

    def alone() -> None:
        for role in ("prefill", "decode"):
            found = engine_deployments(api, namespace, role)
            assert [each["metadata"]["labels"][names.LABEL_REVISION] for each in found] == [new]

    eventually(alone)
    make_all_ready(api, namespace, "tiny")


@pytest.mark.usefixtures("operator")
def test_only_pools_of_our_group_are_served(site: Site, api: Api, namespace: str) -> None:
    """InferencePools of the Gateway API Inference Extension are never written, nor do they get children (Q23)."""
    groups = ("inference.networking.k8s.io", "inference.networking.x-k8s.io")
    for group in groups:
        site.cluster.apply([_foreign_crd(group)])
        site.cluster.wait_established(f"inferencepools.{group}")
    since = site.cluster.audit.now()
    for group in groups:
        body = {"apiVersion": f"{group}/v1", "kind": "InferencePool", "metadata": {"name": "demo"}, "spec": {}}
        path = f"/apis/{group}/v1/namespaces/{namespace}/inferencepools"
        eventually(lambda path=path, body=body: _created(api, path, body))  # type: ignore[misc]
    api.apply("inferencepools", namespace, pool("demo", namespace))
    stored = settled(api, namespace, "demo")
    for child in api.children(namespace).values():
        assert child["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]
    for entry in site.cluster.audit.entries(since):
        assert entry.user != site.user or entry.group not in groups


def _created(api: Api, path: str, body: Json) -> None:
    try:
        api.request("POST", path, body)
    except httpx.HTTPStatusError as error:  # a new kind is not served at once
        raise AssertionError(str(error)) from error


def _foreign_crd(group: str) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"inferencepools.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, tests only"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "InferencePool", "plural": "inferencepools", "singular": "inferencepool"},
            "versions": [version],
        },
    }


@pytest.mark.usefixtures("operator")
def test_a_pool_being_deleted_gets_nothing(site: Site, api: Api, namespace: str) -> None:
    """While a pool waits for its deletion, no child of it is created or changed, whatever happens to them."""
    body = pool("tiny", namespace)
    body["metadata"]["finalizers"] = ["example.com/held"]
    api.apply("inferencepools", namespace, body)
    settled(api, namespace, "tiny")
    api.delete("inferencepools", namespace, "tiny")
    time.sleep(1)
    since = site.cluster.audit.now()
    api.delete("services", namespace, "tiny-router")
    api.merge("deployments", namespace, "tiny-router", {"spec": {"replicas": 3}})
    time.sleep(3)
    assert site.child_writes(since, {namespace}) == []
    api.merge("inferencepools", namespace, "tiny", {"metadata": {"finalizers": None}})
    eventually(lambda: _none_left(api, namespace))


def _none_left(api: Api, namespace: str) -> None:
    assert api.children(namespace) == {}


@pytest.mark.usefixtures("operator")
def test_the_last_of_many_quick_edits_wins(api: Api, operator: Operator, namespace: str) -> None:
    """Twenty edits of each pool within seconds all end in the last one, and probes are answered meanwhile (Q06).

    Scaled to 4 pools; 100 in the case.
    """
    pools = [f"p{number}" for number in range(4)]
    for name in pools:
        api.apply("inferencepools", namespace, pool(name, namespace, decode=_numbered(0)))
    for number in range(1, 21):
        for name in pools:
            api.merge("inferencepools", namespace, name, {"spec": {"decode": _numbered(number)}})
        if number % 5 == 0:
            assert operator.answer("/livez").status_code == httpx.codes.OK

    def last() -> None:
        for name in pools:
            found = api.get("inferencepools", namespace, name)
            assert found is not None
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
        for deployment in engine_deployments(api, namespace, "decode"):
            env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
            assert {"name": "N", "value": "20"} in env

    eventually(last)
    assert len(engine_deployments(api, namespace, "decode")) == len(pools)


def _numbered(number: int) -> Json:
    return {"hardware": "cpu", "replicas": 0, "env": [{"name": "N", "value": str(number)}]}


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("name", ["a.b", "1st", "x" * 63, "a-" + "b" * 60 + "c"])
def test_any_valid_pool_name_works(api: Api, namespace: str, name: str) -> None:
    """Dots, a leading digit and 63 characters are names of pools; their Services and labels stay valid."""
    api.apply("inferencepools", namespace, pool(name, namespace, decode={"hardware": "cpu", "replicas": 0}))
    settled(api, namespace, name)
    children = api.children(namespace)
    assert len(children) == CHILDREN
    assert {key.partition("/")[0] for key in children} == set(CHILD_PATHS)
