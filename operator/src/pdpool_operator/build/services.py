"""Services: the router's address for clients, and one headless Service per engine role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import names
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import SERVICES, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool


def router_service(pool: InferencePool) -> Child:
    """What clients call: `<pool>-router`."""
    given = pool.spec.router.service
    port = {"name": "http", "protocol": "TCP", "port": given.port, "targetPort": "http"}
    annotations = {"annotations": dict(given.annotations)} if given.annotations else {}
    body = {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": {**metadata(pool, Role.ROUTER, "router"), **annotations},
        "spec": {
            "type": given.type,
            "selector": names.selector_labels(pool.name, Role.ROUTER),
            "ports": [port],
        },
    }
    return Child(SERVICES, body, role=Role.ROUTER)


def engine_service(pool: InferencePool, role: Role) -> Child:
    """Names for the pods of a role; routers find them by watching, not by this."""
    port = {"name": "http", "protocol": "TCP", "port": vllm.http_port(pool.spec, role), "targetPort": "http"}
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
