"""NetworkPolicies, checked by evaluating their rules as a network plugin would.

No network of the test cluster enforces them; here an evaluator of the few features that are used says who may talk to
whom on which port.
"""

from __future__ import annotations

from typing import Any

import pytest

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool
from pdpool_operator import build
from pdpool_operator.records import NETWORK_POLICIES, Desired, Images, Surroundings

IMAGES = Images(engine="e:v0.33.0", router="r:1")
OPERATOR = {"app.kubernetes.io/name": "pdpool-operator", "app.kubernetes.io/part-of": "pdpool"}


def policies(raw: dict[str, Any], operator_namespace: str | None = "pdpool-system") -> list[dict[str, Any]]:
    pool = InferencePool.parse(raw)
    mode = "Aggregated" if pool.spec.mode == "Aggregated" else "Disaggregated"
    found = build.desired(
        pool.model_copy(update={"spec": pool.spec.in_mode(mode)}), IMAGES, Surroundings(operator_namespace)
    )
    assert isinstance(found, Desired)
    return [child.body for child in found.children if child.resource is NETWORK_POLICIES]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return wanted and all(labels.get(each["key"]) in each["values"] for each in expressions)


def admits_peer(peer: dict[str, Any], namespace: str, labels: dict[str, str], own: str) -> bool:
    assert peer, "an empty peer means everybody"
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace}):
            return False
    elif namespace != own:
        return False
    return selects(peer.get("podSelector", {}), labels)


def admits_port(ports: list[dict[str, Any]] | None, port: int) -> bool:
    return ports is None or any(each["port"] <= port <= each.get("endPort", each["port"]) for each in ports)


def allowed(
    of: list[dict[str, Any]], source: tuple[str, dict[str, str]], target: dict[str, str], port: int, own: str
) -> bool:
    """Whether some policy that selects the target lets the source in; a pod that none selects takes everybody."""
    about = [each["spec"] for each in of if selects(each["spec"]["podSelector"], target)]
    if not about:
        return True
    return any(
        admits_port(rule.get("ports"), port)
        and ("from" not in rule or any(admits_peer(peer, *source, own) for peer in rule["from"]))
        for spec in about
        for rule in spec["ingress"]
    )


def pod(role: str, pool: str = "tiny") -> dict[str, str]:
    return names.child_labels(pool, Role(role))


SERVING = "serving"
ROUTER, PREFILL, DECODE = ((SERVING, pod(role)) for role in ("router", "prefill", "decode"))
CLIENT = ("shop", {"app": "shop"})
NEIGHBOUR = (SERVING, {"app": "shop"})
IMPOSTOR = ("elsewhere", pod("prefill"))
OTHER_POOL = (SERVING, pod("decode", "other"))
PROMETHEUS = ("monitoring", {"app": "prometheus"})
OPERATOR_POD = ("pdpool-system", OPERATOR)
OPERATOR_NEIGHBOUR = ("pdpool-system", {"app": "x"})


@pytest.mark.parametrize(
    ("source", "target", "port", "expected"),
    [
        (PREFILL, "decode", 5600, True),
        (DECODE, "prefill", 5600, True),
        (DECODE, "prefill", 41_234, True),  # UCX chooses its ports
        (DECODE, "decode", 8000, True),
        (ROUTER, "prefill", 8000, True),
        (ROUTER, "decode", 8000, True),
        (ROUTER, "decode", 5557, True),
        (ROUTER, "decode", 5558, True),  # the second rank's events
        (ROUTER, "decode", 5658, True),
        (ROUTER, "decode", 5559, False),
        (ROUTER, "prefill", 5558, False),
        (ROUTER, "prefill", 5600, False),
        (OPERATOR_POD, "decode", 8000, True),
        (OPERATOR_POD, "decode", 5557, False),
        (OPERATOR_NEIGHBOUR, "decode", 8000, False),
        (PROMETHEUS, "decode", 8000, True),
        (PROMETHEUS, "decode", 5557, False),
        (CLIENT, "decode", 8000, False),
        (NEIGHBOUR, "prefill", 8000, False),
        (IMPOSTOR, "decode", 5600, False),
        (OTHER_POOL, "prefill", 5600, False),
        (CLIENT, "router", 8080, True),
        (NEIGHBOUR, "router", 8080, True),
        (CLIENT, "router", 9090, False),
        (PREFILL, "router", 9090, False),
        (PROMETHEUS, "router", 9090, True),
        (OPERATOR_POD, "router", 9090, True),
        (OPERATOR_POD, "router", 22, False),
    ],
)
def test_who_may_talk_to_whom(
    raw_pool: dict[str, Any], source: tuple[str, dict[str, str]], target: str, port: int, *, expected: bool
) -> None:
    """Engines among themselves, routers to what they need, operator and monitoring to metrics, clients to the API."""
    raw_pool["spec"]["decode"]["parallelism"] = {"data": 2}
    assert allowed(policies(raw_pool), source, pod(target), port, SERVING) is expected


def test_an_aggregated_role_is_guarded_alike(raw_pool: dict[str, Any]) -> None:
    """Its policy admits routers and keeps strangers out."""
    raw_pool["spec"].update(mode="Aggregated")
    del raw_pool["spec"]["prefill"]
    found = policies(raw_pool)
    assert allowed(found, ROUTER, pod("aggregated"), 8000, SERVING)
    assert not allowed(found, CLIENT, pod("aggregated"), 8000, SERVING)


@pytest.mark.parametrize("source", [ROUTER, PROMETHEUS, OPERATOR_POD], ids=["router", "monitoring", "operator"])
@pytest.mark.parametrize("port", [8000, 9000])
def test_a_move_to_the_nodes_network_cuts_nobody_off(
    raw_pool: dict[str, Any], source: tuple[str, dict[str, str]], port: int
) -> None:
    """While decode rolls, its old pods answer at the old port, its new ones at their own."""
    raw_pool["spec"]["decode"]["template"] = {"hostNetwork": True}
    assert allowed(policies(raw_pool), source, pod("decode"), port, SERVING)
    assert not allowed(policies(raw_pool), CLIENT, pod("decode"), port, SERVING)


@pytest.mark.parametrize("port", [8000, 9090, 5557])
def test_without_watchers_no_rule_is_open_to_everybody(raw_pool: dict[str, Any], port: int) -> None:
    """A rule without peers would admit all, so none is made where there is nobody to name."""
    raw_pool["spec"]["monitoring"] = {"namespaces": []}
    found = policies(raw_pool, None)
    for target in ("router", "prefill", "decode"):
        assert not allowed(found, CLIENT, pod(target), port, SERVING)
        assert not allowed(found, OPERATOR_POD, pod(target), port, SERVING)


def test_monitoring_lives_where_the_author_says(raw_pool: dict[str, Any]) -> None:
    """Named namespaces replace the default."""
    raw_pool["spec"]["monitoring"] = {"namespaces": ["watch", "more"]}
    found = policies(raw_pool)
    for namespace in ("watch", "more"):
        assert allowed(found, (namespace, {}), pod("decode"), 8000, SERVING)
    assert not allowed(found, PROMETHEUS, pod("decode"), 8000, SERVING)


def test_only_ingress_is_governed(raw_pool: dict[str, Any]) -> None:
    """Egress stays free: engines fetch models."""
    assert all(each["spec"]["policyTypes"] == ["Ingress"] for each in policies(raw_pool))


@pytest.mark.parametrize("sender", [("kube-node", {}), CLIENT], ids=["node", "client"])
def test_pods_on_the_nodes_network_are_not_cut_off(
    raw_pool: dict[str, Any], sender: tuple[str, dict[str, str]]
) -> None:
    """To a policy a pod on the node's network is no pod: what it must reach is open, and the pool says so."""
    raw_pool["spec"]["router"] = {"template": {"hostNetwork": True}}
    found = policies(raw_pool)
    assert allowed(found, sender, pod("decode"), 8000, SERVING)
    assert allowed(found, sender, pod("prefill"), 5557, SERVING)
    assert not allowed(found, sender, pod("prefill"), 5600, SERVING)
    raw_pool["spec"]["router"] = {}
    raw_pool["spec"]["decode"]["template"] = {"hostNetwork": True}
    found = policies(raw_pool)
    assert allowed(found, sender, pod("prefill"), 41_234, SERVING), "decode pulls KV from ports that UCX chooses"
    assert not allowed(found, sender, pod("decode"), 8000, SERVING)


@pytest.mark.parametrize(("role", "words"), [("router", "event ports"), ("decode", "prefill: its ports"), ("", "")])
def test_what_is_open_is_advised(raw_pool: dict[str, Any], role: str, words: str) -> None:
    """Nobody believes in a wall that is none."""
    if role:
        raw_pool["spec"].setdefault(role, {})["template"] = {"hostNetwork": True}
    found = build.desired(InferencePool.parse(raw_pool), IMAGES)
    assert isinstance(found, Desired)
    said = [each.message for each in found.remarks if "open to all" in each.message]
    assert len(said) == bool(role)
    assert all(words in each for each in said)
