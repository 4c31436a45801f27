"""The control plane of the benchmark: pools by the hundred, the operator as a process, and what both show of it.

Boundary: knows the public contract and the operator's command line, nothing of its inside. Every object is made by the
administrator, so that the audit log tells the operator's calls from all others.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.bench.cpu import tree_ns
from e2e.bench.processes import ProcessError, running_anywhere
from e2e.chart import INSTALL_FILE, NAMESPACE, OPERATOR, documents
from e2e.cluster import down, service_account_user, up
from e2e.ports import free_ports
from e2e.scenarios.api import ApiError, ClusterApi
from e2e.scenarios.kubelet import pod_status
from e2e.scenarios.pools import is_ready
from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from e2e.cluster import Cluster
    from e2e.cluster.audit import Moment

Json = dict[str, Any]
PER_NAMESPACE: Final = 50
_POOLS: Final = f"/apis/{names.API_VERSION}"
_HANDS: Final = 8
_POLL_S: Final = 1.0
_EDIT_DEADLINE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.01
"""While an edit is awaited: often enough to measure it, seldom enough to cost the API server little."""
_NAMESPACE: Final = "bench-"
_MERGE: Final = "application/merge-patch+json"
_NO_ENGINES: Final[Json] = {"hardware": "cpu", "replicas": 0}
_HEARTBEATS: Final = frozenset({"leases"})


@dataclass(frozen=True)
class Cost:
    """What the operator did and used in a window of time."""

    seconds: float
    writes: int
    """Changes that it was granted, its Lease apart."""
    requests: int
    """Everything that it asked for, its Lease apart."""
    cpu_share: float
    """Of one core."""
    rss_bytes: int
    """At the end of the window."""
    written: Mapping[str, int] = field(default_factory=dict)
    """How often what was written."""


@dataclass(frozen=True, order=True)
class Place:
    """One pool."""

    namespace: str
    name: str


def place(number: int) -> Place:
    """Where the pool of a number is."""
    return Place(f"{_NAMESPACE}{number // PER_NAMESPACE}", f"pool-{number}")


class Site:
    """A control plane with pdpool installed by its manifest, and its pools."""

    def __init__(self, cluster: Cluster, kubectl: str) -> None:
        self.cluster = cluster
        self.api = ClusterApi(cluster.kubeconfig, kubectl)
        self._user = service_account_user(NAMESPACE, OPERATOR)

    # --- pools -----------------------------------------------------------------------------------------------------

    def make_pools(self, numbers: Iterable[int]) -> None:
        """Makes pools whose engines are wanted at zero: every child, and the router's pod, which no node takes."""
        wanted = list(numbers)
        for namespace in sorted({place(number).namespace for number in wanted}):
            self._once("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self._each(self._make, wanted)

    def _make(self, number: int) -> None:
        where = place(number)
        self.api.request("POST", f"{_POOLS}/namespaces/{where.namespace}/{names.PLURAL}", body=_pool(where))

    def break_reference(self, number: int) -> None:
        """An object of somebody else in the place of a child: the pool is looked at again and again, in vain."""
        where = place(number)
        body = {"metadata": {"name": names.child_name(where.name, "router")}}
        self._once("/api/v1/namespaces", {"metadata": {"name": where.namespace}})
        self._once(f"/api/v1/namespaces/{where.namespace}/configmaps", body)
        self._make(number)

    def reconciled(self, count: int) -> bool:
        """Whether there are so many pools, and the operator has looked at all of them as they are now."""
        found = self.api.request("GET", f"{_POOLS}/{names.PLURAL}", query={"resourceVersion": "0"})["items"]
        seen = [each for each in found if each.get("status", {}).get("observedGeneration") == _generation(each)]
        return len(found) >= count and len(seen) == len(found)

    def wait_reconciled(self, count: int, until_s: float) -> float:
        """Seconds until it has; raises `ProcessError` past the deadline (monotonic)."""
        began = time.monotonic()
        while not self.reconciled(count):
            if time.monotonic() > until_s:
                raise ProcessError(f"{count} pools were not reconciled in {time.monotonic() - began:.0f} s")
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def make_routers_ready(self) -> None:
        """Says of every pod that it runs, as a kubelet would: a pool whose router is late is not at rest."""
        query = {"labelSelector": names.LABEL_POOL, "resourceVersion": "0"}
        late = [each for each in self.api.request("GET", "/api/v1/pods", query=query)["items"] if not is_ready(each)]
        with ThreadPoolExecutor(max_workers=_HANDS) as hands:
            list(hands.map(self._make_ready, late))

    def _make_ready(self, pod: Json) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        # At no address: what reading pods costs is measured by `ticks`.
        self.api.request("PATCH", path, body={"status": pod_status(pod, ready=True)}, content_type=_MERGE)

    def moved(self, since: Moment) -> bool:
        """Whether anybody but the operator has written to a pool, a child or a pod since then."""
        return any(
            each.is_write and each.succeeded and each.user != self._user and each.resource != "events"
            for each in self.cluster.audit.entries(since)
            if each.namespace.startswith(_NAMESPACE)
        )

    def change(self, number: int, value: int) -> float:
        """Seconds from an edit of a pool's spec until its decode Deployment holds it."""
        where = place(number)
        path = f"{_POOLS}/namespaces/{where.namespace}/{names.PLURAL}/{where.name}"
        variable = [{"name": "N", "value": str(value)}]
        body = {"spec": {"decode": {"env": variable}}}
        deployment = self._decode(where)
        began = time.monotonic()
        self.api.request("PATCH", path, body=body, content_type=_MERGE)
        while (
            variable[0] not in self.api.request("GET", deployment)["spec"]["template"]["spec"]["containers"][0]["env"]
        ):
            if time.monotonic() - began > _EDIT_DEADLINE_S:
                raise ProcessError(f"an edit of {where.name} did not reach its Deployment")
            time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - began

    def _decode(self, where: Place) -> str:
        folder = f"/apis/apps/v1/namespaces/{where.namespace}/deployments"
        labels = names.selector_labels(where.name, names.Role.DECODE)
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        (found,) = self.api.request("GET", folder, query={"labelSelector": selector})["items"]
        return f"{folder}/{found['metadata']['name']}"

    def _once(self, path: str, body: Json) -> None:
        try:
            self.api.request("POST", path, body=body)
        except ApiError as refusal:
            if refusal.status != 409:  # noqa: PLR2004 - there already
                raise

    def _each(self, work: Callable[[int], None], numbers: Iterable[int]) -> None:
        with ThreadPoolExecutor(max_workers=_HANDS) as hands:
            list(hands.map(work, numbers))

    # --- the operator ----------------------------------------------------------------------------------------------

    @contextmanager
    def operator(self, log: Path) -> Iterator[int]:
        """The operator while the block lasts; yields its pid."""
        (port,) = free_ports(1)
        credentials = self.cluster.kubeconfig_for_service_account(NAMESPACE, OPERATOR)
        command = [sys.executable, "-m", "pdpool_operator", f"--port={port}", "--log-format=json"]
        environment = {"KUBECONFIG": str(credentials), "POD_NAMESPACE": NAMESPACE}
        # Killed by the kernel when this process ends, however it ends.
        bound = ["setpriv", "--pdeathsig", "KILL", *command]
        with running_anywhere(bound, log=log, environment=environment) as child:
            yield child.pid

    def window(self, pid: int, seconds: float) -> Cost:
        """What the operator does in a window that begins now."""
        since, began, spent = self.cluster.audit.now(), time.monotonic(), tree_ns(pid)
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        cpu_share = (tree_ns(pid) - spent) / 1e9 / elapsed
        calls = [each for each in self.cluster.audit.entries(since) if each.user == self._user]
        counted = [each for each in calls if each.resource not in _HEARTBEATS]
        writes = [each for each in counted if each.is_write and each.succeeded]
        written = Counter(f"{each.verb} {each.resource}" for each in writes)
        return Cost(elapsed, len(writes), len(counted), cpu_share, rss_bytes(pid), written)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def site(kubectl: str) -> Iterator[Site]:
    """A control plane of its own while the block lasts, with the manifest applied but for the Deployment."""
    name = f"bench-operator-{os.getpid()}"
    cluster = up(name, control_plane_only=True, owned=True)
    try:
        objects = [each for each in documents(INSTALL_FILE.read_text()) if each["kind"] != "Deployment"]
        cluster.apply(objects)
        cluster.wait_established(names.CRD_NAME)
        yield Site(cluster, kubectl)
    finally:
        down(name, keep_logs=False)


def _pool(where: Place) -> Json:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": where.name, "namespace": where.namespace},
        "spec": {
            "model": {"id": "/models/tiny", "servedNames": ["tiny"]},
            "prefill": _NO_ENGINES,
            "decode": {**_NO_ENGINES, "env": [{"name": "N", "value": "0"}]},
        },
    }


def _generation(pool: Json) -> int:
    return int(pool["metadata"]["generation"])
