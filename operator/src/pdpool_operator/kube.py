"""The one door to the API server: raw JSON in, raw JSON out.

Boundary: knows HTTP, paths, credentials, limits and faults; knows no kind's meaning. Every request has a deadline, no
more than a fixed number are in flight, and a 429 waits as long as the server asked. Typed clients are avoided on
purpose: a write must hold exactly the fields that the operator owns, and a read must show `managedFields` as they
are.

Errors::

    ApiError
    ├── UnreachableError   no (whole) answer, a server fault, or still 429 after retries: try again later
    ├── NotFoundError      404: the object, or its kind, is not there
    ├── ConflictError      409: somebody else was faster, or owns it
    ├── ForbiddenError     401 or 403
    └── RejectedError      every other 4xx, and the 500 of a body that fits no schema: the same call never succeeds
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio import client, config
from kubernetes.aio.client import rest

from pdpool_api import names
from pdpool_operator.records import Listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdpool_operator.records import Json, Resource

IN_FLIGHT: Final = 32
"""Requests at once; with the watches this stays below 50."""
REQUEST_TIMEOUT_S: Final = 8.0
LIST_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 15.0
"""Of what is read from a node or a pod through the API server: it waits long for one that is gone."""
UNACKNOWLEDGED_S: Final = 8.0
"""How long the kernel may go on sending what nobody acknowledges: what a silent network holds back must not arrive once
somebody else acts."""
PATIENCE_S: Final = 60.0
"""How long one call may go on waiting out 429 answers."""
_DEFAULT_RETRY_AFTER_S: Final = 1.0
_PAGE: Final = 500
_BIG_BODY_BYTES: Final = 1_000_000
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(Exception):
    """A call that did not do what was asked."""

    def __init__(self, message: str, status: int = 0, words: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.words = words or message
        """What the server said, without the call that it said it to."""


class UnreachableError(ApiError):
    """No answer, or one that says the server cannot serve now."""


class NotFoundError(ApiError):
    """The object, or its kind, is not there."""


class ConflictError(ApiError):
    """The object changed meanwhile, or belongs to somebody else."""


class ForbiddenError(ApiError):
    """The credentials do not allow it."""


class RejectedError(ApiError):
    """The same call never succeeds."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One complete list of a kind."""

    items: tuple[Json, ...]
    version: int
    """The list's resourceVersion."""


@dataclass(frozen=True, slots=True)
class Heads:
    """One complete list of a kind, its objects not taken apart."""

    items: tuple[Listed, ...]
    version: int
    """The list's resourceVersion."""


ConfigException = config.ConfigException
"""No credentials can be found or used."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to reach the API server, for another client library."""

    server: str
    ca_path: str | None
    token: str | None
    certificate_path: str | None
    private_key_path: str | None
    insecure: bool


async def connection(context: str | None = None) -> client.Configuration:
    """Credentials: `KUBECONFIG` when set, else the pod's service account, else `~/.kube/config`.

    Args:
        context: of the kubeconfig; None: its current one. With one the service account is no candidate.

    Raises:
        config.ConfigException: none of them can be used.
    """
    found = client.Configuration()
    found.connection_pool_maxsize = IN_FLIGHT
    file = os.environ.get("KUBECONFIG")
    if not file and not context and (_SERVICE_ACCOUNT / "token").exists():
        config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(file or None, context=context, client_configuration=found)  # type: ignore[no-untyped-call]
    return found


def context_namespace(context: str | None = None) -> str:
    """The namespace of a context of the kubeconfig (None: the current one); `default` where it names none.

    Raises:
        config.ConfigException: there is no such context, or no kubeconfig.
    """
    file = os.environ.get("KUBECONFIG")
    if not file and not context and (here := own_namespace()):
        return here
    contexts, current = config.list_kube_config_contexts(file or None)  # type: ignore[no-untyped-call]
    found = next((each for each in contexts if each["name"] == context), current if context is None else None)
    if found is None:
        raise config.ConfigException(f"the kubeconfig has no context {context!r}")
    return str(found["context"].get("namespace") or "default")


def own_namespace() -> str | None:
    """The namespace that this process runs in, when it runs in a pod."""
    named = os.environ.get("POD_NAMESPACE")
    if named:
        return named
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


class _Rest(rest.RESTClientObject):
    """The client library's, on sockets that give up by themselves."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, socket_factory=_socket)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket whose unacknowledged bytes are dropped after a while, also once the request was given up.

    Without it the kernel delivers the last writes of a replica that was cut off when the network is back, much later.
    """
    family, kind, protocol, _, _ = address
    found = socket.socket(family, kind, protocol)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux's
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
    return found


class Kube:
    """Calls to one API server; use as an async context manager."""

    def __init__(
        self,
        configuration: client.Configuration,
        *,
        in_flight: int = IN_FLIGHT,
        timeout_s: float = REQUEST_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        agent: str = "pdpool-operator",
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api = client.ApiClient(configuration)
        self._api.rest_client = _Rest(configuration)
        self._may_write = may_write
        self._api.user_agent = agent
        self._slots = asyncio.Semaphore(in_flight)
        self._timeout_s = timeout_s
        self._patience_s = patience_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def login(self) -> Login:
        """The credentials as they are now (tokens of pods are renewed in place)."""
        configuration = self._api.configuration
        settings = await configuration.auth_settings()
        bearer = str(settings.get("BearerToken", {}).get("value") or "")
        return Login(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            token=bearer.partition(" ")[2].strip() or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            insecure=not configuration.verify_ssl,
        )

    # --- reads -----------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object as it is now, or None when it is not there."""
        try:
            found: Json = await self._send("GET", _path(resource, namespace, name))
        except NotFoundError:
            return None
        return found

    async def list_all(
        self, resource: Resource, namespace: str | None, selector: str | None = None, *, consistent: bool = True
    ) -> Listing:
        """Every object of a kind, in one namespace or (None) in all.

        With `consistent=False` the server may answer from its cache: cheaper, and possibly a little old.
        """
        heads = await self.list_heads(resource, namespace, selector, consistent=consistent)
        return Listing(tuple(each.read() for each in heads.items), heads.version)

    async def list_heads(
        self, resource: Resource, namespace: str | None, selector: str | None = None, *, consistent: bool = True
    ) -> Heads:
        """The same without taking the objects apart: most of what is listed again and again is known already."""
        query = [("labelSelector", selector)] if selector else []
        query += [("limit", str(_PAGE))] if consistent else [("resourceVersion", "0")]
        items: list[Listed] = []
        token = ""
        while True:
            page = await self._send(
                "GET",
                _path(resource, namespace),
                query=[*query, ("continue", token)] if token else query,
                timeout_s=LIST_TIMEOUT_S,
                decode=_page,
            )
            items += page.items
            token = page.token
            if not token:
                return Heads(tuple(items), page.version)

    async def read(self, path: str, query: Sequence[tuple[str, str]] = ()) -> bytes:
        """What a path answers, as it is: logs of a pod, or what a pod serves through the API server's proxy."""
        url = f"{path}?{urlencode(query)}" if query else path
        async with self._slots:
            status, _, answer = await self._once("GET", url, None, "application/json", READ_TIMEOUT_S)
        if status >= HTTPStatus.BAD_REQUEST:
            raise error_of(f"GET {path}", status, answer)
        return answer

    async def answers(self) -> bool:
        """True when a plain GET gets any answer at all."""
        try:
            await self._send("GET", "/version")
        except (UnreachableError, TimeoutError):
            return False
        except ApiError:
            return True
        return True

    # --- writes ----------------------------------------------------------------------------------------------------

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        body: Json,
        *,
        force: bool,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Server-side apply of exactly the fields of `body`; returns the object as stored.

        Without `force` a field that somebody else set to another value is a `ConflictError`, and nothing is written.
        With `dry_run` nothing is ever written; the answer is what it would be.
        """
        path = _path(resource, namespace, body["metadata"]["name"])
        stored: Json = await self._send(
            "PATCH",
            f"{path}/{subresource}" if subresource else path,
            query=[
                ("fieldManager", names.FIELD_MANAGER),
                ("force", "true" if force else "false"),
                *([("dryRun", "All")] if dry_run else []),
            ],
            body=body,
            content_type=_APPLY,
        )
        return stored

    async def set_managed_fields(self, resource: Resource, live: Json, entries: Sequence[Json]) -> None:
        """Says anew who owns which field of an object as it was read; its content stays as it is."""
        metadata = live["metadata"]
        guarded = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self._send(
            "PATCH",
            _path(resource, metadata["namespace"], metadata["name"]),
            body={"metadata": {**guarded, "managedFields": list(entries)}},
            content_type=_MERGE,
        )

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """Lays fields over an object that must exist."""
        stored: Json = await self._send("PATCH", _path(resource, namespace, name), body=patch, content_type=_MERGE)
        return stored

    async def adjust(self, resource: Resource, live: Json, patch: Json) -> Json:
        """Sets (or, by None, removes) single fields of exactly this life of an object that was read."""
        metadata = live["metadata"]
        guarded = {**patch, "metadata": {**patch.get("metadata", {}), "uid": metadata["uid"]}}
        stored: Json = await self._send(
            "PATCH",
            _path(resource, metadata["namespace"], metadata["name"]),
            query=[("fieldManager", names.FIELD_MANAGER)],
            body=guarded,
            content_type=_MERGE,
        )
        return stored

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        """Creates an object that must not exist yet."""
        stored: Json = await self._send("POST", _path(resource, namespace), body=body)
        return stored

    async def replace(self, resource: Resource, namespace: str, body: Json) -> Json:
        """Puts back an object that was read; its resourceVersion guards against a lost update."""
        stored: Json = await self._send("PUT", _path(resource, namespace, body["metadata"]["name"]), body=body)
        return stored

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str) -> None:
        """Deletes exactly this life of an object; one that is gone already is a success."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._send("DELETE", _path(resource, namespace, name), body=options)
        except NotFoundError:
            return

    # --- the wire --------------------------------------------------------------------------------------------------

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Json | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        decode: Callable[[bytes], Any] = json.loads,
    ) -> Any:
        url = f"{path}?{urlencode(query)}" if query else path
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        while True:
            async with self._slots:
                status, wait_s, answer = await self._once(method, url, body, content_type, timeout_s or self._timeout_s)
            if status != HTTPStatus.TOO_MANY_REQUESTS:
                break
            if loop.time() + wait_s > give_up_at:
                raise UnreachableError(f"{method} {path}: still too many requests", status)
            # Outside the slot: others need not wait because one call was told to.
            await asyncio.sleep(wait_s)
        return await _result(f"{method} {path}", status, answer, decode)

    async def _once(
        self, method: str, url: str, body: Json | None, content_type: str, timeout_s: float
    ) -> tuple[int, float, bytes]:
        # Asked at the last moment: a process that was stopped for a while wakes up in the middle of its work.
        if method != "GET" and not self._may_write():
            raise UnreachableError(f"{method} {url.partition('?')[0]}: not sent, as this replica acts no more")
        try:
            _, full, headers, _, _ = await self._api.param_serialize(
                method,
                url,
                header_params={"Accept": "application/json", "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(method, full, headers, body, _request_timeout=timeout_s)
            answer: bytes = await response.read()  # type: ignore[no-untyped-call]
        except (OSError, aiohttp.ClientError) as fault:
            # A time-out, too, is an OSError; an empty str() of it would say nothing.
            raise UnreachableError(f"{method} {url.partition('?')[0]}: {str(fault) or type(fault).__name__}") from fault
        return response.status, _retry_after_s(response.headers.get("Retry-After")), answer


def _path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    item = f"/{quote(name, safe='')}" if name else ""
    return f"{root}{scope}/{resource.plural}{item}"


def _retry_after_s(header: str | None) -> float:
    try:
        return max(float(header or _DEFAULT_RETRY_AFTER_S), 0.1)
    except ValueError:  # an HTTP date: allowed, never seen from an API server
        return _DEFAULT_RETRY_AFTER_S


async def _result(call: str, status: int, answer: bytes, decode: Callable[[bytes], Any]) -> Any:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        try:
            # A list of thousands of objects would otherwise hold up leases and probes while it is decoded.
            return await asyncio.to_thread(decode, answer) if len(answer) > _BIG_BODY_BYTES else decode(answer)
        except ValueError as fault:  # something between us and the API server cut or changed it
            raise UnreachableError(f"{call}: {status} with a body that is no JSON", status) from fault
    raise error_of(call, status, answer)


class _Name(msgspec.Struct):
    """What of an object's metadata tells which it is, and whether it is new."""

    name: str
    namespace: str = ""
    version: str = msgspec.field(default="0", name="resourceVersion")


class _Head(msgspec.Struct):
    metadata: _Name


class _PageMetadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")
    token: str = msgspec.field(default="", name="continue")


class _RawPage(msgspec.Struct):
    metadata: _PageMetadata
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    items: list[Listed]
    version: int
    token: str


_raw_page: Final = msgspec.json.Decoder(_RawPage).decode
_head: Final = msgspec.json.Decoder(_Head).decode


def _page(answer: bytes) -> _Page:
    page = _raw_page(answer)
    items = [_listed(raw) for raw in page.items or ()]
    return _Page(items, int(page.metadata.version), page.metadata.token)


def _listed(raw: msgspec.Raw) -> Listed:
    name = _head(raw).metadata
    return Listed(name.namespace, name.name, int(name.version), lambda: msgspec.json.decode(raw))


def error_of(call: str, status: int, answer: bytes) -> ApiError:
    """The error that an answer means."""
    words = _words(answer)
    message = f"{call}: {status} {words}"
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and "failed to create typed patch object" in words:
        return RejectedError(message, status, words)
    by_status: dict[int, type[ApiError]] = {
        HTTPStatus.UNAUTHORIZED: ForbiddenError,
        HTTPStatus.FORBIDDEN: ForbiddenError,
        HTTPStatus.NOT_FOUND: NotFoundError,
        HTTPStatus.CONFLICT: ConflictError,
    }
    is_client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return by_status.get(status, RejectedError if is_client_error else UnreachableError)(message, status, words)


def _words(answer: bytes) -> str:
    try:
        said = json.loads(answer)
        return str(said["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
