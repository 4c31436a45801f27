"""Endpoints from the pods of a pool: list, watch, list again.

Boundary: reads the API and tells the whole membership after every change. A watch is a hint and a list is the truth,
so everything is listed again at least every 60 s, whatever the watch says. A pod is an endpoint only while it is
Ready, has an address, and its chain of controllers (directly, or ReplicaSet and Deployment) ends at the pool's uid: a
label alone makes nobody an endpoint. One that terminates gets nothing new, and is known until it is gone, as its
streams still run. The router's own pod is among those that are followed: it so learns that it will have to end before
it is told to.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import structlog
from kubernetes.aio import client, config

from pdpool_api.names import (
    ANNOTATION_DRAINING,
    ENGINE_HTTP_PORT,
    ENGINE_ROLES,
    GROUP,
    KIND,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT_NAME,
    LABEL_POOL,
    LABEL_REVISION,
    LABEL_ROLE,
    Role,
    label_value,
    rank_port_name,
)
from pdpool_router.records import Endpoint, Life

if TYPE_CHECKING:
    from pdpool_api.router_config import PodSource

RELIST_S: Final = 45.0
REQUEST_S: Final = 10.0
PAUSE_AFTER_SHORT_WATCH_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # one pod is at most 1.5 MiB in etcd
_OK: Final = 200
_NOT_FOUND: Final = 404
_ENDED: Final = ("Succeeded", "Failed")
_MAX_OWNERS: Final = 10_000
_ENGINE_ROLE_NAMES: Final = frozenset(role.value for role in ENGINE_ROLES)
_log = structlog.get_logger("pdpool_router")

Json = Mapping[str, Any]


class ApiError(Exception):
    """The API server answered with a status other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Owner(NamedTuple):
    """A controller as an owner reference names it."""

    api: str
    """Group, without the version."""
    kind: str
    name: str
    uid: str


# --- pure: what a pod's object says ----------------------------------------------------------------------------------


def controller(item: Json) -> Owner | None:
    """The controller of an object; None where it has none."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(
                str(reference["apiVersion"]).partition("/")[0],
                str(reference["kind"]),
                str(reference["name"]),
                str(reference["uid"]),
            )
    return None


def endpoint_of(pod: Json) -> Endpoint | None:
    """The endpoint that a pod is, whoever owns it; None while it is none.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the object is not shaped like a pod of this pool.
    """
    metadata = pod["metadata"]
    labels = metadata["labels"]
    role = Role(labels[LABEL_ROLE])
    if role not in ENGINE_ROLES:
        return None
    status = pod.get("status") or {}
    address = status.get("podIP")
    conditions = {str(one["type"]): one["status"] for one in status.get("conditions") or ()}
    leaves = bool(metadata.get("deletionTimestamp"))
    if not address or status.get("phase") in _ENDED or not (leaves or conditions.get("Ready") == "True"):
        return None
    return Endpoint(
        uid=str(metadata["uid"]),
        name=str(metadata["name"]),
        role=role,
        host=str(address),
        port=_http_port(pod),
        revision=str(labels.get(LABEL_REVISION) or ""),
        draining=leaves or _is_marked(metadata),
        event_ports=_event_ports(pod),
    )


def life_of(pods: Iterable[Json]) -> Life:
    """Whether a pool has engine pods that stay, and whether one of them starts for the first time.

    A pod that is marked as draining has gone for whoever asks now, though it may finish streams for minutes. Roles go
    to zero together but are marked one after the other: where one has only pods that leave, the pool has gone.

    A pod starts while it is not scheduled, its images are pulled, or its startup probe has not passed. A pod that says
    nothing of its containers counts as started, and so does one that was restarted.
    """
    engines = [pod for pod in pods if _role(pod) in _ENGINE_ROLE_NAMES]
    staying = [pod for pod in engines if _stays(pod.get("metadata") or {})]
    if not staying or {_role(pod) for pod in engines} != {_role(pod) for pod in staying}:
        return Life.ABSENT
    return Life.STARTING if any(_is_starting(pod) for pod in staying) else Life.STARTED


def _role(pod: Json) -> str:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(LABEL_ROLE) or "")


def _stays(metadata: Json) -> bool:
    return not (metadata.get("deletionTimestamp") or _is_marked(metadata))


def _is_marked(metadata: Json) -> bool:
    """It gets no new request, though it may finish streams for minutes."""
    return ANNOTATION_DRAINING in (metadata.get("annotations") or {})


def _is_starting(pod: Json) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") == "Pending":
        return True
    containers = status.get("containerStatuses") or ()
    return any(each.get("started") is False and not each.get("restartCount") for each in containers)


def _http_port(pod: Json) -> int:
    """The container port called `http` (host networking makes it differ between the roles), else the usual one."""
    return _ports(pod).get("http", ENGINE_HTTP_PORT)


def _event_ports(pod: Json) -> tuple[tuple[int, int | None], ...]:
    """Of each rank in turn the ports of KV events and of their replay; host networking moves these too."""
    ports = _ports(pod)
    found: list[tuple[int, int | None]] = []
    while (events := ports.get(rank_port_name(KV_EVENTS_PORT_NAME, len(found)))) is not None:
        found.append((events, ports.get(rank_port_name(KV_REPLAY_PORT_NAME, len(found)))))
    return tuple(found)


def _ports(pod: Json) -> dict[str, int]:
    """The named ports of a pod; of two of one name the first."""
    found: dict[str, int] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            found.setdefault(str(port.get("name") or ""), int(port["containerPort"]))
    return found


# --- the feed --------------------------------------------------------------------------------------------------------


class PodFeed:
    """Follows the pods of one pool."""

    def __init__(
        self,
        source: PodSource,
        tell: Callable[[list[Endpoint]], None],
        tell_life: Callable[[Life], None] = lambda life: None,  # noqa: ARG005 - nobody wants to know
        *,
        own_name: str = "",
        tell_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell` gets the whole membership, at first when everything was listed once; `tell_life`, see `life_of`.

        `tell_end` is called while the router's own pod, `own_name`, terminates.
        """
        self._own_name = own_name
        self._tell_end = tell_end
        self._source = source
        self._tell = tell
        self._tell_life = tell_life
        self._pods: dict[str, Json] = {}
        self._told: list[Endpoint] | None = None
        self._owned: dict[str, bool] = {}
        self._warned: set[str] = set()

    async def run(self) -> None:
        """Lists and watches until cancelled; failures are logged and tried again."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with await _api_client() as api:
                    while True:
                        version = await self._list(api)
                        pause_s = FIRST_PAUSE_S
                        await self._watch(api, version)
            except (
                ApiError,
                OSError,
                aiohttp.ClientError,
                client.ApiException,
                config.ConfigException,
                ValueError,
                KeyError,
            ) as fault:
                _log.warning(
                    "pods not followed, trying again",
                    reason=f"{type(fault).__name__}: {str(fault)[:200]}",
                    in_s=pause_s,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _list(self, api: client.ApiClient) -> str:
        listed = await _get(api, self._path, self._selector)
        self._pods = {}
        for pod in listed["items"]:
            self._keep(pod)
        await self._publish(api)
        return str(listed["metadata"]["resourceVersion"])

    async def _watch(self, api: client.ApiClient, version: str) -> None:
        """Follows changes until the next list is due."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + RELIST_S
        try:
            async with asyncio.timeout_at(due_s), aclosing(_events(api, self._path, self._selector, version)) as events:
                async for event in events:
                    kind = event["type"]
                    if kind == "ERROR":
                        break  # 410 and the like: what was missed is in the next list
                    if kind == "BOOKMARK":
                        continue
                    if kind == "DELETED":
                        self._pods.pop(_uid(event["object"]), None)
                    else:
                        self._keep(event["object"])
                    await self._publish(api)
        except TimeoutError:
            return
        # A watch that ends at once must not become a flood of lists.
        await asyncio.sleep(PAUSE_AFTER_SHORT_WATCH_S if loop.time() < due_s - RELIST_S + 1 else 0)

    def _keep(self, pod: Any) -> None:
        uid = _uid(pod)
        if uid:
            self._pods[uid] = pod

    async def _publish(self, api: client.ApiClient) -> None:
        endpoints: list[Endpoint] = []
        for uid, pod in self._pods.items():
            try:
                endpoint = endpoint_of(pod)
                if endpoint is not None and await self._is_ours(api, pod):
                    endpoints.append(endpoint)
            except (KeyError, TypeError, ValueError, AttributeError) as fault:
                # One odd object must not hide the others.
                self._warn(uid, "a pod with the pool's label is no endpoint", reason=type(fault).__name__)
        self._warned.intersection_update(self._pods)
        self._tell_life(self._life())
        if any(_terminates(pod, self._own_name) for pod in self._pods.values()):
            self._tell_end()
        if endpoints != self._told:
            self._told = endpoints
            self._tell(endpoints)

    def _life(self) -> Life:
        try:
            return life_of(self._pods.values())
        except (TypeError, AttributeError):
            return Life.STARTED  # an odd object says nothing about the pool

    def _warn(self, uid: str, text: str, **fields: str) -> None:
        if uid not in self._warned:
            self._warned.add(uid)
            _log.warning(text, pod_uid=uid, **fields)

    async def _is_ours(self, api: client.ApiClient, pod: Json) -> bool:
        owner = controller(pod)
        ours = owner is not None and await self._leads_to_pool(api, owner)
        if not ours:
            self._warn(_uid(pod), "a pod with the pool's label belongs to somebody else")
        return ours

    async def _leads_to_pool(self, api: client.ApiClient, owner: Owner) -> bool:
        if owner.kind == KIND:
            return owner.api == GROUP and owner.uid == self._source.uid
        if owner.api != "apps" or owner.kind not in ("ReplicaSet", "Deployment"):
            return False
        known = self._owned.get(owner.uid)
        if known is None:
            # An object's controller does not change while it lives, so that one look is enough.
            known = await self._look_up(api, owner)
            if known is None:
                return False
            if len(self._owned) >= _MAX_OWNERS:
                self._owned.clear()
            self._owned[owner.uid] = known
        return known

    async def _look_up(self, api: client.ApiClient, owner: Owner) -> bool | None:
        """Whether an object's own controller leads to the pool; None while that cannot be told."""
        try:
            item = await _get(
                api, f"/apis/apps/v1/namespaces/{self._source.namespace}/{owner.kind.lower()}s/{owner.name}"
            )
        except ApiError as fault:
            if fault.status == _NOT_FOUND:
                return None
            raise
        if item["metadata"]["uid"] != owner.uid:
            return None
        above = controller(item)
        return above is not None and await self._leads_to_pool(api, above)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._source.namespace}/pods"

    @property
    def _selector(self) -> list[tuple[str, str]]:
        return [("labelSelector", f"{LABEL_POOL}={label_value(self._source.pool)}")]


def _terminates(pod: Any, name: str) -> bool:
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    return isinstance(metadata, dict) and metadata.get("name") == name and bool(metadata.get("deletionTimestamp"))


def _uid(pod: Any) -> str:
    """The uid of an object, however odd; empty where it has none."""
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    return str(metadata.get("uid") or "") if isinstance(metadata, dict) else ""


# --- the API ---------------------------------------------------------------------------------------------------------


async def _api_client() -> client.ApiClient:
    """A client for what KUBECONFIG names, else for the cluster that this runs in."""
    chosen = client.Configuration()
    named = os.environ.get("KUBECONFIG")
    if named or "KUBERNETES_SERVICE_HOST" not in os.environ:
        # Named here, since the library reads the variable once, when it is imported.
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=named or None, client_configuration=chosen, persist_config=False
        )
    else:
        config.load_incluster_config(client_configuration=chosen)  # type: ignore[no-untyped-call]
    return client.ApiClient(chosen)


async def _open(api: client.ApiClient, path: str, query: list[tuple[str, str]], timeout_s: float) -> Any:
    sent = await api.param_serialize(
        "GET", path, query_params=query, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
    )
    response = await api.call_api(*sent, _request_timeout=timeout_s)
    if response.status != _OK:
        await response.read()  # type: ignore[no-untyped-call]
        raise ApiError(response.status)
    return response


async def _get(api: client.ApiClient, path: str, query: list[tuple[str, str]] | None = None) -> Any:
    async with asyncio.timeout(REQUEST_S):
        response = await _open(api, path, query or [], REQUEST_S)
        return json.loads(await response.read())


async def _events(
    api: client.ApiClient, path: str, selector: list[tuple[str, str]], version: str
) -> AsyncGenerator[Json, None]:
    query = [
        *selector,
        ("watch", "true"),
        ("resourceVersion", version),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", str(int(RELIST_S))),
    ]
    response = await _open(api, path, query, RELIST_S + REQUEST_S)
    stream: aiohttp.ClientResponse = response.response
    buffer = b""
    try:
        async for data in stream.content.iter_any():
            buffer += data
            if len(buffer) > _MAX_EVENT_BYTES and b"\n" not in buffer:
                raise ValueError("an event of the watch is too long")
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    finally:
        stream.close()
