"""Deployment of one engine role at one revision.

The revision stands in the selector and in the name, so that selectors never change: another revision is another
Deployment. Pods carry only labels and annotations of the role's template besides ours. Replicas are always written: a
field that nobody owns falls back to the API server's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api import hardware, names
from pdpool_api.engines import vllm
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import DEPLOYMENTS, Child, Json

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePool, RoleSpec

CONTAINER: Final = "engine"
SHM_SIZE: Final = "16Gi"
"""Most that ranks of one replica may share through /dev/shm; the container runtime's own default is 64 MiB."""
_SHM_VOLUME: Final = "shm"
_DEADLINE_MARGIN_S: Final = 120
"""Beyond the start budget: scheduling, and the pull of an image of many gigabytes begin before it."""


def engine_deployment(pool: InferencePool, role: Role, revision: str) -> Child:
    """The role's replicas of a revision; images of the pool's spec are resolved already."""
    spec = pool.spec.role(role)
    revision_label = {names.LABEL_REVISION: revision}
    meta = metadata(pool, role, role.value, revision)
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {**meta, "labels": {**meta["labels"], **revision_label}},
        "spec": {
            "replicas": spec.desired_replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": pool.spec.engine.startup_timeout_seconds + _DEADLINE_MARGIN_S,
            "selector": {"matchLabels": {**names.selector_labels(pool.name, role), **revision_label}},
            # Accelerators are scarce: a surge would wait for ones that only the old pods can give back.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": _pod_metadata(pool, role, spec, revision_label),
                "spec": _pod(pool, role, spec),
            },
        },
    }
    return Child(DEPLOYMENTS, body, revision=revision, role=role)


def _pod_metadata(pool: InferencePool, role: Role, spec: RoleSpec, revision_label: dict[str, str]) -> Json:
    given = spec.template.metadata
    labels = {**given.labels, **names.child_labels(pool.name, role), **revision_label}
    return {"labels": labels, **({"annotations": dict(given.annotations)} if given.annotations else {})}


def _pod(pool: InferencePool, role: Role, spec: RoleSpec) -> Json:
    shm = [] if _has_shm(spec) else [{"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": SHM_SIZE}}]
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,  # an engine never calls the API server
        "terminationGracePeriodSeconds": vllm.termination_grace_seconds(pool.spec, role),
        "containers": [_container(pool, role, spec)],
        "volumes": [*shm, *spec.template.volumes],
    }


def _container(pool: InferencePool, role: Role, spec: RoleSpec) -> Json:
    engine = pool.spec.engine
    shm = [] if _has_shm(spec) else [{"name": _SHM_VOLUME, "mountPath": names.SHM_PATH}]
    return {
        "name": CONTAINER,
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        # Absent: the image's own entry point, `vllm serve`.
        "command": list(engine.command) or None,
        "args": vllm.arguments(pool.spec, role),
        "env": vllm.environment(pool.spec, role),
        "ports": vllm.ports(pool.spec, role),
        **vllm.probes(pool.spec, role),
        "lifecycle": {"preStop": vllm.pre_stop(pool.spec, role)},
        "resources": resources(spec),
        "securityContext": spec.template.security_context,
        "volumeMounts": [*shm, *spec.template.volume_mounts],
    }


def resources(spec: RoleSpec) -> Json:
    """Requests and limits: what profile and parallelism imply, what the author gives over it, name by name."""
    accelerator = hardware.profile(spec.hardware).resource
    sizes = spec.parallelism
    implied = {accelerator: str(sizes.tensor * sizes.pipeline * sizes.data)} if accelerator else {}
    given: dict[str, Any] = dict(spec.resources or {})
    requests, limits = given.pop("requests", None) or {}, given.pop("limits", None) or {}
    # Extended resources are asked for by limits; a request that the author gives alone would disagree with ours.
    kept = {name: count for name, count in implied.items() if name not in requests}
    found = {**given, "requests": requests, "limits": {**kept, **limits}}
    return {name: value for name, value in found.items() if value}


def _has_shm(spec: RoleSpec) -> bool:
    """True when the author provides /dev/shm."""
    return any(mount["mountPath"] == names.SHM_PATH for mount in spec.template.volume_mounts) or any(
        volume["name"] == _SHM_VOLUME for volume in spec.template.volumes
    )
