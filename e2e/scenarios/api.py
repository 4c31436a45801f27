"""The API server as scenarios see it: raw objects by resource name, and `kubectl` for what a person would type.

Boundary: reads and writes of single objects and lists; no watch, no cache: every answer is the server's present one.
Reads go over one kept connection because scenarios poll; a kubectl process costs a hundred times more.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kubernetes import config
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

JsonObject = dict[str, Any]

GROUPS: Mapping[str, str] = {
    "configmaps": "/api/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "deployments": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "events": "/api/v1",
    "inferencepools": "/apis/pdpool.io/v1alpha1",
    "leases": "/apis/coordination.k8s.io/v1",
    "namespaces": "/api/v1",
    "nodes": "/api/v1",
    "pods": "/api/v1",
    "replicasets": "/apis/apps/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "services": "/api/v1",
}
REQUEST_TIMEOUT_S = 30.0
KUBECTL_TIMEOUT_S = 120.0


class ApiError(Exception):
    """The API server, or kubectl, refused; the message is theirs."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ClusterApi:
    """One cluster, reached through a kubeconfig."""

    def __init__(self, kubeconfig: Path, kubectl: str = "kubectl") -> None:
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl
        self._client = config.new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the kept connections."""
        self._client.rest_client.pool_manager.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request; the answer is JSON, or text where it is not JSON.

        Raises:
            ApiError: an answer outside 2xx, with the server's message and status; or none at all (status 0).
        """
        parameters = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*parameters, _request_timeout=REQUEST_TIMEOUT_S)
        except HTTPError as unreachable:
            raise ApiError(f"{method} {path}: {unreachable}") from unreachable
        text = (answer.read() or b"").decode("utf-8", "replace")
        try:
            told: Any = json.loads(text)
        except ValueError:
            told = text
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - the class of success
            message = told.get("message", text) if isinstance(told, dict) else text
            raise ApiError(f"{method} {path}: {answer.status}: {message}", answer.status)
        return told

    def stream(self, path: str, *, query: Mapping[str, str], silent_s: float) -> Iterator[str]:
        """The lines of an answer as they come, as those of a watch; ends when nothing comes for a while.

        Raises:
            ApiError: the answer is no success.
            urllib3.exceptions.HTTPError: the connection broke.
        """
        host, manager = self._client.configuration.host, self._client.rest_client.pool_manager
        timeout = Timeout(connect=REQUEST_TIMEOUT_S, read=silent_s)
        answer = manager.request(
            "GET", f"{host}{path}?{urlencode(query)}", preload_content=False, timeout=timeout, retries=False
        )
        try:
            if answer.status != 200:  # noqa: PLR2004 - the only success of a watch
                raise ApiError(f"GET {path}: {answer.status}", answer.status)
            rest = b""
            with contextlib.suppress(ReadTimeoutError):
                for chunk in answer.stream(decode_content=True):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (line.decode() for line in lines if line)
        finally:
            answer.close()

    def get(self, resource: str, name: str, namespace: str | None = None) -> JsonObject | None:
        """One object, or None when there is none of that name."""
        try:
            found: JsonObject = self.request("GET", _path(resource, namespace, name))
        except ApiError as refusal:
            if refusal.status == 404:  # noqa: PLR2004 - Not Found
                return None
            raise
        return found

    def items(self, resource: str, namespace: str | None = None, labels: str = "") -> list[JsonObject]:
        """Every object of a resource, in one namespace or in all, that the label selector accepts."""
        query = {"labelSelector": labels} if labels else {}
        found: list[JsonObject] = self.request("GET", _path(resource, namespace), query=query)["items"]
        return found

    def patch(self, resource: str, name: str, namespace: str | None, change: JsonObject) -> JsonObject:
        """Merge a change into an object."""
        merged: JsonObject = self.request(
            "PATCH", _path(resource, namespace, name), body=change, content_type="application/merge-patch+json"
        )
        return merged

    def create(self, resource: str, namespace: str | None, body: JsonObject) -> JsonObject:
        """Create an object."""
        created: JsonObject = self.request("POST", _path(resource, namespace), body=body)
        return created

    def delete(self, resource: str, name: str, namespace: str | None = None, *, grace_s: int | None = None) -> None:
        """Delete an object as kubectl does (in the background); one that is gone already is no error."""
        query = {"propagationPolicy": "Background"}
        if grace_s is not None:
            query["gracePeriodSeconds"] = str(grace_s)
        try:
            self.request("DELETE", _path(resource, namespace, name), query=query)
        except ApiError as refusal:
            if refusal.status != 404:  # noqa: PLR2004 - Not Found
                raise

    def pod_log(self, name: str, namespace: str, lines: int = 20) -> str:
        """The last lines of a pod's log; empty while there is none."""
        try:
            text = self.request("GET", f"{_path('pods', namespace, name)}/log", query={"tailLines": str(lines)})
        except ApiError:
            return ""
        return text if isinstance(text, str) else json.dumps(text)

    def kubectl(
        self, arguments: Sequence[str], *, given: str | None = None, timeout_s: float = KUBECTL_TIMEOUT_S
    ) -> str:
        """What `kubectl ARGUMENTS` prints; `given` is its input.

        Raises:
            ApiError: kubectl ended with an error, whose text this is.
        """
        ended = subprocess.run(
            [self._kubectl, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if ended.returncode != 0:
            raise ApiError(f"kubectl {' '.join(arguments)}: {ended.stderr.strip()}")
        return ended.stdout


def _path(resource: str, namespace: str | None, name: str | None = None) -> str:
    parts = [GROUPS[resource]]
    if namespace:
        parts += ["namespaces", namespace]
    parts.append(resource)
    if name:
        parts.append(name)
    return "/".join(parts)
