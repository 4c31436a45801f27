"""What the pods of every role have in common: where they run, and what their template adds.

Boundary: pure. What the author gives wins over what is generated, field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePool, PodTemplate
    from pdpool_operator.records import Json

HOSTNAME_KEY: Final = "kubernetes.io/hostname"
ZONE_KEY: Final = "topology.kubernetes.io/zone"


def pod_metadata(pool: InferencePool, role: Role, template: PodTemplate, more: dict[str, str]) -> Json:
    """Labels and annotations of the pods: the author's, and ours over them."""
    given = template.metadata
    labels = {**given.labels, **names.child_labels(pool.name, role), **more}
    return {"labels": labels, **({"annotations": dict(given.annotations)} if given.annotations else {})}


def placement(pool: InferencePool, role: Role, template: PodTemplate) -> Json:
    """Fields of a pod's spec that say where it runs; by default replicas of a role prefer different nodes."""
    constraints = [dict(each) for each in template.topology_spread_constraints]
    found: Json = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": [dict(each) for each in template.tolerations],
        "affinity": template.affinity or {},
        "topologySpreadConstraints": constraints or [_apart(pool, role)],
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "resourceClaims": [dict(each) for each in template.resource_claims],
        "imagePullSecrets": [dict(each) for each in pool.spec.engine.image_pull_secrets],
    }
    if template.host_network:
        # Names of Services would else not be found: pods of the node's network use the node's own resolver.
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {name: value for name, value in found.items() if value}


def over(generated: Json, given: Json | None) -> Json:
    """Two objects, the author's over ours at every depth of mappings; lists are replaced."""
    result: Json = dict(generated)
    for name, value in (given or {}).items():
        ours: Any = result.get(name)
        result[name] = over(ours, value) if isinstance(ours, dict) and isinstance(value, dict) else value
    return result


def _apart(pool: InferencePool, role: Role) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME_KEY,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector_labels(pool.name, role)},
    }
