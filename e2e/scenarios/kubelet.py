"""What a kubelet would say of a pod, for control planes without a node.

Boundary: pure; who says it to the API server, and when, is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from e2e.scenarios.api import JsonObject

LONG_AGO: Final = "2026-01-01T00:00:00Z"
"""Always the same, so that saying it again changes nothing."""


def pod_status(pod: JsonObject, *, ready: bool, address: str = "", at: str = LONG_AGO) -> JsonObject:
    """Of a pod all of whose containers run since `at` (RFC 3339); without an address it keeps what it has."""
    container = {"imageID": "x", "ready": ready, "restartCount": 0, "started": True}
    state = {"running": {"startedAt": at}}
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": at}
    return {
        "phase": "Running",
        "conditions": [condition],
        "containerStatuses": [
            {**container, "name": each["name"], "image": each["image"], "state": state}
            for each in pod["spec"]["containers"]
        ],
        **({"podIP": address, "podIPs": [{"ip": address}]} if address else {}),
    }
