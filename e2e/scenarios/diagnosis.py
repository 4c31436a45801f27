"""What to look at when something on the cluster did not work: pods, their events and the ends of their logs.

Boundary: reads only, and never fails itself: it speaks while an error is being told.
"""

from __future__ import annotations

from e2e.scenarios.api import ApiError, ClusterApi, JsonObject
from e2e.scenarios.pools import view

LOG_LINES = 12
EVENTS = 12
LINE_WIDTH = 220


def report(api: ClusterApi, namespaces: list[str]) -> str:
    """The pods of these namespaces that are not ready, with events and logs; and the last warnings."""
    lines: list[str] = []
    for namespace in namespaces:
        try:
            lines += _namespace(api, namespace)
        except (ApiError, OSError) as error:
            lines.append(f"{namespace}: cannot be read: {error}")
    return "\n".join(line[:LINE_WIDTH] for line in lines)


def _namespace(api: ClusterApi, namespace: str) -> list[str]:
    lines = [f"namespace {namespace}:"]
    for pod in api.items("pods", namespace):
        seen = view(pod)
        restarts = sum(each.get("restartCount", 0) for each in pod.get("status", {}).get("containerStatuses", []))
        lines.append(f"  pod {seen.name}: {seen.state}, restarts {restarts}, ip {seen.ip or 'none'}")
        if not seen.ready:
            lines += [f"    | {line}" for line in api.pod_log(seen.name, namespace, LOG_LINES).splitlines()]
    lines += [f"  event {line}" for line in _warnings(api, namespace)]
    return lines


def _warnings(api: ClusterApi, namespace: str) -> list[str]:
    events = [event for event in api.items("events", namespace) if event.get("type") == "Warning"]
    events.sort(key=_time)
    return [
        f"{event['involvedObject'].get('name')}: {event.get('reason')}: {event.get('message', '').strip()}"
        for event in events[-EVENTS:]
    ]


def _time(event: JsonObject) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
