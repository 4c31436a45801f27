"""A real one-node Kubernetes as a tool: `python -m e2e.cluster up` and `down`, and the same as a library.

Boundary: knows nothing of pdpool; it brings up Kubernetes and takes it down, and lets tests see what happened in it.
Why not a packaged one (kind, k3s): those start from images of a registry, which is not always within reach.
"""

from e2e.cluster.audit import AuditEntry, AuditLog, Moment, service_account_user
from e2e.cluster.cluster import Cluster
from e2e.cluster.layout import load
from e2e.cluster.lifecycle import (
    DEFAULT_CONTROL_PLANE_NAME,
    DEFAULT_NODE_NAME,
    down,
    start_daemon,
    status,
    stop_daemon,
    up,
)
from e2e.cluster.progress import ClusterError, Progress

__all__ = [
    "DEFAULT_CONTROL_PLANE_NAME",
    "DEFAULT_NODE_NAME",
    "AuditEntry",
    "AuditLog",
    "Cluster",
    "ClusterError",
    "Moment",
    "Progress",
    "down",
    "load",
    "service_account_user",
    "start_daemon",
    "status",
    "stop_daemon",
    "up",
]
