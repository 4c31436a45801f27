"""Deployment of the router.

Its pods meet the *restricted* Pod Security Standard. The configuration is mounted as a directory and its hash stands
nowhere in the template: the router reloads it by itself, so that a change rolls no router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.build.pods import over, placement, pod_metadata
from pdpool_operator.build.router_access import account_name
from pdpool_operator.build.router_secrets import config_volume, reference_check
from pdpool_operator.records import DEPLOYMENTS, Child, Json

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool

USER_ID: Final = 65_532
PRE_STOP_S: Final = 5
"""How long a leaving router goes on as before, until no Service sends to it any more."""
_EXIT_S: Final = 10
"""Beyond its drain: to close what is left and exit."""
_START_S: Final = 120
_DEFAULT_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}


def router_deployment(pool: InferencePool) -> Child:
    """As many routers as the spec says; a new one is ready before an old one goes, where both find a place."""
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
        "spec": {
            "replicas": pool.spec.router.desired_replicas,
            "paused": False,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": names.selector_labels(pool.name, Role.ROUTER)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1 if _needs_a_node(pool) else 0},
            },
            "template": _template(pool),
        },
    }
    return Child(DEPLOYMENTS, body, role=Role.ROUTER)


def _needs_a_node(pool: InferencePool) -> bool:
    """Two routers never share a node: where each node has one, a new one would wait for its place for ever."""
    return pool.spec.router.template.host_network


def _template(pool: InferencePool) -> Json:
    given = pool.spec.router.template
    security = {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    config = config_volume(pool.spec.router, names.child_name(pool.name, "router"))
    container = _container(pool, config["name"])
    first = reference_check(pool.spec.router, container)
    return {
        "metadata": pod_metadata(pool, Role.ROUTER, given, {}),
        "spec": {
            **placement(pool, Role.ROUTER, given),
            "serviceAccountName": account_name(pool),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": PRE_STOP_S + pool.spec.router.drain_seconds + _EXIT_S,
            "securityContext": over(security, given.pod_security_context),
            **({"initContainers": first} if first else {}),
            "containers": [container],
            "volumes": [config, *given.volumes],
        },
    }


def _resources(pool: InferencePool) -> Json:
    claims = [{"name": each["name"]} for each in pool.spec.router.template.resource_claims]
    found = pool.spec.router.resources or {"requests": dict(_DEFAULT_REQUESTS)}
    return {**({"claims": claims} if claims else {}), **found}


def _container(pool: InferencePool, config_volume_name: str) -> Json:
    given = pool.spec.router.template
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    admin = {"port": "admin", "scheme": "HTTP"}
    return {
        "name": "router",
        "image": pool.spec.router.image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--config", f"{names.ROUTER_CONFIG_DIR}/{names.ROUTER_CONFIG_FILE}"],
        "env": [
            {"name": names.ROUTER_POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [
            {"name": "http", "containerPort": names.ROUTER_API_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": names.ROUTER_ADMIN_PORT, "protocol": "TCP"},
        ],
        "startupProbe": {
            "httpGet": {"path": "/livez", **admin},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": _START_S,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", **admin},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
            "successThreshold": 1,
        },
        "livenessProbe": {
            "httpGet": {"path": "/livez", **admin},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "resources": _resources(pool),
        "securityContext": over(security, given.security_context),
        "volumeMounts": [
            {"name": config_volume_name, "mountPath": names.ROUTER_CONFIG_DIR, "readOnly": True},
            *given.volume_mounts,
        ],
    }
