"""Every group, label, port, path, header, environment variable and metric name: each once.

Boundary: constants and the functions that make a name out of a pool's name. Both planes and the end-to-end tools
read them here, so that a rename is one edit.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

# --- the API -------------------------------------------------------------------------------------------------------
GROUP: Final = "pdpool.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferencePool"
PLURAL: Final = "inferencepools"
SINGULAR: Final = "inferencepool"
SHORT_NAME: Final = "pdp"
CATEGORY: Final = "pdpool"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

FIELD_MANAGER: Final = "pdpool"
PART_OF: Final = "pdpool"


class Role(StrEnum):
    """What a replica does; also the value of labels `pdpool.io/role` and `app.kubernetes.io/component`."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"
    ROUTER = "router"


ENGINE_ROLES: Final = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)

# --- labels and annotations ----------------------------------------------------------------------------------------
LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_POOL: Final = f"{GROUP}/pool"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_REVISION: Final = f"{GROUP}/revision"

ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
"""On children: hash of the object that the operator last applied."""
ANNOTATION_SECRETS: Final = f"{GROUP}/secrets"
"""On engine Deployments: keyed digest of the Secrets' values that were last seen."""
ANNOTATION_SECRETS_ROLLED: Final = f"{GROUP}/secrets-rolled"
"""On engine Deployments and their pods: the digest of the last change that rolled them."""
ANNOTATION_ACCOUNT: Final = f"{GROUP}/account"
"""On pods of the router: uid of a ServiceAccount that took the place of the first one."""
ANNOTATION_DRAINING: Final = f"{GROUP}/draining"
"""On pods: RFC 3339 time since when a leaving pod gets no new request."""
ANNOTATION_TEMPLATE: Final = f"{GROUP}/template"
"""On engine Deployments: hash of the pod template that the operator last applied."""
ANNOTATION_UNDONE: Final = f"{GROUP}/undone"
"""On a Deployment of an older revision: the generation at which a change within the revision was taken back."""
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""On pods: Kubernetes removes those with the lowest number first."""

DIGEST_KEY_SECRET: Final = "pdpool-operator-digest-key"  # noqa: S105 - a name
"""Beside the operator: the random key of the digests."""

# --- ports ---------------------------------------------------------------------------------------------------------
ENGINE_HTTP_PORT: Final = 8000
NIXL_SIDE_CHANNEL_PORT: Final = 5600
KV_EVENTS_PORT: Final = 5557
KV_REPLAY_PORT: Final = 5657
KV_EVENTS_PORT_NAME: Final = "kv-events"
KV_REPLAY_PORT_NAME: Final = "kv-replay"
"""What pods call these ports of their first rank; see `rank_port_name`."""
ROUTER_API_PORT: Final = 8080
ROUTER_ADMIN_PORT: Final = 9090
OPERATOR_PORT: Final = 8081

# --- paths ---------------------------------------------------------------------------------------------------------
ROUTER_CONFIG_DIR: Final = "/etc/pdpool"
ROUTER_POD_NAME_VARIABLE: Final = "PDPOOL_POD_NAME"
"""Tells a router which pod is its own: on the node's network, and for long names, its host is called otherwise."""
ROUTER_CONFIG_FILE: Final = "router.yaml"
ROUTER_KEYS_FILE: Final = "keys"
ROUTER_SALT_FILE: Final = "salt"
ROUTER_CERT_FILE: Final = "tls.crt"
ROUTER_KEY_FILE: Final = "tls.key"
"""Entries of the Secrets that a router's spec names, and files beside its configuration."""
MODEL_CACHE_PATH: Final = "/var/cache/pdpool"
"""Where engines keep what they download (HF_HOME)."""
SHM_PATH: Final = "/dev/shm"  # noqa: S108 - the kernel's name for POSIX shared memory, not a temporary file

# --- HTTP headers --------------------------------------------------------------------------------------------------
HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_PREFILL: Final = "x-pdpool-prefill"
HEADER_DATA_PARALLEL_RANK: Final = "x-data-parallel-rank"

# --- metrics -------------------------------------------------------------------------------------------------------
ROUTER_METRICS_PREFIX: Final = "pdpool_router_"
OPERATOR_METRICS_PREFIX: Final = "pdpool_operator_"

# --- names of children ---------------------------------------------------------------------------------------------
NAME_MAX_LENGTH: Final = 63
_HASH_LENGTH: Final = 8
_UNSAFE = re.compile(r"[^a-z0-9-]")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def child_name(pool: str, *parts: str) -> str:
    """Name of a child: `<pool>-<part>-…`, a valid DNS-1035 label of at most 63 characters (Services need one).

    A pool's name may hold dots, begin with a digit or be too long; it is then rewritten and a hash of the whole
    original name is put in, so that near-equal names stay distinct and a name never changes.
    """
    suffix = "".join(f"-{part}" for part in parts)
    room = NAME_MAX_LENGTH - len(suffix)
    safe = _UNSAFE.sub("-", pool.lower())
    if safe[:1].isdigit():
        safe = f"p{safe}"
    if safe == pool and len(safe) <= room:
        return f"{safe}{suffix}"
    head = safe[: room - _HASH_LENGTH - 1].rstrip("-")
    return f"{head}-{_digest(pool)}{suffix}"


def label_value(pool: str) -> str:
    """The pool's name as a label value (at most 63 characters): itself where it fits, as names always begin alike."""
    if len(pool) <= NAME_MAX_LENGTH:
        return pool
    return f"{pool[: NAME_MAX_LENGTH - _HASH_LENGTH - 1].rstrip('-.')}-{_digest(pool)}"


def rank_port_name(name: str, rank: int) -> str:
    """What a pod calls a port of one of its data-parallel ranks."""
    return name if rank == 0 else f"{name}-{rank}"


def selector_labels(pool: str, role: Role) -> dict[str, str]:
    """Labels that tell the pods of one role of one pool; part of selectors, hence never changed."""
    return {LABEL_POOL: label_value(pool), LABEL_ROLE: role.value}


def child_labels(pool: str, role: Role) -> dict[str, str]:
    """Labels that every child of a pool carries."""
    return {
        LABEL_APP_NAME: "pdpool-router" if role is Role.ROUTER else "pdpool-engine",
        LABEL_APP_INSTANCE: label_value(pool),
        LABEL_APP_COMPONENT: role.value,
        LABEL_APP_PART_OF: PART_OF,
        LABEL_APP_MANAGED_BY: PART_OF,
        **selector_labels(pool, role),
    }
