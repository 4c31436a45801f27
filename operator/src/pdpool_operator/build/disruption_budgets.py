"""PodDisruptionBudget of each role: what `kubectl drain` and autoscalers of nodes may take at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.build.metadata import metadata
from pdpool_operator.records import BUDGETS, Child

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool

ROUTER_MAX_UNAVAILABLE: Final = 1


def disruption_budget(pool: InferencePool, role: Role) -> Child:
    """The budget of a role, over all of its revisions; a router may always be evicted, so that nodes can be drained."""
    is_router = role is Role.ROUTER
    allowed = ROUTER_MAX_UNAVAILABLE if is_router else pool.spec.role(role).disruption_budget.max_unavailable
    body = {
        "apiVersion": BUDGETS.api_version,
        "kind": BUDGETS.kind,
        "metadata": metadata(pool, role, role.value),
        "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": names.selector_labels(pool.name, role)}},
    }
    return Child(BUDGETS, body, role=role)
