"""Rollouts against a real API server and its controllers; tests say of pods what a kubelet would."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from pdpool_api import names
from tests.operator.harness import Api, Json, condition, eventually, pool
from tests.operator.site import make_all_ready, settled

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator"), pytest.mark.xdist_group("pools")]

DECODE = f"{names.LABEL_ROLE}=decode"


def serving(api: Api, namespace: str, selector: str = DECODE) -> list[Json]:
    """Pods that a router would choose."""
    found = []
    for pod in api.items("pods", namespace, selector):
        metadata = pod["metadata"]
        said = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
        aside = names.ANNOTATION_DRAINING in metadata.get("annotations", {}) or "deletionTimestamp" in metadata
        if said.get("Ready") == "True" and not aside:
            found.append(pod)
    return found


def become_ready(api: Api, namespace: str, selector: str) -> None:
    for pod in api.items("pods", namespace, selector):
        with contextlib.suppress(httpx.HTTPStatusError):  # it went meanwhile
            api.set_ready(namespace, pod["metadata"]["name"])


def revision_of(api: Api, namespace: str) -> str:
    found = api.get("inferencepools", namespace, "tiny")
    assert found is not None
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    return str(found["status"]["revision"])


def edit(api: Api, namespace: str, spec: Json) -> None:
    api.merge("inferencepools", namespace, "tiny", {"spec": spec})


def watched(seconds: float, look: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        time.sleep(0.3)


def test_edits_in_a_row_never_take_what_serves(api: Api, namespace: str) -> None:
    """Good A, bad B, bad C and back to A: at every look two of three decode pods serve, and A is whole again (Q09).

    The case's 5 s between the edits are 4.
    """
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode={"hardware": "cpu", "replicas": 3}))
    settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    first = eventually(lambda: revision_of(api, namespace))
    good = f"{names.LABEL_REVISION}={first}"

    def look() -> None:
        become_ready(api, namespace, good)
        assert len(serving(api, namespace)) >= 2

    for model in ("b", "c"):
        edit(api, namespace, {"model": {"id": "/models/tiny", "revision": model}})
        watched(4, look)
    assert {each["metadata"]["labels"][names.LABEL_REVISION] for each in serving(api, namespace)} == {first}
    edit(api, namespace, {"model": {"id": "/models/tiny", "revision": None}})
    watched(2, look)

    def whole() -> None:
        look()
        assert len(serving(api, namespace)) == 3
        left = api.items("deployments", namespace, DECODE)
        assert [each["metadata"]["labels"][names.LABEL_REVISION] for each in left] == [first]
        pods = api.items("pods", namespace, f"{names.LABEL_ROLE}!=router")
        assert {each["metadata"]["labels"][names.LABEL_REVISION] for each in pods} == {first}
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "Ready")["status"] == "True"

    eventually(whole)


def test_what_one_role_needs_rolls_that_role_alone(api: Api, namespace: str) -> None:
    """A variable of decode replaces decode's pods inside their Deployment; the router's settings replace no engine."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode={"hardware": "cpu", "replicas": 2}))
    settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    prefill = {each["metadata"]["uid"] for each in api.items("pods", namespace, f"{names.LABEL_ROLE}=prefill")}
    decode = {each["metadata"]["uid"] for each in api.items("pods", namespace, DECODE)}
    before = [each["metadata"]["uid"] for each in api.items("deployments", namespace, DECODE)]
    edit(api, namespace, {"router": {"drainSeconds": 9}})
    make_all_ready(api, namespace, "tiny")
    assert {each["metadata"]["uid"] for each in api.items("pods", namespace, DECODE)} == decode
    edit(api, namespace, {"decode": {"env": [{"name": "X", "value": "1"}]}})

    def replaced() -> None:
        become_ready(api, namespace, names.LABEL_POOL)
        assert serving(api, namespace)
        pods = {each["metadata"]["uid"] for each in serving(api, namespace)}
        assert len(pods) == 2
        assert not pods & decode

    eventually(replaced)
    assert [each["metadata"]["uid"] for each in api.items("deployments", namespace, DECODE)] == before
    assert {each["metadata"]["uid"] for each in api.items("pods", namespace, f"{names.LABEL_ROLE}=prefill")} == prefill


def test_what_was_accepted_goes_on_under_a_refused_edit(api: Api, namespace: str) -> None:
    """While an edit is refused, sizes, address and deleted children of the spec before it are still kept."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode={"hardware": "cpu", "replicas": 2}))
    settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    (before,) = api.items("deployments", namespace, DECODE)
    served_at = f"http://tiny-router.{namespace}.svc"
    other_port = {"service": {"port": 8080}}
    edit(api, namespace, {"decode": {"replicas": 3, "args": ["--dtype=float16"]}, "router": other_port})

    def refused() -> None:
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "SpecValid")["reason"] == "IncompatibleRoles"
        assert found["status"]["decode"]["desiredReplicas"] == 2
        assert found["status"]["url"] == served_at

    eventually(refused)
    api.merge("deployments", namespace, before["metadata"]["name"], {"spec": {"replicas": 4}})
    api.delete("services", namespace, "tiny-decode")

    def corrected() -> None:
        (after,) = api.items("deployments", namespace, DECODE)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"]["replicas"] == 2
        assert after["spec"]["template"] == before["spec"]["template"]
        assert api.get("services", namespace, "tiny-decode") is not None

    eventually(corrected)
    edit(api, namespace, {"decode": {"args": []}})

    def accepted() -> None:
        (after,) = api.items("deployments", namespace, DECODE)
        assert after["spec"]["replicas"] == 3
        records = api.request("GET", f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions")["items"]
        assert len(records) == 1
        assert (api.get("inferencepools", namespace, "tiny") or {})["status"]["url"] == f"{served_at}:8080"

    eventually(accepted)


def test_a_smaller_size_marks_a_pod_and_removes_just_that(api: Api, namespace: str) -> None:
    """The pod that leaves is marked first; where no router has a request of it, it goes after moments, and no other."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode={"hardware": "cpu", "replicas": 3}))
    settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    edit(api, namespace, {"decode": {"replicas": 2}})

    def marked() -> str:
        pods = api.items("pods", namespace, DECODE)
        found = [each for each in pods if names.ANNOTATION_DRAINING in each["metadata"].get("annotations", {})]
        assert len(found) == 1
        return str(found[0]["metadata"]["uid"])

    victim = eventually(marked)
    (deployment,) = api.items("deployments", namespace, DECODE)
    assert deployment["spec"]["replicas"] == 3

    def gone() -> None:
        pods = [each for each in api.items("pods", namespace, DECODE) if "deletionTimestamp" not in each["metadata"]]
        assert len(pods) == 2
        assert victim not in {each["metadata"]["uid"] for each in pods}
        assert len(serving(api, namespace)) == 2

    eventually(gone)


def test_a_rollout_that_cannot_go_on_says_why(api: Api, namespace: str) -> None:
    """An image that cannot be pulled makes Progressing False with the pod's reason, and the old pods go on."""
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode={"hardware": "cpu", "replicas": 2}))
    settled(api, namespace, "tiny")
    make_all_ready(api, namespace, "tiny")
    first = eventually(lambda: revision_of(api, namespace))
    edit(api, namespace, {"engine": {"image": "registry.invalid/none:1"}})
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    container = {"name": "engine", "image": "registry.invalid/none:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "containerStatuses": [{**container, "state": waiting}]}

    def stalled() -> None:
        for pod in api.items("pods", namespace, f"{DECODE},{names.LABEL_REVISION}!={first}"):
            api.merge("pods", namespace, pod["metadata"]["name"], {"status": status}, subresource="status")
        found = api.get("inferencepools", namespace, "tiny")
        assert found is not None
        assert condition(found, "Progressing")["reason"] == "RolloutStalled"
        assert "ImagePullBackOff" in condition(found, "Progressing")["message"]

    eventually(stalled)
    assert len(serving(api, namespace, f"{DECODE},{names.LABEL_REVISION}={first}")) == 1


KEPT = "tests/kept"


def test_a_cap_holds_over_both_roles_with_surges_and_with_pods_that_leave(api: Api, namespace: str) -> None:
    """Throughout a rollout no more accelerators are held than `maxGpus`: those of surges and of leaving pods count.

    Without the cap the roles would hold five; the rollout comes to its end within four.
    """
    rollout = {"maxSurge": 1, "maxUnavailable": 1}
    roles = {"prefill": {"rollout": rollout}, "decode": {"replicas": 2, "rollout": rollout}}
    api.apply("inferencepools", namespace, pool("tiny", namespace, maxGpus=4, **roles))
    make_all_ready(api, namespace, "tiny")
    first = eventually(lambda: revision_of(api, namespace))
    edit(api, namespace, {"model": {"servedNames": ["other"]}})
    held: list[int] = []
    leaving: set[str] = set()

    def rolled() -> None:
        pods = api.items("pods", namespace, names.LABEL_REVISION)
        # Kubernetes ends a pod that is on no node and is being deleted, whatever finalizers keep it: it holds nothing.
        held.append(sum(1 for pod in pods if pod["status"].get("phase") not in {"Failed", "Succeeded"}))
        for pod in pods:
            _stand_in_kubelet(api, namespace, pod, leaving)
        become_ready(api, namespace, names.LABEL_POOL)
        assert revision_of(api, namespace) != first
        left = {each["metadata"]["labels"][names.LABEL_REVISION] for each in pods}
        assert left == {revision_of(api, namespace)}
        assert len(serving(api, namespace)) == 2

    eventually(rolled, timeout_s=120)
    assert max(held) == 4
    assert leaving, "no pod was seen leaving"


def _stand_in_kubelet(api: Api, namespace: str, pod: Json, leaving: set[str]) -> None:
    """A pod ends some moments after its deletion, as it would on a node."""
    name, metadata = pod["metadata"]["name"], pod["metadata"]
    with contextlib.suppress(httpx.HTTPStatusError):  # it went meanwhile
        if "deletionTimestamp" not in metadata and KEPT not in metadata.get("finalizers", ()):
            api.merge("pods", namespace, name, {"metadata": {"finalizers": [KEPT]}})
        elif "deletionTimestamp" in metadata and name in leaving:
            api.merge("pods", namespace, name, {"metadata": {"finalizers": None}})
        elif "deletionTimestamp" in metadata:
            leaving.add(name)


def test_a_revision_follows_a_bad_change_of_one_role(api: Api, namespace: str) -> None:
    """A variable with which decode never starts, and then another revision without a spare replica: it comes up.

    The Deployment that was stopped half-way goes back to the template that serves, which takes just the pods that fail.
    """
    decode = {"hardware": "cpu", "replicas": 3}
    api.apply("inferencepools", namespace, pool("tiny", namespace, decode=decode))
    make_all_ready(api, namespace, "tiny")
    good = {each["metadata"]["uid"] for each in api.items("pods", namespace, DECODE)}
    edit(api, namespace, {"decode": {"env": [{"name": "BAD", "value": "1"}]}})

    def stuck() -> None:
        pods = api.items("pods", namespace, DECODE)
        assert len(pods) == 3
        assert len({each["metadata"]["uid"] for each in pods} & good) == 2

    eventually(stuck)
    first = eventually(lambda: revision_of(api, namespace))
    edit(api, namespace, {"model": {"servedNames": ["other"]}, "decode": {"env": []}})

    def rolled() -> None:
        pods = api.items("pods", namespace, DECODE)
        bad = [each for each in pods if '"BAD"' in str(each["spec"]["containers"][0]["env"]).replace("'", '"')]
        for pod in api.items("pods", namespace, names.LABEL_POOL):
            if pod["metadata"]["uid"] not in {each["metadata"]["uid"] for each in bad}:
                with contextlib.suppress(httpx.HTTPStatusError):  # it went meanwhile
                    api.set_ready(namespace, pod["metadata"]["name"])
        served.append(len(serving(api, namespace)))
        assert revision_of(api, namespace) != first
        assert {each["metadata"]["labels"][names.LABEL_REVISION] for each in pods} == {revision_of(api, namespace)}
        assert served[-1] == 3

    served: list[int] = []
    eventually(rolled, timeout_s=120)
    assert min(served) >= 2
