"""Deployment of one engine role at one revision.

The revision stands in the selector and in the name, so that selectors never change: another revision is another
Deployment. Pods carry only labels and annotations of the role's template besides ours. Replicas are always written: a
field that nobody owns falls back to the API server's default. Size and strategy are those of a pool at rest; `rollout`
puts its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdpool_api import accelerators, names
from pdpool_operator.build.engine_pod import CONTAINER, pod
from pdpool_operator.build.metadata import metadata
from pdpool_operator.build.pods import pod_metadata
from pdpool_operator.records import DEPLOYMENTS, Child

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePool
    from pdpool_operator.records import Json

_DEADLINE_MARGIN_S: Final = 120
"""Beyond the start budget: scheduling, and the pull of an image of many gigabytes begin before it."""

__all__ = ["CONTAINER", "engine_deployment", "made_before"]


def engine_deployment(pool: InferencePool, role: Role, revision: str) -> Child:
    """The role's replicas of a revision; images of the pool's spec are resolved already."""
    spec = pool.spec.role(role)
    revision_label = {names.LABEL_REVISION: revision}
    meta = metadata(pool, role, role.value, revision)
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {
            **meta,
            "labels": {**meta["labels"], **revision_label},
        },
        "spec": {
            "replicas": spec.desired_replicas,
            # Written out, so that a rollout that somebody paused goes on.
            "paused": False,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": pool.spec.engine.startup_timeout_seconds + _DEADLINE_MARGIN_S,
            "selector": {"matchLabels": {**names.selector_labels(pool.name, role), **revision_label}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": accelerators.surges(pool.spec)[role],
                    "maxUnavailable": spec.rollout.max_unavailable,
                },
            },
            "template": {
                "metadata": pod_metadata(pool, role, spec.template, revision_label),
                "spec": pod(pool, role),
            },
        },
    }
    return Child(DEPLOYMENTS, body, revision=revision, role=role)


def made_before(pool: InferencePool, child: Child, revision: str, template: Json) -> Child:
    """The Deployment with pods, and of a revision, that were made before; everything else of it as it is made now."""
    assert child.role is not None
    meta, spec = child.body["metadata"], child.body["spec"]
    revision_label = {names.LABEL_REVISION: revision}
    body = {
        **child.body,
        "metadata": {
            **meta,
            "name": names.child_name(pool.name, child.role.value, revision),
            "labels": {**meta["labels"], **revision_label},
        },
        "spec": {
            **spec,
            "selector": {"matchLabels": {**spec["selector"]["matchLabels"], **revision_label}},
            "template": template,
        },
    }
    return replace(child, body=body, revision=revision)
