"""Metadata that every child carries: name, labels, and the pool as its controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import names

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePool
    from pdpool_operator.records import Json


def metadata(pool: InferencePool, role: Role, *parts: str) -> Json:
    """Metadata of the child `<pool>-<part>-…`.

    Nothing of the pool's own labels and annotations is copied: tracking keys of GitOps tools would make the child
    theirs.
    """
    return {
        "name": names.child_name(pool.name, *parts),
        "namespace": pool.namespace,
        "labels": names.child_labels(pool.name, role),
        "ownerReferences": [owner(pool)],
    }


def owner(pool: InferencePool) -> Json:
    """The controller ownerReference: deletion of the pool takes its children along without the operator."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
