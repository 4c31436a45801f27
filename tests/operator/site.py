"""pdpool installed in a control plane, and the waits that its tests share.

Boundary: fixtures are the conftest's; scenarios that take long are in `scenarios.py`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from e2e.chart import INSTALL_FILE, NAMESPACE, OPERATOR, documents
from e2e.cluster import service_account_user
from pdpool_api import names
from tests.operator.harness import Api, Json, Operator, condition, eventually, pool

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import Cluster

CHILDREN = 16
"""Of a pool at rest: ServiceAccount, Role, RoleBinding, ConfigMap; for each of 3 roles a Service, a Deployment, a
PodDisruptionBudget and a NetworkPolicy."""
SMALL: Json = {"hardware": "cpu", "replicas": 0}


@dataclass
class Site:
    """The control plane with pdpool installed by its manifest, and the operator's own credentials."""

    cluster: Cluster
    api: Api
    kubeconfig: Path
    logs: Path
    operator: Operator | None = None

    @property
    def user(self) -> str:
        """Whom the audit log names."""
        return service_account_user(NAMESPACE, OPERATOR)

    def namespace(self) -> str:
        """Makes a namespace; it goes with the control plane, as deleting each would keep its controllers busy."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def stop_shared(self) -> None:
        """Ends the operator that tests share, so that others act; it is started again for whoever asks for it."""
        if self.operator is not None and self.operator.running:
            assert self.operator.stop() == 0

    def start(self, *arguments: str, module: str = "pdpool_operator") -> Operator:
        """A further operator with the rights of the manifest, in its namespace."""
        log = self.logs / f"operator-{uuid.uuid4().hex[:6]}.log"
        return Operator(self.kubeconfig, log, *arguments, namespace=NAMESPACE, module=module)

    def child_writes(self, since: int, namespaces: set[str] | None = None) -> list[str]:
        """Every successful write of the operator to children (no statuses, Events, Leases): `verb resource/name`."""
        return [
            f"{entry.verb} {entry.namespace} {entry.resource}/{entry.name}"
            for entry in self.cluster.audit.entries(since)  # type: ignore[arg-type]
            if entry.user == self.user
            and entry.is_write
            and entry.succeeded
            and entry.resource not in ("events", "leases", "inferencepools/status")
            and (namespaces is None or entry.namespace in namespaces)
        ]


def installed(cluster: Cluster, logs: Path) -> Site:
    """Installs the manifest; no pod runs in a control plane alone, so the operator will run as a process."""
    cluster.apply([each for each in documents(INSTALL_FILE.read_text()) if each["kind"] != "Deployment"])
    cluster.wait_established(names.CRD_NAME)
    kubeconfig = cluster.kubeconfig_for_service_account(NAMESPACE, OPERATOR)
    return Site(cluster, Api(cluster.kubeconfig), kubeconfig, logs)


def small(name: str, namespace: str, number: int = 0) -> Json:
    """A pool without engine pods; `number` stands in a variable of decode."""
    decode = {**SMALL, "env": [{"name": "N", "value": str(number)}]}
    return pool(name, namespace, prefill=SMALL, decode=decode)


def settled(api: Api, namespace: str, name: str) -> Json:
    """The pool once its status speaks of its present generation and all children are there."""

    def look() -> Json:
        found = api.get("inferencepools", namespace, name)
        assert found is not None
        assert found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        assert len(api.children(namespace)) % CHILDREN == 0
        return found

    return eventually(look)


def make_all_ready(api: Api, namespace: str, name: str) -> Json:
    """The pool once its pods, which no kubelet runs, were said to be ready and the operator has seen it."""

    def look() -> Json:
        api.make_ready(namespace, names.LABEL_POOL)
        found = api.get("inferencepools", namespace, name)
        assert found is not None
        assert condition(found, "Ready")["status"] == "True"
        return found

    return eventually(look, every_s=0.5)


def generations(api: Api, namespace: str) -> dict[str, int]:
    return {key: each["metadata"].get("generation", 0) for key, each in api.children(namespace).items()}


def seen(api: Api, namespace: str, *pools: str, timeout_s: float = 60) -> None:
    """Waits until the pools' statuses speak of their present generations."""

    def look() -> None:
        for name in pools:
            found = api.get("inferencepools", namespace, name)
            assert found is not None
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]

    eventually(look, timeout_s=timeout_s)


def decode_number(api: Api, namespace: str, name: str) -> str:
    selector = f"{names.LABEL_POOL}={name},{names.LABEL_ROLE}=decode"
    (found,) = api.items("deployments", namespace, selector)
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return str({each["name"]: each for each in env}["N"]["value"])


def leads(operator: Operator) -> bool:
    return operator.metric("pdpool_operator_leading") == 1


def holds(value: object) -> None:
    """Asserts it: for `eventually`."""
    assert value
