"""NetworkPolicies: who may talk to the pods of each role. Ingress only.

Engines speak to each other freely (KV moves on ports that the transfer library chooses), to routers by HTTP and events.
A rule without peers admits everybody, so one is made only where it has some, or where its senders cannot be told apart:
to a network plugin a pod on the node's network is the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import NETWORK_POLICIES, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool
    from pdpool_operator.records import Json

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""Set by the API server on every namespace."""
OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "pdpool-operator"}


def engine_policy(pool: InferencePool, role: Role, operator_namespace: str | None) -> Child:
    """Everything from the pool's engines; HTTP and events from its routers; HTTP from operator and monitoring."""
    # A pod of an older revision may not be on the node's network yet, and answers at the usual port until it goes.
    http = sorted({names.ENGINE_HTTP_PORT, vllm.http_port(pool.spec, role)})
    events = vllm.event_ports(pool.spec, role)
    router = {"podSelector": {"matchLabels": names.selector_labels(pool.name, Role.ROUTER)}}
    of_router: Json = {"ports": [*map(_port, http), *(_port(first, last) for first, last in events)]}
    rules: list[Json] = [
        {} if _faceless_peers(pool, role) else {"from": [_engines(pool)]},
        of_router if pool.spec.router.template.host_network else {"from": [router], **of_router},
        *_watchers(pool, operator_namespace, *http),
    ]
    return _policy(pool, role, rules)


def openings(pool: InferencePool) -> tuple[str, ...]:
    """What the policies cannot keep out, for a person."""
    spec = pool.spec
    wide = [role for role in spec.roles if _faceless_peers(pool, role)]
    return (
        *(
            f"{role}: its ports are open to all, as engines of another role are on the node's network, where policies"
            " do not tell pods apart"
            for role in wide
        ),
        *(
            ["engines' HTTP and event ports are open to all, as the router is on the node's network"]
            if spec.router.template.host_network
            else []
        ),
    )


def _faceless_peers(pool: InferencePool, role: Role) -> bool:
    """True where engines of another role come from addresses of nodes."""
    return any(pool.spec.role(other).template.host_network for other in pool.spec.roles if other is not role)


def router_policy(pool: InferencePool, operator_namespace: str | None) -> Child:
    """The API from anywhere; the admin port from operator and monitoring."""
    rules = [
        {"ports": [_port(names.ROUTER_API_PORT)]},
        *_watchers(pool, operator_namespace, names.ROUTER_ADMIN_PORT),
    ]
    return _policy(pool, Role.ROUTER, rules)


def _policy(pool: InferencePool, role: Role, rules: list[Json]) -> Child:
    body = {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": metadata(pool, role, role.value),
        "spec": {
            "podSelector": {"matchLabels": names.selector_labels(pool.name, role)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }
    return Child(NETWORK_POLICIES, body, role=role)


def _engines(pool: InferencePool) -> Json:
    roles = [each.value for each in names.ENGINE_ROLES]
    return {
        "podSelector": {
            "matchLabels": {names.LABEL_POOL: names.label_value(pool.name)},
            "matchExpressions": [{"key": names.LABEL_ROLE, "operator": "In", "values": roles}],
        }
    }


def _watchers(pool: InferencePool, operator_namespace: str | None, *ports: int) -> list[Json]:
    peers: list[dict[str, Any]] = [
        {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}} for name in pool.spec.monitoring.from_namespaces
    ]
    if operator_namespace:
        of_operator = {"matchLabels": {NAMESPACE_LABEL: operator_namespace}}
        peers.append({"namespaceSelector": of_operator, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}})
    return [{"from": peers, "ports": [*map(_port, ports)]}] if peers else []


def _port(first: int, last: int | None = None) -> Json:
    return {"protocol": "TCP", "port": first, **({"endPort": last} if last is not None and last > first else {})}
