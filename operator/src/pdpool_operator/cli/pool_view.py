"""A pool as a person looks at it: roles, revisions, pods, and why something is not as it should be.

Boundary: pure; from objects of the API server to plain values (`-o json` prints them as they are), and from those to
lines of text. Words of pods and conditions come from a cluster: control characters in them are shown, not obeyed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from pdpool_api import names
from pdpool_api.conditions import ConditionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdpool_operator.cli.access import Found
    from pdpool_operator.records import Json

_GOOD: Final = {
    ConditionType.READY: "True",
    ConditionType.SPEC_VALID: "True",
    ConditionType.SCALING_ACTIVE: "True",
    ConditionType.TRANSFER_HEALTHY: "True",
    ConditionType.ROUTING_HEALTHY: "True",
    ConditionType.ADVISORY: "False",
    ConditionType.STALLED: "False",
}
"""What each condition says when all is well; Progressing is neither good nor bad."""
_ROLE_ORDER: Final = {role.value: place for place, role in enumerate(names.Role)}
_DAY_S: Final = 86_400
_HOUR_S: Final = 3600
_MINUTE_S: Final = 60
_COLOURS: Final = {"True": "green", "False": "red", "Unknown": "yellow"}


def view(found: Found, now: datetime) -> Json:
    """Everything that is shown, as plain values; ages in whole seconds."""
    metadata, status = found.pool["metadata"], found.pool.get("status") or {}
    conditions = [
        {name: each.get(name, "") for name in ("type", "status", "reason", "message")}
        for each in status.get("conditions", ())
    ]
    return {
        "name": found.name,
        "namespace": found.namespace,
        "model": found.pool["spec"]["model"]["id"],
        "mode": status.get("mode", ""),
        "url": status.get("url", ""),
        "revision": status.get("revision", ""),
        "generation": metadata.get("generation", 0),
        "observedGeneration": status.get("observedGeneration", 0),
        "deleting": "deletionTimestamp" in metadata,
        "ageSeconds": _age_s(metadata.get("creationTimestamp"), now),
        "gpus": status.get("gpus"),
        "roles": [_role(role, status[role]) for role in ("prefill", "decode", "router") if status.get(role)],
        "revisions": _revisions(found.deployments, status.get("revision", "")),
        "pods": [_pod(each, now) for each in sorted(found.pods, key=_place)],
        "conditions": conditions,
    }


def _role(role: str, said: Json) -> Json:
    """The router has a size, and no desired one of its own in the status."""
    return {
        "role": role,
        "ready": said.get("readyReplicas", 0),
        "desired": said.get("desiredReplicas", said.get("replicas", 0)),
        "updated": said.get("updatedReplicas", said.get("replicas", 0)),
        "unschedulable": said.get("unschedulableReplicas", 0),
        "reason": said.get("reason", ""),
        "message": said.get("message", ""),
    }


def _revisions(deployments: Iterable[Json], current: str) -> list[Json]:
    """Engine Deployments by revision, the current one first."""
    found: dict[str, list[Json]] = {}
    for each in deployments:
        labels = each["metadata"].get("labels", {})
        if names.LABEL_REVISION in labels:
            state = each.get("status", {})
            of_role = {
                "role": labels.get(names.LABEL_ROLE, ""),
                "deployment": each["metadata"]["name"],
                "desired": each["spec"].get("replicas", 1),
                "replicas": state.get("replicas", 0),
                "ready": state.get("readyReplicas", 0),
            }
            found.setdefault(labels[names.LABEL_REVISION], []).append(of_role)
    return [
        {
            "revision": revision,
            "current": revision == current,
            "roles": sorted(roles, key=lambda each: (_ROLE_ORDER.get(each["role"], 9), each["deployment"])),
        }
        for revision, roles in sorted(found.items(), key=lambda each: (each[0] != current, each[0]))
    ]


def _place(pod: Json) -> tuple[int, str]:
    role = pod["metadata"].get("labels", {}).get(names.LABEL_ROLE, "")
    return _ROLE_ORDER.get(role, len(_ROLE_ORDER)), pod["metadata"]["name"]


def _pod(pod: Json, now: datetime) -> Json:
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return {
        "name": metadata["name"],
        "role": labels.get(names.LABEL_ROLE, ""),
        "revision": labels.get(names.LABEL_REVISION, ""),
        "ready": _condition(status, "Ready").get("status") == "True",
        "state": _state(metadata, status, containers),
        "message": _message(status, containers),
        "restarts": sum(each.get("restartCount", 0) for each in containers),
        "node": pod.get("spec", {}).get("nodeName", ""),
        "ageSeconds": _age_s(metadata.get("creationTimestamp"), now),
    }


def _state(metadata: Json, status: Json, containers: Sequence[Json]) -> str:
    """One word: the first that applies of leaving, why it waits, why it ended, and its phase."""
    scheduled = _condition(status, "PodScheduled")
    states = [each.get("state", {}) for each in containers]
    ended = [each["terminated"] for each in states if each.get("terminated")]
    found = (
        "Terminating" if "deletionTimestamp" in metadata else "",
        "Draining" if names.ANNOTATION_DRAINING in metadata.get("annotations", {}) else "",
        status.get("reason", ""),  # Evicted, NodeLost
        *(each.get("waiting", {}).get("reason", "") for each in states),
        *(each.get("reason") or "Error" for each in ended if each.get("exitCode") or each.get("signal")),
        (scheduled.get("reason") or "Pending") if scheduled.get("status") == "False" else "",
        status.get("phase", ""),
    )
    return str(next(filter(None, found), "Unknown"))


def _message(status: Json, containers: Sequence[Json]) -> str:
    """Why it is in that state, in the cluster's words; what ended its last life, when it has had several."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message", ""))
    for each in containers:
        state = each.get("state", {})
        words = state.get("waiting", {}).get("message") or state.get("terminated", {}).get("message")
        if words:
            return str(words)
    for each in containers:
        if ended := each.get("lastState", {}).get("terminated"):
            return f"last ended by {ended.get('reason') or 'Error'}, exit code {ended.get('exitCode', '?')}"
    return str(status.get("message", ""))


def _condition(status: Json, kind: str) -> Json:
    found: Json = next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
    return found


def _age_s(stamp: str | None, now: datetime) -> int | None:
    if not stamp:
        return None
    return max(0, int((now - datetime.fromisoformat(stamp).astimezone(UTC)).total_seconds()))


# --- as text -------------------------------------------------------------------------------------------------------


def lines(shown: Json) -> Iterator[str]:
    """The view as text, coloured; `click.echo` leaves the colours out where nobody sees them."""
    yield f"{click.style(printable(shown['name']), bold=True)} in {shown['namespace']}: {_sentence(shown)}"
    facts = {
        "model": shown["model"],
        "mode": shown["mode"],
        "url": shown["url"],
        "revision": shown["revision"],
        "gpus": _gpus(shown["gpus"]),
        "age": duration(shown["ageSeconds"]),
    }
    yield from (f"  {name:<9} {printable(value)}" for name, value in facts.items() if value)
    yield from _condition_lines(shown["conditions"])
    if shown["roles"]:
        yield ""
        yield from table(("ROLE", "READY", "UPDATED", "WHY"), map(_role_row, shown["roles"]))
    if len(shown["revisions"]) > 1:
        yield ""
        yield from table(("REVISION", "", "ROLE", "READY", "WANTED"), _revision_rows(shown["revisions"]))
    if shown["pods"]:
        yield ""
        yield from table(
            ("POD", "ROLE", "REVISION", "READY", "STATE", "RESTARTS", "NODE", "AGE"), map(_pod_row, shown["pods"])
        )
        told = [each for each in shown["pods"] if each["message"] and not each["ready"]]
        yield from (f"  {each['name']}: {printable(each['message'])}" for each in told)


def _sentence(shown: Json) -> str:
    if shown["deleting"]:
        return click.style("is being deleted", fg="yellow")
    ready = next((each for each in shown["conditions"] if each["type"] == ConditionType.READY), None)
    if ready is None:
        return click.style("no operator has looked at it yet", fg="yellow")
    words = "ready" if ready["status"] == "True" else f"not ready, {ready['reason']}"
    if shown["observedGeneration"] < shown["generation"]:
        words += " (the last change of its spec has not been looked at yet)"
    return click.style(words, fg=_COLOURS.get(ready["status"]))


def _condition_lines(conditions: Iterable[Json]) -> Iterator[str]:
    """Conditions that are not as they should be, and why; those that repeat another's words once."""
    said: set[str] = set()
    for each in conditions:
        is_well = each["status"] == _GOOD.get(each["type"], each["status"])
        if is_well and not (each["type"] == ConditionType.PROGRESSING and each["status"] == "True"):
            continue
        colour = "yellow" if each["type"] in (ConditionType.ADVISORY, ConditionType.PROGRESSING) else "red"
        head = click.style(f"{each['type']}={each['status']}", fg="yellow" if each["status"] == "Unknown" else colour)
        words = "" if each["message"] in said else f": {printable(each['message'])}"
        said.add(each["message"])
        yield f"  {head} {each['reason']}{words if each['message'] else ''}"


def _gpus(gpus: Json | None) -> str:
    if gpus is None or (not gpus.get("inUse") and gpus.get("max") is None):
        return ""
    return f"{gpus.get('inUse', 0)} in use" + (f" of {gpus['max']}" if gpus.get("max") is not None else "")


def _role_row(role: Json) -> list[Any]:
    parts = (
        role["reason"] + (f": {printable(role['message'])}" if role["message"] else ""),
        f"{role['unschedulable']} unschedulable" if role["unschedulable"] else "",
    )
    return [role["role"], f"{role['ready']}/{role['desired']}", role["updated"], "; ".join(filter(None, parts))]


def _revision_rows(revisions: Iterable[Json]) -> Iterator[list[Any]]:
    for each in revisions:
        for role in each["roles"]:
            is_current = "current" if each["current"] else "older"
            yield [each["revision"], is_current, role["role"], role["ready"], role["desired"]]


def _pod_row(pod: Json) -> list[Any]:
    state = click.style(printable(pod["state"]), fg="green" if pod["ready"] else "yellow")
    age = duration(pod["ageSeconds"])
    ready = "yes" if pod["ready"] else "no"
    return [pod["name"], pod["role"], pod["revision"] or "-", ready, state, pod["restarts"], pod["node"] or "-", age]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Columns under each other; nothing is cut, so that a pipe gets whole words."""
    cells = [[str(each) for each in row] for row in (head, *rows)]
    widths = [max(len(click.unstyle(row[at])) for row in cells) for at in range(len(head))]
    for row in cells:
        padded = (cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(padded)}".rstrip()


def duration(seconds: int | None) -> str:
    """An age in its largest unit, as `kubectl` shows it; empty: unknown."""
    if seconds is None:
        return ""
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def printable(text: str) -> str:
    """The text on one line, with control characters as escapes: what a cluster says must not drive a terminal."""
    return "".join(each if each.isprintable() else " " if each.isspace() else ascii(each)[1:-1] for each in str(text))
