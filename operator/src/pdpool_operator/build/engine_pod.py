"""Pods of one engine role: the container, its volumes, its resources, the nodes it fits on.

Boundary: pure; how the engine itself is started is the engine's own package. Secrets appear by reference only.
"""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import accelerators, hardware, names
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_operator.build.pods import ZONE_KEY, over, placement

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool, InferencePoolSpec, RoleSpec
    from pdpool_operator.records import Json

CONTAINER: Final = "engine"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
_SHM_VOLUME: Final = "pdpool-shm"
_CACHE_VOLUME: Final = "pdpool-models"
_IPC_LOCK: Final = "IPC_LOCK"


def pod(pool: InferencePool, role: Role) -> Json:
    """The spec of the role's pods; images of the pool's spec are resolved already."""
    spec = pool.spec.role(role)
    template = spec.template
    return {
        **placement(pool, role, template),
        **_on_hardware(pool, spec),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,  # an engine never calls the API server
        "serviceAccountName": template.service_account_name or None,
        "terminationGracePeriodSeconds": vllm.termination_grace_seconds(pool.spec, role),
        "securityContext": template.pod_security_context,
        "containers": [_container(pool, role, spec)],
        "volumes": [*_shm_volume(pool.spec, spec), *_cache_volume(pool.spec, spec), *template.volumes],
    }


def _container(pool: InferencePool, role: Role, spec: RoleSpec) -> Json:
    engine = pool.spec.engine
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
        "resources": resources(pool.spec, role),
        "securityContext": _security_context(pool.spec, role),
        "volumeMounts": [
            *([{"name": _SHM_VOLUME, "mountPath": names.SHM_PATH}] if _shm_volume(pool.spec, spec) else []),
            *([{"name": _CACHE_VOLUME, "mountPath": names.MODEL_CACHE_PATH}] if _cache_volume(pool.spec, spec) else []),
            *spec.template.volume_mounts,
        ],
    }


def resources(spec: InferencePoolSpec, role: Role) -> Json:
    """Requests and limits: what profile, parallelism and RDMA imply, what the author gives over it, name by name."""
    of_role = spec.role(role)
    implied: dict[str, str] = {}
    accelerator = accelerators.resource(spec, role)
    # A resource claim brings the accelerators by itself; an extended resource beside it would take them twice.
    if accelerator and not of_role.template.resource_claims:
        implied[accelerator] = str(vllm.parallelism(spec, role).accelerators)
    if _rdma(spec, role):
        assert spec.transfer.rdma is not None
        implied[spec.transfer.rdma.resource] = str(spec.transfer.rdma.count)
    given: dict[str, Any] = dict(of_role.resources or {})
    requests, limits = given.pop("requests", None) or {}, given.pop("limits", None) or {}
    # The API server takes extended resources only with a limit, equal to the request.
    kept = {name: requests.get(name, count) for name, count in implied.items()}
    claims = given.pop("claims", None) or [{"name": each["name"]} for each in of_role.template.resource_claims]
    found = {**given, "claims": claims, "requests": requests, "limits": {**kept, **limits}}
    return {name: value for name, value in found.items() if value}


def _rdma(spec: InferencePoolSpec, role: Role) -> bool:
    return spec.transfer.rdma is not None and role is not Role.AGGREGATED


def _security_context(spec: InferencePoolSpec, role: Role) -> Json | None:
    given = spec.role(role).template.security_context
    if not _rdma(spec, role):
        return given
    # Memory that a network card reads must not be moved.
    added = (given or {}).get("capabilities", {}).get("add", [])
    locked = [*added, *([] if _IPC_LOCK in added else [_IPC_LOCK])]
    return over(given or {}, {"capabilities": {"add": locked}})


def _on_hardware(pool: InferencePool, spec: RoleSpec) -> Json:
    """Node labels and tolerations of the profile under the author's, and the zone that engines share."""
    profile, template = hardware.profile(spec.hardware), spec.template
    selector = {**({PRODUCT_LABEL: profile.product} if profile.product else {}), **template.node_selector}
    borne = [each.model_dump(exclude_none=True) for each in profile.tolerations]
    tolerations = [*borne, *(dict(each) for each in template.tolerations)]
    found = {
        "nodeSelector": selector,
        "tolerations": [each for place, each in enumerate(tolerations) if each not in tolerations[:place]],
        "affinity": template.affinity or _one_zone(pool),
    }
    return {name: value for name, value in found.items() if value}


def _one_zone(pool: InferencePool) -> Json:
    """KV crosses between zones slowly and at a price: engines prefer the zone that others of the pool are in."""
    term = {
        "topologyKey": ZONE_KEY,
        "labelSelector": {
            "matchLabels": {names.LABEL_POOL: names.label_value(pool.name)},
            "matchExpressions": [
                {"key": names.LABEL_ROLE, "operator": "In", "values": [each.value for each in names.ENGINE_ROLES]}
            ],
        },
    }
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
    }


def _shm_volume(spec: InferencePoolSpec, role: RoleSpec) -> list[Json]:
    """Shared memory of the ranks; none where the author provides /dev/shm."""
    if _provides(role, names.SHM_PATH):
        return []
    return [{"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": str(spec.engine.shm_size)}}]


def _cache_volume(spec: InferencePoolSpec, role: RoleSpec) -> list[Json]:
    """Where downloads are kept; none where nothing is downloaded, or the author mounts something there."""
    if not spec.model.has_cache or _provides(role, names.MODEL_CACHE_PATH):
        return []
    cache = spec.model.cache
    source: Json = {"emptyDir": {}}
    if cache is not None and cache.persistent_volume_claim is not None:
        source = {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}
    elif cache is not None and cache.host_path is not None:
        source = {"hostPath": {"path": cache.host_path.path, "type": "DirectoryOrCreate"}}
    elif cache is not None and cache.empty_dir is not None and cache.empty_dir.size_limit is not None:
        source = {"emptyDir": {"sizeLimit": str(cache.empty_dir.size_limit)}}
    return [{"name": _CACHE_VOLUME, **source}]


def _provides(role: RoleSpec, path: str) -> bool:
    """True when the author mounts something at the path."""
    return any(normpath(mount["mountPath"]) == path for mount in role.template.volume_mounts)
