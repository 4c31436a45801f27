"""What `pdpool debug` gathers: the pool, what belongs to it, events, logs, and what its routers know.

Boundary: reads, each part by itself: one that cannot be read is named in `problems.txt` and hinders no other. Secrets
are never asked for, and everything passes through `redaction`.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from pdpool_api import kubectl_yaml, names
from pdpool_operator.build import recipes
from pdpool_operator.cli import pool_view
from pdpool_operator.cli.redaction import Redaction
from pdpool_operator.kube import ApiError, Kube
from pdpool_operator.observe.cluster import pool_owner
from pdpool_operator.records import (
    CHILD_RESOURCES,
    CONTROLLER_REVISIONS,
    EVENTS,
    OPTIONAL_RESOURCES,
    PODS,
    Json,
    Resource,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from datetime import datetime

    from pdpool_operator.cli.access import Found

LOG_LINES: Final = 5000
LOG_BYTES: Final = 5_000_000
"""Of one container's log, the last of it."""
GATHER_S: Final = 60.0
"""For everything together, however many pods do not answer."""
_OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=pdpool-operator"
_SNAPSHOTS: Final = {"snapshot.json": "debug/snapshot", "metrics.txt": "metrics"}


@dataclass
class Bundle:
    """Files by name, as they are found."""

    redaction: Redaction = field(default_factory=Redaction)
    objects: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def archive(self, top: str, now: datetime) -> bytes:
        """A gzipped tar of everything, without secrets, under one folder."""
        # Objects first: what is secret in them is then looked for in every text.
        files = {name: kubectl_yaml.for_people(self.redaction.of_object(each)) for name, each in self.objects.items()}
        files |= self.texts
        if self.problems:
            files["problems.txt"] = "".join(f"{each}\n" for each in sorted(self.problems))
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as tar:
            for name, text in sorted(files.items()):
                content = self.redaction.of_text(text).encode()
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
                tar.addfile(entry, io.BytesIO(content))
        return target.getvalue()


async def gather(
    api: Kube, found: Found, operator_namespace: str, now: datetime, *, within_s: float = GATHER_S
) -> Bundle:
    """Everything about one pool that helps to see what is wrong with it, as far as it can be read in time."""
    bundle = Bundle()
    bundle.objects["pool.yaml"] = found.pool
    bundle.texts["status.txt"] = "".join(
        f"{click.unstyle(line)}\n" for line in pool_view.lines(pool_view.view(found, now))
    )
    for pod in found.pods:
        bundle.objects[f"pods/{pod['metadata']['name']}.yaml"] = pod
    await _together(
        {
            # What the API server itself has comes first; nodes and pods may be gone, and are waited for in vain.
            **{f"children of kind {kind.kind}": _children(api, found, kind, bundle) for kind in CHILD_RESOURCES},
            "events": _events(api, found, bundle),
            "logs of the operator": _operator(api, operator_namespace, bundle),
            **{
                f"router {pod['metadata']['name']}": _router(api, pod, bundle)
                for pod in found.pods
                if _role(pod) == names.Role.ROUTER
            },
            **{f"logs of {pod['metadata']['name']}": _logs(api, pod, "logs", bundle) for pod in found.pods},
        },
        bundle,
        within_s,
    )
    return bundle


async def _together(parts: Mapping[str, Coroutine[Any, Any, None]], bundle: Bundle, within_s: float) -> None:
    """All parts at once; what is not read in time is left out, and named."""
    tasks = {asyncio.create_task(part): name for name, part in parts.items()}
    done, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    bundle.problems += [f"{tasks[task]}: not read within {within_s:.0f} s" for task in late]
    for task in done:
        task.result()


async def _children(api: Kube, found: Found, resource: Resource, bundle: Bundle) -> None:
    try:
        listing = await api.list_all(resource, found.namespace, found.selector)
    except ApiError as fault:
        if resource not in OPTIONAL_RESOURCES or fault.status != 404:  # noqa: PLR2004 - HTTP's number
            bundle.problems.append(str(fault))
        return
    uid = found.pool["metadata"]["uid"]
    for each in listing.items:
        if (pool_owner(each) or {}).get("uid") == uid:
            # Items of a list do not say what they are.
            whole = {"apiVersion": resource.api_version, "kind": resource.kind, **each}
            if resource is CONTROLLER_REVISIONS:
                whole = recipes.readable(whole)
            bundle.objects[f"children/{resource.kind}-{each['metadata']['name']}.yaml"] = whole


async def _events(api: Kube, found: Found, bundle: Bundle) -> None:
    """Events of the namespace that speak of the pool or of something that begins with a child's name."""
    try:
        listing = await api.list_all(EVENTS, found.namespace)
    except ApiError as fault:
        bundle.problems.append(str(fault))
        return
    stems = {found.name, *(names.child_name(found.name, role.value) for role in names.Role)}
    ours = [each for each in listing.items if _speaks_of(each, stems)]
    bundle.objects["events.yaml"] = sorted(ours, key=lambda each: each["metadata"].get("creationTimestamp") or "")


def _speaks_of(event: Json, stems: set[str]) -> bool:
    regarding = event.get("regarding") or {}
    name = str(regarding.get("name", ""))
    return any(name == stem or name.startswith(f"{stem}-") for stem in stems)


async def _logs(api: Kube, pod: Json, folder: str, bundle: Bundle) -> None:
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    calls: list[Awaitable[None]] = []
    for each in containers:
        stem = f"{folder}/{pod['metadata']['name']}.{each['name']}"
        if each.get("started") or each.get("state", {}).get("running") or each.get("state", {}).get("terminated"):
            calls.append(_log(api, pod, each["name"], f"{stem}.log", bundle, previous=False))
        if each.get("restartCount"):
            calls.append(_log(api, pod, each["name"], f"{stem}.previous.log", bundle, previous=True))
    await asyncio.gather(*calls)


async def _log(api: Kube, pod: Json, container: str, file: str, bundle: Bundle, *, previous: bool) -> None:
    query = [("container", container), ("tailLines", str(LOG_LINES)), ("timestamps", "true")]
    query += [("previous", "true")] if previous else []
    await _text(lambda: api.read(f"{_path(pod)}/log", query), file, bundle)


async def _router(api: Kube, pod: Json, bundle: Bundle) -> None:
    """What the router serves at its admin port, through the API server."""
    for file, path in _SNAPSHOTS.items():
        proxied = f"{_path(pod)}:{names.ROUTER_ADMIN_PORT}/proxy/{path}"
        await _text(lambda proxied=proxied: api.read(proxied), f"routers/{pod['metadata']['name']}/{file}", bundle)  # type: ignore[misc]


async def _operator(api: Kube, namespace: str, bundle: Bundle) -> None:
    try:
        pods = await api.list_all(PODS, namespace, _OPERATOR_SELECTOR)
    except ApiError as fault:
        bundle.problems.append(str(fault))
        return
    await asyncio.gather(*(_logs(api, pod, "operator", bundle) for pod in pods.items))


async def _text(read: Callable[[], Awaitable[bytes]], file: str, bundle: Bundle) -> None:
    try:
        content = await read()
    except ApiError as fault:
        bundle.problems.append(f"{file}: {fault}")
        return
    bundle.texts[file] = content[-LOG_BYTES:].decode(errors="replace")


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _role(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get(names.LABEL_ROLE, ""))
