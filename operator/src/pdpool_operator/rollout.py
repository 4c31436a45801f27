"""The next step towards what is desired, without ever leaving a pool with less than it needs.

Boundary: pure; from Observed and Desired to a Plan. Prefill and decode of one revision belong together, so a change
of the revision brings a second set of Deployments beside the first; the old set goes when the whole new one is
available, and at once where it never served: sets of edits that came to nothing would pile up. Requests are paired
within one revision by the router, so no pair is ever mixed on the way. A change of mode is a change of the revision
whose roles have other names; budget, policy and Service of a role that goes stay as long as its pods serve.
"""

from __future__ import annotations

from pdpool_api import names
from pdpool_operator.records import DEPLOYMENTS, Child, ChildKey, Desired, Json, Observed, Plan


def next_step(observed: Observed, desired: Desired) -> Plan:
    """Applies everything desired; removes what is not, older revisions only once the desired one can carry the load."""
    wanted = {child.key for child in desired.children}
    extra = {key: live for key, live in observed.children.items() if key not in wanted}
    engines = [child for child in desired.children if child.revision]
    older = {key: live for key, live in extra.items() if _is_older(key, live)}
    carried = all(available(child, observed.children.get(child.key)) for child in engines)
    idle = {_revision(live) for live in older.values() if not _has_served(live)}
    serving = frozenset() if carried else frozenset(key for key, live in older.items() if _revision(live) not in idle)
    leaving = {_role(older[key]) for key in serving} - {child.role for child in desired.children}
    around = {key for key, live in extra.items() if key.kind != DEPLOYMENTS.kind and _role(live) in leaving}
    return Plan(
        desired=desired,
        apply=desired.children,
        delete=tuple(sorted(key for key, live in extra.items() if key not in serving | around)),
        superseded=serving,
    )


def available(child: Child, live: Json | None) -> bool:
    """True when a Deployment has every desired replica, of its present template, available."""
    if live is None:
        return False
    status = live.get("status", {})
    want = int(child.body["spec"]["replicas"])
    return (
        int(status.get("observedGeneration", 0)) >= int(live["metadata"].get("generation", 0))
        and int(status.get("updatedReplicas", 0)) >= want
        and int(status.get("availableReplicas", 0)) >= want
        and int(status.get("replicas", 0)) == want
    )


def _is_older(key: ChildKey, live: Json) -> bool:
    """True for an engine Deployment of another revision; a change of mode is one, and leaves roles behind."""
    return key.kind == DEPLOYMENTS.kind and _role(live) in names.ENGINE_ROLES


def _role(live: Json) -> str:
    return str(live["metadata"].get("labels", {}).get(names.LABEL_ROLE, ""))


def _revision(live: Json) -> str:
    return str(live["metadata"].get("labels", {}).get(names.LABEL_REVISION, ""))


def _has_served(live: Json) -> bool:
    """True for a Deployment that has a replica available, or had all of them once."""
    status = live.get("status", {})
    arrived = any(each.get("reason") == "NewReplicaSetAvailable" for each in status.get("conditions", ()))
    return arrived or int(status.get("availableReplicas", 0)) > 0
