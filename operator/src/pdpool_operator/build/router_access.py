"""ServiceAccount, Role and RoleBinding of the router: what it may read in order to find its engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool


def account_name(pool: InferencePool) -> str:
    """The ServiceAccount of the router's pods: the author's, else the pool's own."""
    return pool.spec.router.template.service_account_name or names.child_name(pool.name, "router")


def service_account(pool: InferencePool) -> Child:
    """The identity of the router's pods."""
    body = {
        "apiVersion": SERVICE_ACCOUNTS.api_version,
        "kind": SERVICE_ACCOUNTS.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
    }
    return Child(SERVICE_ACCOUNTS, body, role=Role.ROUTER)


def role(pool: InferencePool) -> Child:
    """Pods, and the chain of their owners up to the pool, to read only."""
    read = ["get", "list", "watch"]
    body = {
        "apiVersion": ROLES.api_version,
        "kind": ROLES.kind,
        "metadata": metadata(pool, Role.ROUTER, "router"),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": read},
            {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": read},
        ],
    }
    return Child(ROLES, body, role=Role.ROUTER)


def role_binding(pool: InferencePool) -> Child:
    """Gives the Role to the ServiceAccount of the router's pods."""
    meta = metadata(pool, Role.ROUTER, "router")
    body = {
        "apiVersion": ROLE_BINDINGS.api_version,
        "kind": ROLE_BINDINGS.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": meta["name"]},
        "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": account_name(pool), "namespace": pool.namespace}],
    }
    return Child(ROLE_BINDINGS, body, role=Role.ROUTER)
