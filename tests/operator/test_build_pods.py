"""Pods and the children around them, as fields of the spec shape them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pdpool_api import names, router_config
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool
from pdpool_operator import build, ownership
from pdpool_operator.records import HTTP_ROUTES, POD_MONITORS, Desired, Images, Surroundings

IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="pdpool-router:1")
EVERYTHING = Surroundings("pdpool-system", frozenset({HTTP_ROUTES, POD_MONITORS}))
BOTH = pytest.mark.parametrize("role", ["prefill", "decode"])


def desired(raw: dict[str, Any], around: Surroundings = EVERYTHING, **over: Any) -> Desired:
    """The children of a pool; keywords replace fields of sections of its spec."""
    body = copy.deepcopy(raw)
    for section, fields in over.items():
        present = body["spec"].get(section)
        body["spec"][section] = {**(present or {}), **fields} if isinstance(fields, dict) else fields
    pool = InferencePool.parse(body, strict=False)
    if pool.spec.mode == "Aggregated":
        pool = pool.model_copy(update={"spec": pool.spec.in_mode("Aggregated")})
    found = build.desired(pool, IMAGES, around)
    assert isinstance(found, Desired), found
    return found


def bodies(of: Desired, kind: str) -> dict[str, dict[str, Any]]:
    found = [each for each in of.children if each.resource.kind == kind]
    return {each.body["metadata"]["labels"][names.LABEL_ROLE]: ownership.without_none(each.body) for each in found}


def pod(of: Desired, role: str) -> dict[str, Any]:
    return dict(bodies(of, "Deployment")[role]["spec"]["template"]["spec"])


def engine(of: Desired, role: str) -> dict[str, Any]:
    (container,) = pod(of, role)["containers"]
    return dict(container)


@BOTH
@pytest.mark.parametrize(("given", "limit"), [({}, "16Gi"), ({"shmSize": "24Gi"}, "24Gi")])
def test_shared_memory_is_memory(raw_pool: dict[str, Any], role: str, given: dict[str, Any], limit: str) -> None:
    """Both roles mount /dev/shm from memory, as large as the author says; tensor size and GPU limit agree (Q96)."""
    sides = {"hardware": "h100-sxm", "parallelism": {"tensor": 2}}
    found = desired(raw_pool, engine=given, prefill=sides, decode=sides)
    volumes = {volume["name"]: volume for volume in pod(found, role)["volumes"]}
    assert volumes["pdpool-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": limit}
    container = engine(found, role)
    assert {"name": "pdpool-shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "2"


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        (None, {"emptyDir": {}}),
        ({"emptyDir": {"sizeLimit": "200Gi"}}, {"emptyDir": {"sizeLimit": "200Gi"}}),
        ({"persistentVolumeClaim": {"claimName": "m"}}, {"persistentVolumeClaim": {"claimName": "m"}}),
        ({"hostPath": {"path": "/m"}}, {"hostPath": {"path": "/m", "type": "DirectoryOrCreate"}}),
    ],
)
@BOTH
def test_downloads_are_kept_where_the_author_says(
    raw_pool: dict[str, Any], cache: dict[str, Any] | None, source: dict[str, Any], role: str
) -> None:
    """A claim, a directory of the node, or by default the pod's own disk; HF_HOME points there."""
    model = {"id": "org/m", **({"cache": cache} if cache else {})}
    found = desired(raw_pool, model=model)
    volumes = {volume.pop("name"): volume for volume in pod(found, role)["volumes"]}
    assert volumes["pdpool-models"] == source
    container = engine(found, role)
    assert {"name": "pdpool-models", "mountPath": names.MODEL_CACHE_PATH} in container["volumeMounts"]
    assert {"name": "HF_HOME", "value": names.MODEL_CACHE_PATH} in container["env"]


def test_a_model_in_the_image_needs_no_cache(raw_pool: dict[str, Any]) -> None:
    """Nothing is mounted where nothing is downloaded, unless the author asks for it."""
    assert {volume["name"] for volume in pod(desired(raw_pool), "decode")["volumes"]} == {"pdpool-shm"}
    asked = desired(raw_pool, model={"cache": {"emptyDir": {}}})
    assert "pdpool-models" in {volume["name"] for volume in pod(asked, "decode")["volumes"]}


def test_secrets_appear_by_reference_only(raw_pool: dict[str, Any]) -> None:
    """The token is a secretKeyRef on both roles and nothing in any other child (Q105)."""
    token = {"name": "hf", "key": "HF_TOKEN"}
    found = desired(raw_pool, model={"tokenSecretRef": token})
    for role in ("prefill", "decode"):
        (variable,) = [each for each in engine(found, role)["env"] if each["name"] == "HF_TOKEN"]
        assert variable == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}}
    others = [child.body for child in found.children if child.role is Role.ROUTER]
    assert "HF_TOKEN" not in json.dumps(others)


def test_rdma_is_asked_for_by_both_roles(raw_pool: dict[str, Any]) -> None:
    """The extended resource beside the accelerators, and the right to lock memory beside the author's."""
    side = {
        "hardware": "h200",
        "template": {"securityContext": {"runAsUser": 7, "capabilities": {"add": ["SYS_NICE"]}}},
    }
    found = desired(raw_pool, transfer={"rdma": {"resource": "rdma/ib", "count": 2}}, prefill=side, decode=side)
    for role in ("prefill", "decode"):
        container = engine(found, role)
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "rdma/ib": "2"}
        assert container["securityContext"] == {"runAsUser": 7, "capabilities": {"add": ["SYS_NICE", "IPC_LOCK"]}}


def test_an_aggregated_pool_moves_no_kv(raw_pool: dict[str, Any]) -> None:
    """One engine role of its own name, described by spec.decode, without RDMA; every child of prefill is gone."""
    del raw_pool["spec"]["prefill"]
    found = desired(raw_pool, mode="Aggregated", transfer={"rdma": {"resource": "rdma/ib"}}, decode={"replicas": 4})
    assert set(bodies(found, "Deployment")) == {"router", "aggregated"}
    assert set(bodies(found, "Service")) == {"router", "aggregated"}
    deployment = bodies(found, "Deployment")["aggregated"]
    assert deployment["spec"]["replicas"] == 4
    assert deployment["metadata"]["name"] == f"tiny-aggregated-{found.revision}"
    assert engine(found, "aggregated")["resources"] == {}
    assert found.mode == "Aggregated"
    assert found.replicas == {Role.ROUTER: 1, Role.AGGREGATED: 4}


def test_a_profile_places_pods_under_the_authors_word(raw_pool: dict[str, Any]) -> None:
    """Node label and tolerations of the profile; a label of the author's of the same key wins, tolerations add up."""
    own = {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "team", "operator": "Exists"}]}
    placed = pod(
        desired(raw_pool, prefill={"hardware": "l40s"}, decode={"hardware": "l40s", "template": own}), "decode"
    )
    assert placed["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S", "disk": "fast"}
    assert [each["key"] for each in placed["tolerations"]] == ["nvidia.com/gpu", "team"]
    shared = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"}}
    placed = pod(
        desired(raw_pool, prefill={"hardware": "l40s"}, decode={"hardware": "l40s", "template": shared}), "decode"
    )
    assert placed["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"}
    assert "nodeSelector" not in pod(desired(raw_pool), "decode")


def test_by_default_engines_share_a_zone_and_not_a_node(raw_pool: dict[str, Any]) -> None:
    """Both are preferences: a cluster of one node still holds the pool."""
    for role in ("prefill", "decode"):
        placed = pod(desired(raw_pool), role)
        (near,) = placed["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
        (values,) = [each["values"] for each in near["podAffinityTerm"]["labelSelector"]["matchExpressions"]]
        assert {"prefill", "decode"} <= set(values)
        (apart,) = placed["topologySpreadConstraints"]
        assert (apart["topologyKey"], apart["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
        assert apart["labelSelector"]["matchLabels"][names.LABEL_ROLE] == role
    assert "topologySpreadConstraints" in pod(desired(raw_pool), "router")


TEMPLATE: dict[str, Any] = {
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "schedulerName": "gang",
    "serviceAccountName": "own",
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
}


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
def test_the_whole_template_reaches_the_pods(raw_pool: dict[str, Any], role: str) -> None:
    """Each field of the template stands in the pods of its role, in place of what is generated."""
    template = {**TEMPLATE, "podSecurityContext": {"fsGroup": 99, "supplementalGroups": [5]}}
    placed = pod(desired(raw_pool, **{role: {"template": template}}), role)
    assert TEMPLATE.items() <= placed.items()
    assert placed["securityContext"]["fsGroup"] == 99
    assert placed["securityContext"]["supplementalGroups"] == [5]


def test_a_routers_template_keeps_what_it_does_not_name(raw_pool: dict[str, Any]) -> None:
    """The author's security context lies over the restricted one; volumes and mounts are added to its own."""
    template = {
        "securityContext": {"runAsNonRoot": True, "readOnlyRootFilesystem": False},
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    }
    found = desired(raw_pool, router={"template": template})
    (container,) = pod(found, "router")["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/etc/pdpool", "/ca"]


def test_a_router_knows_which_pod_is_its_own(raw_pool: dict[str, Any]) -> None:
    """By its pod's own name: on the node's network its host has the node's."""
    (container,) = pod(desired(raw_pool, router={"template": {"hostNetwork": True}}), "router")["containers"]
    assert container["env"] == [
        {"name": names.ROUTER_POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]


def test_a_routers_own_account_may_read_pods(raw_pool: dict[str, Any]) -> None:
    """The Role is bound to the ServiceAccount that the router's pods have."""
    found = desired(raw_pool, router={"template": {"serviceAccountName": "own"}})
    (subject,) = bodies(found, "RoleBinding")["router"]["subjects"]
    assert subject["name"] == pod(found, "router")["serviceAccountName"] == "own"


def test_pods_on_the_nodes_network_find_services(raw_pool: dict[str, Any]) -> None:
    """Their names are resolved by the cluster's DNS, and the Service follows the moved port."""
    found = desired(raw_pool, decode={"template": {"hostNetwork": True}})
    placed = pod(found, "decode")
    assert (placed["hostNetwork"], placed["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert bodies(found, "Service")["decode"]["spec"]["ports"][0]["port"] == 9000


def test_claims_replace_the_extended_resource(raw_pool: dict[str, Any]) -> None:
    """Accelerators of a resource claim are not asked for a second time."""
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    found = desired(raw_pool, prefill={"hardware": "h200"}, decode={"hardware": "h100-sxm", "template": claims})
    assert pod(found, "decode")["resourceClaims"] == claims["resourceClaims"]
    assert engine(found, "decode")["resources"] == {"claims": [{"name": "gpu"}]}


def test_pull_secrets_are_given_to_every_pod(raw_pool: dict[str, Any]) -> None:
    """Engines and routers may come from a private registry."""
    found = desired(raw_pool, engine={"imagePullSecrets": [{"name": "registry"}]})
    for role in ("prefill", "decode", "router"):
        assert pod(found, role)["imagePullSecrets"] == [{"name": "registry"}]


def test_accelerators_are_not_waited_for_by_default(raw_pool: dict[str, Any]) -> None:
    """No surge: with no spare accelerator a rolling update would wait for itself (Q95); the author may allow one."""
    strategy = bodies(desired(raw_pool), "Deployment")["decode"]["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 0, "maxUnavailable": 1}
    rollout = {"rollout": {"maxSurge": 2, "maxUnavailable": 0}, "hardware": "l4"}
    idle = {"hardware": "l4", "replicas": 0}
    found = desired(raw_pool, prefill=idle, decode=rollout)
    assert bodies(found, "Deployment")["decode"]["spec"]["strategy"]["rollingUpdate"] == rollout["rollout"]
    capped = desired(raw_pool, prefill=idle, decode=rollout, maxGpus=2)
    assert bodies(capped, "Deployment")["decode"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1


def test_every_role_has_a_budget(raw_pool: dict[str, Any]) -> None:
    """Voluntary disruptions take what the author allows; a budget covers all revisions of a role."""
    budgets = bodies(desired(raw_pool, prefill={"disruptionBudget": {"maxUnavailable": 3}}), "PodDisruptionBudget")
    assert {role: each["spec"]["maxUnavailable"] for role, each in budgets.items()} == {
        "router": 1,
        "prefill": 3,
        "decode": 1,
    }
    selector = budgets["decode"]["spec"]["selector"]["matchLabels"]
    assert selector == {names.LABEL_POOL: "tiny", names.LABEL_ROLE: "decode"}


def test_the_service_is_what_the_author_says(raw_pool: dict[str, Any]) -> None:
    """Type, port and annotations of the router's Service."""
    service = {"type": "LoadBalancer", "port": 8443, "annotations": {"lb/scheme": "internal"}}
    found = bodies(desired(raw_pool, router={"service": service}), "Service")["router"]
    assert found["spec"]["type"] == "LoadBalancer"
    assert found["spec"]["ports"][0]["port"] == 8443
    assert found["metadata"]["annotations"] == {"lb/scheme": "internal"}


def test_the_routers_file_holds_its_part_of_the_spec(raw_pool: dict[str, Any]) -> None:
    """Adapters are names that clients may ask for; routing and limits are handed on."""
    router = {"routing": {"policy": "RoundRobin", "onPrefillUnavailable": "Fail"}, "limits": {"maxBodyBytes": 99}}
    model = {"adapters": [{"name": "sql", "source": "o/sql"}]}
    text = bodies(desired(raw_pool, router=router, model=model), "ConfigMap")["router"]["data"]
    config = router_config.parse(text[names.ROUTER_CONFIG_FILE])
    assert config.model.adapters == ("sql",)
    assert (config.routing.policy, config.routing.on_prefill_unavailable) == ("RoundRobin", "Fail")
    assert (config.limits.max_body_bytes, config.limits.max_concurrent) == (99, 4096)


SECURED: dict[str, Any] = {
    "auth": {"apiKeysSecretRef": {"name": "keys"}, "saltSecretRef": {"name": "pepper"}},
    "tenants": [{"key": "a", "models": ["tiny"], "concurrent": 3}],
    "tlsSecretRef": {"name": "cert"},
}


def test_the_routers_secrets_are_files_beside_its_configuration(raw_pool: dict[str, Any]) -> None:
    """One volume holds the file and what it names, so that they change together; Secrets stand by reference only."""
    found = desired(raw_pool, router=SECURED)
    text = bodies(found, "ConfigMap")["router"]["data"][names.ROUTER_CONFIG_FILE]
    config = router_config.parse(text)
    assert (config.tenants[0].key, config.tenants[0].models, config.tenants[0].concurrent) == ("a", ("tiny",), 3)
    (volume,) = pod(found, "router")["volumes"]
    (config_map, *secrets) = volume["projected"]["sources"]
    assert config_map == {"configMap": {"name": "tiny-router"}}
    files = {
        f"/etc/pdpool/{item['path']}": (one["secret"]["name"], item["key"])
        for one in secrets
        for item in one["secret"]["items"]
    }
    assert files == {
        config.auth.api_keys_file: ("keys", "keys"),
        config.auth.salt_file: ("pepper", "salt"),
        config.tls.cert_file: ("cert", "tls.crt"),
        config.tls.key_file: ("cert", "tls.key"),
    }
    (mount,) = pod(found, "router")["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/etc/pdpool")


def test_a_missing_secret_of_the_router_is_named_by_the_kubelet(raw_pool: dict[str, Any]) -> None:
    """A first container needs each entry as a variable; it meets the same standard, and the router itself has none."""
    router = pod(desired(raw_pool, router=SECURED), "router")
    (first,) = router["initContainers"]
    (container,) = router["containers"]
    assert [tuple(each["valueFrom"]["secretKeyRef"].values()) for each in first["env"]] == [
        ("keys", "keys"),
        ("pepper", "salt"),
        ("cert", "tls.crt"),
        ("cert", "tls.key"),
    ]
    assert first["securityContext"] == container["securityContext"]
    assert first["args"] == ["--version"]
    assert not any("secretKeyRef" in each["valueFrom"] for each in container["env"])


def test_a_router_without_secrets_is_built_as_before(raw_pool: dict[str, Any]) -> None:
    """An upgrade of the operator rolls no router that uses none of them."""
    router = pod(desired(raw_pool), "router")
    assert router["volumes"] == [{"name": "config", "configMap": {"name": "tiny-router"}}]
    assert "initContainers" not in router


def test_an_author_may_name_a_volume_of_the_router_like_ours(raw_pool: dict[str, Any]) -> None:
    """`config` is a name that many would take: the router's own volume then has another, mounted where it always is."""
    template = {
        "volumes": [{"name": "config", "emptyDir": {}}],
        "volumeMounts": [{"name": "config", "mountPath": "/mine"}],
    }
    router = pod(desired(raw_pool, router={**SECURED, "template": template}), "router")
    (container,) = router["containers"]
    at = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert at["/mine"] == "config"
    by_name = {each["name"]: each for each in router["volumes"]}
    assert len(by_name) == len(router["volumes"])
    assert {"configMap": {"name": "tiny-router"}} in by_name[at["/etc/pdpool"]]["projected"]["sources"]


@pytest.mark.parametrize(("template", "unavailable"), [({}, 0), ({"hostNetwork": True}, 1)])
def test_a_router_on_the_nodes_network_gives_up_its_place(
    raw_pool: dict[str, Any], template: dict[str, Any], unavailable: int
) -> None:
    """Its ports are the node's: where every node has a router, none could be replaced if none might be missing."""
    body = bodies(desired(raw_pool, router={"template": template}), "Deployment")["router"]
    assert body["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": unavailable}


def test_a_route_has_no_timeout(raw_pool: dict[str, Any]) -> None:
    """Answers stream for minutes: the gateway is told not to cut them, and to send to the router's Service."""
    route = {"parentRefs": [{"name": "gw", "namespace": "edge"}], "hostnames": ["llm.example"]}
    body = bodies(desired(raw_pool, router={"httpRoute": route}), "HTTPRoute")["router"]
    assert body["spec"]["parentRefs"] == route["parentRefs"]
    assert body["spec"]["hostnames"] == ["llm.example"]
    (rule,) = body["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    assert (rule["backendRefs"][0]["name"], rule["backendRefs"][0]["port"]) == ("tiny-router", 80)


@pytest.mark.parametrize("given", [{}, {"parentRefs": [], "hostnames": []}], ids=["empty", "empty lists"])
def test_a_route_without_parents_is_made(raw_pool: dict[str, Any], given: dict[str, Any]) -> None:
    """It is made when given, as others may attach it; what is empty is left out."""
    body = bodies(desired(raw_pool, router={"httpRoute": given}), "HTTPRoute")["router"]
    assert set(body["spec"]) == {"rules"}


def test_monitors_scrape_engines_and_the_routers_admin_port(raw_pool: dict[str, Any]) -> None:
    """One for each role, by its own labels; none unless asked."""
    found = bodies(desired(raw_pool, monitoring={"podMonitor": True}), "PodMonitor")
    ports = {role: each["spec"]["podMetricsEndpoints"][0]["port"] for role, each in found.items()}
    assert ports == {"router": "admin", "prefill": "http", "decode": "http"}
    assert not bodies(desired(raw_pool), "PodMonitor")


def test_kinds_that_the_cluster_lacks_are_said_and_left_out(raw_pool: dict[str, Any]) -> None:
    """Everything else is built, and each missing kind is named once."""
    asked: dict[str, Any] = {
        "router": {"httpRoute": {"parentRefs": [{"name": "gw"}]}},
        "monitoring": {"podMonitor": True},
    }
    found = desired(raw_pool, Surroundings(), **asked)
    assert not bodies(found, "HTTPRoute")
    assert not bodies(found, "PodMonitor")
    assert [each.reason for each in found.remarks] == ["OptionalApiMissing"] * 2
    assert "HTTPRoute" in found.remarks[0].message
    assert "PodMonitor" in found.remarks[1].message
    assert not desired(raw_pool, **asked).remarks


def test_events_are_published_by_every_engine(raw_pool: dict[str, Any]) -> None:
    """The router's index rests on KV events, so no engine is without them (Q110)."""
    for role in ("prefill", "decode"):
        args = engine(desired(raw_pool), role)["args"]
        assert json.loads(args[args.index("--kv-events-config") + 1])["enable_kv_cache_events"] is True


def test_a_slow_start_is_no_failure(raw_pool: dict[str, Any]) -> None:
    """Liveness begins after the startup probe, whose budget is at least 10 minutes by default (Q97)."""
    container = engine(desired(raw_pool), "decode")
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert "tiny" in startup["exec"]["command"]
    assert container["livenessProbe"]["failureThreshold"] == 3
    assert container["livenessProbe"]["timeoutSeconds"] >= 10


def test_a_large_template_lands_in_the_pods_only(raw_pool: dict[str, Any]) -> None:
    """A chat template of 60 kB in a variable is no annotation of any child (Q01)."""
    text = "x" * 60_000
    found = desired(raw_pool, decode={"env": [{"name": "CHAT_TEMPLATE", "value": text}]})
    for child in found.children:
        assert text not in json.dumps(child.body["metadata"])
    assert text in json.dumps(engine(found, "decode")["env"])
