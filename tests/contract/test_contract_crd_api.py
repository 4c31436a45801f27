"""The CRD on a real API server: it installs, refuses bad pools by name, fills in defaults, and explains itself."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from pdpool_api.conditions import ConditionType, Reason, set_condition
from pdpool_api.pool import InferencePool, InferencePoolStatus, RoleStatus
from pdpool_api.pool_status import GpuStatus, RouterStatus
from tests.operator.harness import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.cluster import Cluster
    from pdpool_api.conditions import Condition

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("bare")]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "crds/inferencepools.pdpool.io.yaml"
NAMESPACE = "contract"
DISCOVERY_S = 120.0
NOW = "2026-01-01T00:00:00Z"

SMALLEST: dict[str, Any] = {"model": {"id": "org/model"}, "prefill": {}, "decode": {}}


def _kubectl(cluster: Cluster, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = cluster.kubectl_command("--namespace", NAMESPACE, *arguments)
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def _manifest(spec: dict[str, Any], name: str = "p") -> str:
    pool = {"apiVersion": "pdpool.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(pool)


def _scaled(**autoscaling: Any) -> dict[str, Any]:
    return {"prefill": {"autoscaling": autoscaling}}


def _signal(**signal: Any) -> dict[str, Any]:
    return _scaled(signals=[signal])


@pytest.fixture(scope="module")
def cluster(bare_control_plane: Cluster) -> Cluster:
    """The control plane with the CRD installed as a user would, and a namespace."""
    bare_control_plane.kubectl("apply", "-f", str(FILE))
    made = _kubectl(bare_control_plane, "create", "namespace", NAMESPACE)
    assert made.returncode == 0 or "AlreadyExists" in made.stderr
    deadline = time.monotonic() + DISCOVERY_S
    # Established, discovery and the published schema follow within seconds of each other; `explain` needs all three.
    while _kubectl(bare_control_plane, "explain", "pdp.spec.model").returncode != 0:
        assert time.monotonic() < deadline, "the API server does not publish the schema"
        time.sleep(0.2)
    return bare_control_plane


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[Api]:
    """For what is asked many times: a process of kubectl costs a hundred requests."""
    found = Api(cluster.kubeconfig)
    yield found
    found.close()


@pytest.fixture
def pools(cluster: Cluster, api: Api) -> Iterator[Cluster]:
    """The cluster; pools that a test makes are gone after it."""
    yield cluster
    for each in api.items("inferencepools", NAMESPACE):
        api.delete("inferencepools", NAMESPACE, each["metadata"]["name"])
    assert api.items("inferencepools", NAMESPACE) == []


def _stored(api: Api, name: str = "p") -> dict[str, Any]:
    found = api.get("inferencepools", NAMESPACE, name)
    assert found is not None
    return found


def test_it_installs_by_client_side_and_server_side_apply(cluster: Cluster) -> None:
    """Plain `kubectl apply` works (the annotation has room), again without a change, and server-side as well."""
    assert "unchanged" in cluster.kubectl("apply", "-f", str(FILE))
    assert "serverside-applied" in cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(FILE))


def test_the_schema_is_structural(cluster: Cluster) -> None:
    """The API server finds nothing to complain about."""
    path = "jsonpath={.status.conditions[?(@.type=='NonStructuralSchema')].message}"
    assert cluster.kubectl("get", "crd", "inferencepools.pdpool.io", "-o", path).strip() == ""


@pytest.mark.parametrize(
    ("spec", "field", "rule"),
    [
        ({"model": {"id": ""}}, "spec.model.id", "at least 1 char"),
        ({"model": {"id": "--port"}}, "spec.model.id", "id must be a hub id or an absolute path"),
        ({"model": {"id": "m", "servedNames": ["a", "a"]}}, "spec.model.servedNames", "must not repeat a name"),
        ({"router": {"tenants": [{"key": "a"}]}}, "spec.router.tenants", "tenants need auth.apiKeysSecretRef"),
        ({"router": {"auth": {"saltSecretRef": {"name": "s"}}}}, "spec.router.auth", "saltSecretRef needs"),
        ({"router": {"tlsSecretRef": {}}}, "spec.router.tlsSecretRef.name", "Required value"),
        ({"prefill": {"replicas": -1}}, "spec.prefill.replicas", "greater than or equal to 0"),
        ({"decode": None}, "spec.decode", "Required value"),
        ({"prefill": None}, "spec.prefill", "Required value"),
        ({"engine": {"imgae": "x"}}, 'unknown field "spec.engine.imgae"', "strict decoding error"),
        ({"decode": {"env": [{"name": "A", "valeu": "1"}]}}, "spec.decode.env[0].valeu", "strict decoding error"),
        ({"decode": {"env": [{"name": "A"}, {"name": "A"}]}}, "spec.decode.env[1]", "Duplicate value"),
        (
            {"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}},
            "spec.engine.env",
            "a value or a valueFrom, not both",
        ),
        ({"decode": {"env": [{"value": "1"}]}}, "spec.decode.env[0].name", "Required value"),
        ({"decode": {"parallelism": {"pipeline": 2}}}, "spec.decode.parallelism.pipeline", "must be 1"),
        (
            {"prefill": {"parallelism": {"tensor": 2}}, "decode": {"parallelism": {"tensor": 3}}},
            "spec.decode.parallelism.tensor",
            "must divide one another",
        ),
        (
            {"model": {"id": "m", "shape": {"kvHeads": 4}}, "prefill": {"parallelism": {"tensor": 8}}},
            "spec.prefill.parallelism.tensor",
            "must not exceed model.shape.kvHeads",
        ),
        ({"decode": {"parallelism": {"data": 33}}}, "spec.decode.parallelism.data", "less than or equal to 32"),
        ({"decode": {"args": ["x" * 65_537]}}, "spec.decode.args[0]", "may not be more than 65536"),
        ({"decode": {"args": ["x"] * 257}}, "spec.decode.args", "must have at most 256 items"),
        ({"decode": {"hardware": "abacus"}}, "spec.decode.hardware", "Unsupported value"),
        ({"mode": "Both"}, "spec.mode", "Unsupported value"),
        ({"transfer": {"leaseSeconds": 1}}, "spec.transfer.leaseSeconds", "greater than or equal to 6"),
        ({"router": {"replicas": 0}}, "spec.router.replicas", "greater than or equal to 1"),
        (_scaled(minReplicas=5, maxReplicas=2), "spec.prefill.autoscaling.minReplicas", "must not be greater than"),
        (_scaled(minReplica=5), 'unknown field "spec.prefill.autoscaling.minReplica"', "strict decoding error"),
        (_scaled(minReplicas=0), "spec.decode.autoscaling", "both roles together"),
        (
            {"decode": {"replicas": 2, "autoscaling": {}}},
            "spec.decode.autoscaling",
            "replicas and autoscaling exclude one another",
        ),
        (_signal(type="QueueDepth", target=-4), "spec.prefill.autoscaling.signals[0].target", "greater than 0"),
        (_signal(type="QueueDepth"), "spec.prefill.autoscaling.signals[0].target", "target is required"),
        (_signal(type="KvCacheUsage", target=0.8), "spec.prefill.autoscaling.signals", "are not for prefill"),
        (_signal(type="GpuUtilization", target=80), "spec.prefill.autoscaling.signals[0].target", "at most 1"),
        (_signal(type="GpuUtilization", target=0.8), "spec.prefill.autoscaling.signals", "need spec.autoscaling.prom"),
        (_signal(type="PrometheusQuery", target=1), "spec.prefill.autoscaling.signals[0].query", "query is required"),
        (_signal(type="Ttft"), "spec.prefill.autoscaling.signals", "the one of spec.slo"),
        (
            {"decode": {"autoscaling": {"signals": [{"type": "Ttft", "target": 500}]}}},
            "spec.decode.autoscaling.signals",
            "are not for decode",
        ),
        ({"autoscaling": {"source": "Prometheus"}}, "spec.autoscaling.prometheus", "is required with source"),
        ({"autoscaling": {"prometheus": {"url": "http://me:x@p"}}}, "spec.autoscaling.prometheus.url", "should match"),
        (
            {"autoscaling": {"ratio": {"minPrefillPerDecode": 2, "maxPrefillPerDecode": 1}}},
            "spec.autoscaling.ratio.minPrefillPerDecode",
            "must not be greater",
        ),
        (
            {"router": {"replicas": 2, "autoscaling": {"maxReplicas": 3}}},
            "spec.router.autoscaling",
            "exclude one another",
        ),
        (
            {"router": {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}}},
            "spec.router.autoscaling.minReplicas",
            "must not be greater",
        ),
        ({"mode": "Aggregated"}, "spec.prefill", "must be absent in mode Aggregated"),
        ({"engine": {"shmSize": "24Gb"}}, "spec.engine.shmSize", "should match"),
        (
            {"model": {"id": "m", "cache": {"emptyDir": {}, "hostPath": {"path": "/m"}}}},
            "spec.model.cache",
            "at most one of",
        ),
        ({"model": {"id": "m", "adapters": [{"name": "m", "source": "o/a"}]}}, "spec.model.adapters", "servedNames"),
        (
            {"model": {"id": "m", "adapters": [{"name": "a", "source": "x"}, {"name": "a", "source": "y"}]}},
            "spec.model.adapters",
            "Duplicate value",
        ),
        ({"model": {"id": "m", "shape": {"parameters": 0}}}, "spec.model.shape.parameters", "greater than 0"),
        (
            {"decode": {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}},
            "spec.decode.rollout",
            "must not both be 0",
        ),
        ({"maxGpus": 0}, "spec.maxGpus", "greater than or equal to 1"),
        ({"transfer": {"rdma": {"resource": "rdma"}}}, "spec.transfer.rdma.resource", "should match"),
        ({"router": {"service": {"port": 70000}}}, "spec.router.service.port", "less than or equal to 65535"),
        (
            {"router": {"httpRoute": {"parentRefs": [{"name": ""}]}}},
            "spec.router.httpRoute.parentRefs[0].name",
            "at least 1 char",
        ),
        (
            {"router": {"service": {"annotations": {"a b": "x"}}}},
            "spec.router.service.annotations",
            "a key must be a name",
        ),
        ({"router": {"limits": {"idleSeconds": 0}}}, "spec.router.limits.idleSeconds", "greater than 0"),
        ({"monitoring": {"namespaces": ["A"]}}, "spec.monitoring.namespaces", "should match"),
        (
            {"decode": {"template": {"tolerations": [{"kee": "x"}]}}},
            "spec.decode.template.tolerations",
            "unknown field",
        ),
        (
            {"decode": {"template": {"metadata": {"labels": {"pdpool.io/role": "x"}}}}},
            "spec.decode.template.metadata.labels",
            "set by the operator",
        ),
        (
            {"decode": {"template": {"metadata": {"annotations": {"pdpool.io/draining": "x"}}}}},
            "spec.decode.template.metadata.annotations",
            "set by the operator",
        ),
        (
            {"decode": {"template": {"metadata": {"labels": {"a b": "x"}}}}},
            "spec.decode.template.metadata.labels",
            "a key must be a name",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_pool_is_refused_at_apply(api: Api, spec: dict[str, Any], field: str, rule: str) -> None:
    """The answer names the field and the rule (Q22); strictly, as kubectl asks for it."""
    merged = {name: fields for name, fields in {**SMALLEST, **spec}.items() if fields is not None}
    path = f"{api.path('inferencepools', NAMESPACE)}?fieldValidation=Strict"
    with pytest.raises(httpx.HTTPStatusError) as refused:
        api.request("POST", path, yaml.safe_load(_manifest(merged)))
    message = refused.value.response.json()["message"]
    assert field in message
    assert rule in message


def test_kubectl_tells_why_a_pool_is_refused(cluster: Cluster) -> None:
    """A rule and a misspelt field, in the words of a person's own tool (Q22)."""
    done = _kubectl(cluster, "apply", "-f", "-", text=_manifest({**SMALLEST, "maxGpus": 0}))
    assert done.returncode != 0
    assert "spec.maxGpus" in done.stderr
    done = _kubectl(cluster, "apply", "-f", "-", text=_manifest({**SMALLEST, "engine": {"imgae": "x"}}))
    assert done.returncode != 0
    assert 'unknown field "spec.engine.imgae"' in done.stderr


def test_reserved_arguments_are_left_to_the_operator(pools: Cluster) -> None:
    """They are stored, so that the condition with reason `ReservedArgument` can name them in any spelling."""
    text = _manifest({**SMALLEST, "engine": {"args": ["--port", "1"]}})
    assert _kubectl(pools, "apply", "-f", "-", text=text).returncode == 0


def test_an_unknown_field_is_refused_server_side_too(cluster: Cluster) -> None:
    """Server-side apply, as GitOps tools use it, refuses a misspelt field as well."""
    text = _manifest({**SMALLEST, "engine": {"imgae": "x"}})
    done = _kubectl(cluster, "apply", "--server-side", "-f", "-", text=text)
    assert ".spec.engine.imgae" in done.stderr


@pytest.mark.parametrize(("length", "is_taken"), [(63, True), (64, False)])
def test_names_are_limited(pools: Cluster, length: int, is_taken: bool) -> None:  # noqa: FBT001 - a table's column
    """A pool's name has at most 63 characters, dots and a leading digit included."""
    name = "1.a" + "x" * (length - 3)
    done = _kubectl(pools, "apply", "-f", "-", text=_manifest(SMALLEST, name))
    assert (done.returncode == 0) is is_taken
    if not is_taken:
        assert "metadata.name must be at most 63 characters" in done.stderr


def test_defaults_appear_and_only_they(pools: Cluster, api: Api) -> None:
    """A small pool stores the schema's defaults; what depends on other fields stays absent, status as well."""
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", text_input=_manifest(SMALLEST))
    stored = _stored(api)
    role = {
        "drainSeconds": 300,
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
        "disruptionBudget": {"maxUnavailable": 1},
        "template": {"hostNetwork": False},
    }
    assert stored["spec"] == {
        "model": {"id": "org/model"},
        "mode": "Disaggregated",
        "engine": {
            "name": "VLLM",
            "imagePullPolicy": "IfNotPresent",
            "secretRotation": "Roll",
            "startupTimeoutSeconds": 1800,
            "shmSize": "16Gi",
        },
        "transfer": {"connector": "Nixl", "leaseSeconds": 30, "onFailure": "Fail"},
        "prefill": role,
        "decode": role,
        "autoscaling": {
            "source": "Direct",
            "intervalSeconds": 15,
            "ratio": {"minPrefillPerDecode": 0, "maxPrefillPerDecode": 0},
        },
        "router": {
            "drainSeconds": 600,
            "template": {"hostNetwork": False},
            "service": {"type": "ClusterIP", "port": 80},
            "routing": {
                "policy": "KvAware",
                "index": {"source": "Events", "maxBlocks": 2_000_000},
                "localPrefill": {"maxUncachedTokens": 512, "minCachedRatio": 0.8},
                "sessionHeader": "x-session-id",
                "onPrefillUnavailable": "Local",
            },
            "limits": {
                "maxBodyBytes": 33_554_432,
                "maxConcurrent": 4096,
                "maxQueued": 1024,
                "maxQueuedBytes": 268_435_456,
                "queueSeconds": 60,
                "wakeSeconds": 600,
                "maxLocalPrefills": 4,
                "connectSeconds": 5,
                "prefillSeconds": 120,
                "idleSeconds": 300,
            },
        },
        "monitoring": {"podMonitor": False},
    }
    assert "status" not in stored


def test_the_models_read_what_is_stored(pools: Cluster, api: Api) -> None:
    """Schema and models give the same defaults: a stored pool reads like its file."""
    text = _manifest({**SMALLEST, "decode": {"parallelism": {"tensor": 2}, "args": ["-x"]}})
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", text_input=text)
    stored = _stored(api)
    assert InferencePool.parse(stored, strict=True).spec == InferencePool.parse(yaml.safe_load(text)).spec


@pytest.mark.parametrize("file", sorted((ROOT / "manifests/samples").glob("*.yaml")), ids=lambda file: file.name)
def test_samples_are_taken_and_come_back_whole(pools: Cluster, api: Api, file: Path) -> None:
    """Nothing that a sample says is pruned."""
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", str(file))
    for written in yaml.safe_load_all(file.read_text()):
        if written and written["kind"] == "InferencePool":
            name = written["metadata"]["name"]
            assert _contains(_stored(api, name)["spec"], written["spec"])


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return all(name in whole and _contains(whole[name], value) for name, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(_contains, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("pdp", "One model served by a set of prefill and decode replicas"),
        ("pdp.spec", "The role that makes the tokens;"),
        ("pdp.spec.decode", "How long a leaving pod may finish its requests"),
        ("pdp.spec.decode.autoscaling", "minReplicas"),
        ("pdp.spec.prefill.template.metadata", "Labels added to the pods of the role"),
        ("pdp.spec.router.limits", "maxConcurrent"),
        ("pdp.status", "conditions"),
        ("pdp.status.decode", "desiredReplicas"),
    ],
)
def test_explain_reads_well(cluster: Cluster, path: str, words: str) -> None:
    """At each level every field has its sentence; that none lacks one anywhere is told by `test_contract_crd`."""
    text = cluster.kubectl("explain", path)
    assert words in text
    assert "<no description>" not in text


def test_explain_reaches_the_bottom_of_core_parts(cluster: Cluster) -> None:
    """Parts of core/v1 are typed, without prose."""
    assert "<string> -required-" in cluster.kubectl("explain", "pdp.spec.decode.env.valueFrom.secretKeyRef")


def _write_status(pools: Cluster, status: dict[str, Any]) -> None:
    """As the operator does."""
    body = {"apiVersion": "pdpool.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": "p"}, "status": status}
    how = ["--server-side", "--subresource=status", "--field-manager=pdpool", f"--namespace={NAMESPACE}"]
    pools.kubectl("apply", *how, "-f", "-", text_input=yaml.safe_dump(body))


def test_every_field_that_a_status_can_have_is_stored(pools: Cluster, api: Api) -> None:
    """None is pruned (Q21): each field of each part is written with a value of its own, and read again as it was."""
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", text_input=_manifest(SMALLEST))
    conditions: tuple[Condition, ...] = ()
    for kind in ConditionType:
        conditions = set_condition(conditions, kind, "True", Reason.VALID, "m", generation=1, now=NOW)
    role = RoleStatus(
        desired_replicas=3,
        replicas=4,
        ready_replicas=2,
        updated_replicas=1,
        unschedulable_replicas=5,
        reason="QueueDepth",
        message="m",
        last_scale_time=NOW,
    )
    status = InferencePoolStatus(
        observed_generation=1,
        mode="Auto",
        mode_inputs="i",
        revision="r",
        url="http://p-router",
        prefill=role,
        decode=role,
        router=RouterStatus(replicas=2, ready_replicas=1),
        gpus=GpuStatus(in_use=2, max=4),
        conditions=conditions,
    )
    for part in (status, role, status.router, status.gpus, conditions[0]):
        assert part is not None
        assert part.model_fields_set == set(type(part).model_fields), "a new field belongs here as well"
    _write_status(pools, status.to_json())
    stored = _stored(api)
    assert stored["status"] == status.to_json()


def test_status_is_kept_whole_and_shown_in_columns(pools: Cluster, api: Api) -> None:
    """Every field that is written comes back (Q21), an apply of status never touches the spec, and columns show it."""
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", text_input=_manifest(SMALLEST))
    counts = RoleStatus(
        desired_replicas=3, replicas=3, ready_replicas=2, updated_replicas=3, reason="Fixed", message="m"
    )
    ready = set_condition(
        (), ConditionType.READY, "False", Reason.ROLLING_OUT, "2 of 3", generation=1, now="2026-01-01T00:00:00Z"
    )
    status = InferencePoolStatus(
        observed_generation=1,
        mode="Disaggregated",
        revision="6d8f9c",
        url="http://p-router",
        decode=counts,
        conditions=ready,
    ).to_json()
    _write_status(pools, status)
    stored = _stored(api)
    assert stored["status"] == status
    assert stored["metadata"]["generation"] == 1
    header, row = pools.kubectl("get", f"--namespace={NAMESPACE}", "pdp", "-o", "wide").splitlines()
    shown = "NAME MODEL MODE PREFILL DECODE READY REASON AGE URL REVISION GPUS"
    assert header.split() == shown.split()
    assert row.split()[:6] == ["p", "org/model", "Disaggregated", "2/3", "False", "RollingOut"]


def test_pools_are_listed_by_category(cluster: Cluster) -> None:
    """`kubectl get pdpool` lists what belongs to the product."""
    assert _kubectl(cluster, "get", "pdpool").returncode == 0


def test_there_is_no_scale_subresource(pools: Cluster) -> None:
    """An external scaler patches `spec.<role>.replicas`; one scale subresource cannot serve two roles (Q24)."""
    pools.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", text_input=_manifest(SMALLEST))
    path = f"/apis/pdpool.io/v1alpha1/namespaces/{NAMESPACE}/inferencepools/p/scale"
    assert "NotFound" in _kubectl(pools, "get", "--raw", path).stderr
    patched = '{"spec":{"decode":{"replicas":2}}}'
    assert _kubectl(pools, "patch", "pdp", "p", "--type=merge", "-p", patched).returncode == 0


def test_a_very_large_variable_is_stored_or_refused_by_name(pools: Cluster) -> None:
    """A chat template of 300,000 bytes in `env` is stored and the pool can be deleted (Q01); `args` has a limit."""
    large = {"decode": {"env": [{"name": "TEMPLATE", "value": "x" * 300_000}]}}
    text = _manifest({**SMALLEST, **large})
    assert _kubectl(pools, "apply", "--server-side", "-f", "-", text=text).returncode == 0
    assert _kubectl(pools, "delete", "pdp", "p", "--timeout=10s").returncode == 0
