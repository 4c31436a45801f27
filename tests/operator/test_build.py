"""The children of a pool, as they are built from its spec."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names, router_config
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool
from pdpool_operator import build, ownership
from pdpool_operator.records import Child, Desired, Images, Refusal

IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="pdpool-router:1")


def desired(raw: dict[str, Any], **spec: Any) -> Desired:
    found = build.desired(InferencePool.parse(_with(raw, spec)), IMAGES)
    assert isinstance(found, Desired), found
    return found


def _with(raw: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(raw)
    for path, value in spec.items():
        holder = result["spec"]
        *steps, last = path.split("__")
        for step in steps:
            holder = holder.setdefault(step, {})
        holder[last] = value
    return result


def child(of: Desired, kind: str, part: str) -> dict[str, Any]:
    (found,) = [each for each in of.children if each.resource.kind == kind and f"tiny-{part}" in each.name]
    return dict(ownership.without_none(found.body))


def engine(of: Desired, role: str) -> dict[str, Any]:
    return child(of, "Deployment", role)


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return dict(deployment["spec"]["template"]["spec"])


def test_every_child_is_owned_and_labelled(raw_pool: dict[str, Any]) -> None:
    """Each child names the pool's uid as its controller, and carries the seven labels and nothing of the pool's own."""
    for each in desired(raw_pool).children:
        metadata = each.body["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert owner["uid"] == raw_pool["metadata"]["uid"]
        assert owner["controller"] is True
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "pdpool"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "pdpool"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "tiny"
        assert metadata["labels"][names.LABEL_POOL] == "tiny"
        assert metadata["labels"][names.LABEL_ROLE] in {"router", "prefill", "decode"}
        assert "argocd" not in json.dumps(each.body)


def test_the_same_pool_is_built_the_same(raw_pool: dict[str, Any]) -> None:
    """What is built depends on the spec alone: not on status, resourceVersion or labels of the pool."""
    other = copy.deepcopy(raw_pool)
    other["metadata"].update(resourceVersion="999", labels={}, annotations={}, generation=9)
    other["status"] = {"observedGeneration": 3}
    digests = [ownership.digest(ownership.without_none(each.body)) for each in desired(raw_pool).children]
    again = [ownership.digest(ownership.without_none(each.body)) for each in desired(other).children]
    assert digests == again


def test_selectors_hold_the_revision_and_match_the_pods(raw_pool: dict[str, Any]) -> None:
    """An engine Deployment selects pods of its pool, role and revision, and its template carries those labels."""
    found = desired(raw_pool)
    for role in ("prefill", "decode"):
        spec = engine(found, role)["spec"]
        selector = spec["selector"]["matchLabels"]
        assert selector == {names.LABEL_POOL: "tiny", names.LABEL_ROLE: role, names.LABEL_REVISION: found.revision}
        assert selector.items() <= spec["template"]["metadata"]["labels"].items()
        headless = child(found, "Service", role)["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["selector"].items() <= selector.items()


def test_replicas_are_always_written(raw_pool: dict[str, Any]) -> None:
    """Every Deployment says its size, the default of 1 and zero included."""
    found = desired(raw_pool, decode__replicas=0)
    assert engine(found, "prefill")["spec"]["replicas"] == 2
    assert engine(found, "decode")["spec"]["replicas"] == 0
    assert child(found, "Deployment", "router")["spec"]["replicas"] == 1
    assert found.replicas == {Role.ROUTER: 1, Role.PREFILL: 2, Role.DECODE: 0}


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"model__revision": "v2"}, True),
        ({"engine__image": "vllm/vllm-openai:v0.32.0"}, True),
        ({"model__servedNames": ["other"]}, True),
        ({"engine__args": ["--dtype=bfloat16"]}, True),
        ({"decode__replicas": 5}, False),
        ({"decode__args": ["--max-num-seqs=8"]}, False),
        ({"transfer__leaseSeconds": 12}, False),
        ({"transfer__onFailure": "Recompute"}, False),
        ({"router__replicas": 3}, False),
        ({"prefill__env": [{"name": "A", "value": "1"}]}, False),
    ],
)
def test_the_revision_is_of_what_roles_share(raw_pool: dict[str, Any], change: dict[str, Any], *, rolls: bool) -> None:
    """A change of what prefill and decode must share is a new revision; every other change is not."""
    assert (desired(raw_pool, **change).revision != desired(raw_pool).revision) is rolls


@pytest.mark.parametrize("change", [{"router__replicas": 3}, {"router__image": "r:2"}, {"router__drainSeconds": 5}])
def test_router_settings_leave_engines_alone(raw_pool: dict[str, Any], change: dict[str, Any]) -> None:
    """A change of the router's settings changes no engine Deployment."""
    before, after = desired(raw_pool), desired(raw_pool, **change)
    for role in ("prefill", "decode"):
        assert engine(before, role) == engine(after, role)


def test_a_change_of_the_router_file_rolls_no_router(raw_pool: dict[str, Any]) -> None:
    """The router reloads its file, so nothing of it stands in the pods' template."""
    before, after = desired(raw_pool), desired(raw_pool, model__servedNames=["other"])
    assert child(before, "ConfigMap", "router") != child(after, "ConfigMap", "router")
    assert child(before, "Deployment", "router") == child(after, "Deployment", "router")


def test_the_router_file_is_one_that_the_router_reads(raw_pool: dict[str, Any]) -> None:
    """The ConfigMap holds a valid configuration that names the pool by uid."""
    text = child(desired(raw_pool), "ConfigMap", "router")["data"][names.ROUTER_CONFIG_FILE]
    config = router_config.parse(text)
    assert config.model.served_names == ("tiny",)
    assert config.endpoints.pods is not None
    assert config.endpoints.pods.uid == raw_pool["metadata"]["uid"]


def test_the_router_meets_the_restricted_standard(raw_pool: dict[str, Any]) -> None:
    """Non-root, read-only root, no capability, no escalation, default seccomp profile, no hostPath."""
    pod = pod_of(child(desired(raw_pool), "Deployment", "router"))
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["runAsNonRoot"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all("hostPath" not in volume for volume in pod["volumes"])


def test_a_leaving_router_has_time_to_drain(raw_pool: dict[str, Any]) -> None:
    """PreStop waits 5 s first, and the grace period covers it and the drain."""
    pod = pod_of(child(desired(raw_pool, router__drainSeconds=60), "Deployment", "router"))
    assert pod["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    assert pod["terminationGracePeriodSeconds"] > 65


def test_a_leaving_engine_has_time_to_drain(raw_pool: dict[str, Any]) -> None:
    """The grace period exceeds the drain and the engine's own shutdown, which is longer than a lease on prefill."""
    found = desired(raw_pool, prefill__drainSeconds=15, transfer__leaseSeconds=12)
    assert pod_of(engine(found, "prefill"))["terminationGracePeriodSeconds"] > 15 + 12 + 5
    assert pod_of(engine(found, "decode"))["terminationGracePeriodSeconds"] > 300 + 10


def test_only_the_template_reaches_the_pods(raw_pool: dict[str, Any]) -> None:
    """Labels and annotations of spec.<role>.template reach that role's pods; ours win over them."""
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "x"}}
    found = desired(raw_pool, prefill__template={"metadata": metadata})
    template = engine(found, "prefill")["spec"]["template"]["metadata"]
    assert template["labels"]["team"] == "a"
    assert template["annotations"] == {"note": "x"}
    other = engine(found, "decode")["spec"]["template"]["metadata"]
    assert "team" not in other["labels"]
    assert "annotations" not in other
    assert "team" not in engine(found, "prefill")["metadata"]["labels"]


def test_mounts_and_security_context_of_the_author_are_taken(raw_pool: dict[str, Any]) -> None:
    """Volumes, mounts and the security context of the template stand in the pod, beside ours."""
    template = {
        "volumes": [{"name": "models", "hostPath": {"path": "/models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "securityContext": {"runAsUser": 7},
    }
    pod = pod_of(engine(desired(raw_pool, decode__template=template), "decode"))
    assert [volume["name"] for volume in pod["volumes"]] == ["pdpool-shm", "models"]
    (container,) = pod["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/models"]
    assert container["securityContext"] == {"runAsUser": 7}
    assert container["name"] == "engine"


@pytest.mark.parametrize(
    "template",
    [
        {"volumes": [{"name": "m", "emptyDir": {}}], "volumeMounts": [{"name": "m", "mountPath": "/dev/shm"}]},
        {"volumes": [{"name": "m", "emptyDir": {}}], "volumeMounts": [{"name": "m", "mountPath": "/dev//shm/"}]},
    ],
)
def test_an_author_may_provide_shared_memory(raw_pool: dict[str, Any], template: dict[str, Any]) -> None:
    """Where something is mounted at /dev/shm, in any spelling, none is generated beside it."""
    pod = pod_of(engine(desired(raw_pool, decode__template=template), "decode"))
    assert len(pod["volumes"]) == 1
    assert len(pod["containers"][0]["volumeMounts"]) == 1


def test_a_volume_that_is_only_called_shm_is_no_shared_memory(raw_pool: dict[str, Any]) -> None:
    """A volume of the author's, whatever its name, does not stand in for the one at /dev/shm."""
    template = {"volumes": [{"name": "shm", "emptyDir": {}}], "volumeMounts": [{"name": "shm", "mountPath": "/x"}]}
    pod = pod_of(engine(desired(raw_pool, decode__template=template), "decode"))
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/dev/shm", "/x"]
    assert len({volume["name"] for volume in pod["volumes"]}) == 2


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ({}, {"limits": {"nvidia.com/gpu": "1"}}),
        ({"parallelism": {"tensor": 4, "data": 2}}, {"limits": {"nvidia.com/gpu": "8"}}),
        ({"hardware": "cpu"}, {}),
        ({"hardware": "cpu", "resources": {"limits": {"cpu": "2"}}}, {"limits": {"cpu": "2"}}),
        (
            {"resources": {"limits": {"memory": "64Gi"}}},
            {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
        ),
        ({"resources": {"limits": {"nvidia.com/gpu": "3"}}}, {"limits": {"nvidia.com/gpu": "3"}}),
        (
            {"resources": {"requests": {"nvidia.com/gpu": "3"}}},
            {"requests": {"nvidia.com/gpu": "3"}, "limits": {"nvidia.com/gpu": "3"}},
        ),
        ({"args": ["-tp=2", "--data_parallel_size", "3"]}, {"limits": {"nvidia.com/gpu": "6"}}),
    ],
)
def test_resources_follow_parallelism_unless_given(
    raw_pool: dict[str, Any], role: dict[str, Any], expected: dict[str, Any]
) -> None:
    """One replica asks for tensor x pipeline x data accelerators, arguments counted; what is given wins by name."""
    raw_pool["spec"].update(prefill=role, decode=role)
    pod = pod_of(engine(desired(raw_pool), "decode"))
    assert pod["containers"][0]["resources"] == expected


def test_an_entry_point_is_replaced_only_when_given(raw_pool: dict[str, Any]) -> None:
    """Without spec.engine.command the image's own entry point gets the arguments."""
    assert "command" not in pod_of(engine(desired(raw_pool), "decode"))["containers"][0]
    found = desired(raw_pool, engine__command=["python3", "-m", "vllm"])
    assert pod_of(engine(found, "decode"))["containers"][0]["command"] == ["python3", "-m", "vllm"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine__args": ["--served-model", "x"]}, "ReservedArgument"),
        ({"prefill__args": ["--dtype=float16"]}, "IncompatibleRoles"),
        ({"engine__version": "0.9.1"}, "UnsupportedVersion"),
        ({"prefill__args": ["--kv-transfer-config", "{"]}, "InvalidSpec"),
    ],
)
def test_a_spec_that_cannot_be_carried_out_is_refused(
    raw_pool: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    """A spec that contradicts itself builds nothing, and the refusal says why."""
    found = build.desired(InferencePool.parse(_with(raw_pool, change)), IMAGES)
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert found.message


@given(name=st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True))
def test_names_and_labels_of_children_are_always_valid(name: str) -> None:
    """Whatever the pool is called, children's names are DNS labels of at most 63 characters, and unlike each other."""
    raw = {
        "metadata": {"name": name, "namespace": "ns", "uid": "u"},
        "spec": {"model": {"id": "m"}, "prefill": {}, "decode": {}},
    }
    found = build.desired(InferencePool.parse(raw), IMAGES)
    assert isinstance(found, Desired)
    keys = [each.key for each in found.children]
    assert len(set(keys)) == len(keys)
    for each in found.children:
        _assert_valid(each)


def _assert_valid(each: Child) -> None:
    assert len(each.name) <= 63
    assert each.name[0].isalpha()
    assert each.name.replace("-", "").isalnum()
    for value in each.body["metadata"]["labels"].values():
        assert 0 < len(value) <= 63
        assert value[0].isalnum()
        assert value[-1].isalnum()
