"""Services: the router's address for clients, and one headless Service per engine role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import SERVICES, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool

ROUTER_SERVICE_PORT: Final = 80


def router_service(pool: InferencePool) -> Child:
    """What clients call: port 80 of `<pool>-router`."""
    port = {"name": "http", "protocol": "TCP", "port": ROUTER_SERVICE_PORT, "targetPort": "http"}
    body = {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector_labels(pool.name, Role.ROUTER),
            "ports": [port],
        },
    }
    return Child(SERVICES, body, role=Role.ROUTER)


def engine_service(pool: InferencePool, role: Role) -> Child:
    """Names for the pods of a role; routers find them by watching, not by this."""
    port = {"name": "http", "protocol": "TCP", "port": names.ENGINE_HTTP_PORT, "targetPort": "http"}
    body = {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": metadata(pool, role, role.value),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": names.selector_labels(pool.name, role),
            "ports": [port],
        },
    }
    return Child(SERVICES, body, role=role)
