"""What the API tests of the operator stand on: a client of their own, the operator as a process, pools as values.

Boundary: knows Kubernetes and the public contract; of the operator it knows its command line only.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import yaml

from e2e.ports import free_ports
from e2e.scenarios.kubelet import pod_status
from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
T = TypeVar("T")

CHILD_PATHS = {
    "deployments": "/apis/apps/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "serviceaccounts": "/api/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
}
PATHS = {**CHILD_PATHS, "pods": "/api/v1", "secrets": "/api/v1", "inferencepools": f"/apis/{names.API_VERSION}"}
SETTLE_S = 120.0
START_S = 180.0
"""A Python process with many modules, on a machine that does much else."""


def eventually(look: Callable[[], T], *, timeout_s: float = SETTLE_S, every_s: float = 0.2) -> T:
    """What `look` returns once it asserts nothing wrong any more; its own error when that does not come in time.

    Shorter times than `SETTLE_S` say what a quiet machine needs, and are not held against a busy one.
    """
    deadline = time.monotonic() + max(timeout_s, SETTLE_S)
    while True:
        try:
            return look()
        except (AssertionError, KeyError, IndexError):
            if time.monotonic() > deadline:
                raise
        time.sleep(every_s)


class Api:
    """The API server as its administrator sees it; raw JSON."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority").decode())
        certificate, key = kubeconfig.with_suffix(".crt-test"), kubeconfig.with_suffix(".key-test")
        certificate.write_bytes(_pem(user, "client-certificate"))
        key.write_bytes(_pem(user, "client-key"))
        context.load_cert_chain(certificate, key)
        self.server = str(cluster["server"])
        self.context = context
        self._http = httpx.Client(base_url=self.server, verify=context, timeout=30)

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """The answer's JSON; an answer that is no success raises `httpx.HTTPStatusError`."""
        answer = self._http.request(method, path, json=body, headers={"Content-Type": content_type})
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json()

    def path(self, kind: str, namespace: str, name: str = "") -> str:
        return f"{PATHS[kind]}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        try:
            found: Json = self.request("GET", self.path(kind, namespace, name))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return None
            raise
        return found

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Json]:
        query = f"?labelSelector={selector}" if selector else ""
        found: list[Json] = self.request("GET", self.path(kind, namespace) + query)["items"]
        return found

    def create(self, kind: str, namespace: str, body: Json) -> Json:
        stored: Json = self.request("POST", self.path(kind, namespace), body)
        return stored

    def apply(self, kind: str, namespace: str, body: Json, *, manager: str = "tests") -> Json:
        """Server-side apply, forced, as another field manager than the operator."""
        path = f"{self.path(kind, namespace, body['metadata']['name'])}?fieldManager={manager}&force=true"
        stored: Json = self.request("PATCH", path, body, content_type="application/apply-patch+yaml")
        return stored

    def merge(self, kind: str, namespace: str, name: str, patch: Json, *, subresource: str = "") -> Json:
        path = self.path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        stored: Json = self.request("PATCH", path, patch, content_type="application/merge-patch+json")
        return stored

    def delete(self, kind: str, namespace: str, name: str, *, propagation: str = "Background") -> None:
        self.request("DELETE", self.path(kind, namespace, name), {"propagationPolicy": propagation})

    def children(self, namespace: str) -> dict[str, Json]:
        """Every object of a child's kind that a pool of this group owns, by `plural/name`."""
        found: dict[str, Json] = {
            f"{kind}/{each['metadata']['name']}": each
            for kind in CHILD_PATHS
            for each in self.items(kind, namespace)
            if any(
                owner["kind"] == names.KIND and owner["apiVersion"].startswith(f"{names.GROUP}/")
                for owner in each["metadata"].get("ownerReferences", ())
            )
        }
        return found

    def make_ready(self, namespace: str, selector: str) -> None:
        """Says of pods that they run and are ready, as a kubelet would."""
        for pod in self.items("pods", namespace, selector):
            self.set_ready(namespace, pod["metadata"]["name"])

    def set_ready(self, namespace: str, name: str, *, ready: bool = True, address: str = "") -> None:
        """Says of one pod that it runs, and whether it is ready; at an address where one is given.

        Never of one that has ended: Kubernetes ends pods that leave without a node, and no kubelet revives a pod.
        """
        while True:
            pod = self.request("GET", self.path("pods", namespace, name))
            if pod["status"].get("phase") in {"Failed", "Succeeded"}:
                return
            seen = {"resourceVersion": pod["metadata"]["resourceVersion"]}
            said = {"metadata": seen, "status": pod_status(pod, ready=ready, address=address)}
            try:
                self.merge("pods", namespace, name, said, subresource="status")
            except httpx.HTTPStatusError as fault:
                if fault.response.status_code != httpx.codes.CONFLICT:
                    raise
            else:
                return


def pool(name: str, namespace: str, **spec: Any) -> Json:
    """A small valid pool; `spec` replaces whole members of its spec."""
    whole: Json = {"model": {"id": "/models/tiny"}, "prefill": {"hardware": "cpu"}, "decode": {"hardware": "cpu"}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**whole, **spec},
    }


def condition(of_pool: Json, kind: str) -> Json:
    """One condition of a pool; KeyError when it is not there."""
    found: Json = {each["type"]: each for each in of_pool["status"]["conditions"]}[kind]
    return found


class Operator:
    """One `pdpool-operator` process."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *arguments: str,
        namespace: str | None = None,
        module: str = "pdpool_operator",
    ) -> None:
        self.port = free_port()
        self.log = log
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        environment.pop("POD_NAMESPACE", None)
        if namespace:
            environment["POD_NAMESPACE"] = namespace
        # One process, so that a signal reaches the operator itself.
        command = [sys.executable, "-m", module, f"--port={self.port}", "--log-level=debug", *arguments]
        with log.open("ab") as stream:
            self._process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def answer(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30)

    def metric(self, name: str) -> float:
        """A metric without labels; KeyError when it is not there."""
        lines = dict(line.rsplit(" ", 1) for line in self.answer("/metrics").text.splitlines() if line[:1] != "#")
        return float(lines[name])

    def wait_ready(self) -> Operator:
        """The operator once it is ready; one that does not get there is ended, as nobody else would."""

        def look() -> None:
            assert self.running, f"the operator ended: {self.log.read_text()[-2000:]}"
            with contextlib.suppress(httpx.TransportError):
                assert self.answer("/readyz").status_code == httpx.codes.OK
                return
            raise AssertionError("no answer yet")

        try:
            eventually(look, timeout_s=START_S)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """Asks it to end; its exit status."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=30)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait(timeout=10)

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pem(holder: Json, field: str) -> bytes:
    if f"{field}-data" in holder:
        return base64.b64decode(holder[f"{field}-data"])
    return Path(holder[field]).read_bytes()


def free_port() -> int:
    """A port that nobody listens at, out of the way of outgoing connections: tests on other workers make many."""
    return free_ports(1)[0]
