"""NetworkPolicies: who may talk to the pods of each role. Ingress only.

Engines speak to each other freely (KV moves on ports that the transfer library chooses), to routers by HTTP and events.
A rule without peers would admit everybody, so a rule is made only where it has some.
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
    rules = [
        {"from": [_engines(pool)]},
        {"from": [router], "ports": [*map(_port, http), *(_port(first, last) for first, last in events)]},
        *_watchers(pool, operator_namespace, *http),
    ]
    return _policy(pool, role, rules)


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
