"""Children of kinds that other projects define: HTTPRoute (Gateway API) and PodMonitor (Prometheus operator).

Boundary: pure; whether the cluster has the kinds is decided by the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import HTTP_ROUTES, POD_MONITORS, SERVICES, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool

_NO_TIMEOUT: Final = "0s"
"""Of the Gateway API; an absent one leaves it to the gateway, and some cut after 15 s."""


def http_route(pool: InferencePool) -> Child | None:
    """The route to the router's Service; None where the spec asks for none."""
    route = pool.spec.router.http_route
    if route is None:
        return None
    meta = metadata(pool, Role.ROUTER, "router")
    parents = [each.model_dump(by_alias=True, exclude_none=True) for each in route.parent_refs]
    backend = {
        "group": SERVICES.group,
        "kind": SERVICES.kind,
        "name": meta["name"],
        "port": pool.spec.router.service.port,
    }
    body = {
        "apiVersion": HTTP_ROUTES.api_version,
        "kind": HTTP_ROUTES.kind,
        "metadata": meta,
        "spec": {
            **({"parentRefs": parents} if parents else {}),
            **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
            "rules": [{"backendRefs": [backend], "timeouts": {"request": _NO_TIMEOUT}}],
        },
    }
    return Child(HTTP_ROUTES, body, role=Role.ROUTER)


def pod_monitors(pool: InferencePool) -> list[Child]:
    """One PodMonitor for each role; none where the spec asks for none."""
    if not pool.spec.monitoring.pod_monitor:
        return []
    return [_pod_monitor(pool, role, "admin" if role is Role.ROUTER else "http") for role in _roles(pool)]


def _roles(pool: InferencePool) -> tuple[Role, ...]:
    return (Role.ROUTER, *pool.spec.roles)


def _pod_monitor(pool: InferencePool, role: Role, port: str) -> Child:
    body = {
        "apiVersion": POD_MONITORS.api_version,
        "kind": POD_MONITORS.kind,
        "metadata": metadata(pool, role, role.value),
        "spec": {
            "selector": {"matchLabels": names.selector_labels(pool.name, role)},
            "podMetricsEndpoints": [{"port": port, "path": "/metrics"}],
            "podTargetLabels": [names.LABEL_POOL, names.LABEL_ROLE],
        },
    }
    return Child(POD_MONITORS, body, role=role)
