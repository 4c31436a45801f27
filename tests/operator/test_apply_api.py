"""Whether a write is needed, asked of objects that a real API server has stored, defaulted and changed.

Each row of the tables is one change, by ourselves or by somebody else, and what it must lead to.
"""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api import names
from pdpool_operator import ownership
from pdpool_operator.apply import Writer
from pdpool_operator.kube import Kube, connection
from pdpool_operator.observe.cluster import Cluster, pool_owner
from pdpool_operator.records import CONFIG_MAPS, DEPLOYMENTS, SERVICES, Child, Observed, Plan, PoolRef
from tests.operator.harness import Api, Json, pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("operator")]

LABELS = {names.LABEL_POOL: "rich", names.LABEL_ROLE: "decode"}


def deployment() -> Json:
    """A Deployment with everything that the API server is known to rewrite, default or list in its own way."""
    container = {
        "name": "engine",
        "image": "engine:1",
        "command": [],
        "args": ["serve", "--x"],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "EMPTY", "value": ""},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "k"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "engine"}}},
        ],
        "ports": [
            {"name": "tcp", "containerPort": 53, "protocol": "TCP"},
            {"name": "udp", "containerPort": 53, "protocol": "UDP"},
            {"name": "plain", "containerPort": 8000},
        ],
        "resources": {
            "requests": {"cpu": "1000m", "memory": "1024Mi"},
            "limits": {"cpu": "2", "nvidia.com/gpu": 1},
        },
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        "securityContext": {},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "hostNetwork": False,
        "containers": [container],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h100"},
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16384Mi"}},
            {"name": "e", "emptyDir": {}},
            {"name": "c", "configMap": {"name": "rich"}},
        ],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "rich", "labels": dict(LABELS)},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": dict(LABELS)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": pod},
        },
    }


def service() -> Json:
    ports = [
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "rich", "labels": dict(LABELS)},
        "spec": {"selector": dict(LABELS), "ports": ports},
    }


def config_map() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "rich", "labels": dict(LABELS)},
        "data": {"a": "1", "b": "2"},
    }


class Bench:
    """One pool, three children of it, and the writer under test."""

    def __init__(self, kube: Kube, api: Api, namespace: str, owner: Json) -> None:
        self.api, self.namespace, self.kube = api, namespace, kube
        self._pool = owner
        self._writer = Writer(kube, Cluster())

    def child(self, body: Json) -> Child:
        resource = {"Deployment": DEPLOYMENTS, "Service": SERVICES, "ConfigMap": CONFIG_MAPS}[body["kind"]]
        owner = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self._pool["metadata"]["name"],
            "uid": self._pool["metadata"]["uid"],
            "controller": True,
        }
        metadata = {**body["metadata"], "namespace": self.namespace, "ownerReferences": [owner]}
        return Child(resource, {**body, "metadata": metadata})

    def live(self, body: Json) -> Json | None:
        return self.api.get(f"{body['kind'].lower()}s", self.namespace, body["metadata"]["name"])

    async def write(self, body: Json) -> bool:
        """Carries it out as a reconcile would; True when something was written."""
        child, live = self.child(body), self.live(body)
        known = {child.key: live} if live and pool_owner(live) else {}
        observed = Observed(PoolRef(self.namespace, "rich"), self._pool, known)
        outcome = await self._writer.carry_out(observed, Plan(desired=None, apply=(child,)))
        assert not outcome.failed, outcome.failed
        assert not outcome.refused, outcome.refused
        return bool(outcome.written)

    async def settle(self, body: Json) -> Json:
        """Writes it, and asserts that nothing is left to write; the live object."""
        await self.write(body)
        assert not await self.write(body)
        live = self.live(body)
        assert live is not None
        return live


@pytest.fixture
async def bench(site: Site, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    # Refused for an abbreviated reserved flag, so that the operator of other tests leaves its children be.
    engine = {"args": ["--served-model", "x"]}
    owner = api.apply("inferencepools", namespace, pool("rich", namespace, engine=engine))
    monkeypatch.setenv("KUBECONFIG", str(site.cluster.kubeconfig))
    async with Kube(await connection()) as kube:
        yield Bench(kube, api, namespace, owner)


def container(body: Json) -> Json:
    found: Json = body["spec"]["template"]["spec"]["containers"][0]
    return found


def _env(body: Json) -> list[Json]:
    found: list[Json] = container(body)["env"]
    return found


OWN_CHANGES: dict[str, Callable[[Json], Any]] = {
    "value": lambda d: container(d).update(image="engine:2"),
    "env removed": lambda d: _env(d).pop(0),
    "env order": lambda d: _env(d).reverse(),
    "list emptied": lambda d: container(d).update(args=[]),
    "label removed": lambda d: d["spec"]["template"]["metadata"]["labels"].update(more="x"),
    "port removed": lambda d: container(d)["ports"].pop(1),
    "port number": lambda d: container(d)["ports"][2].update(containerPort=8001),
    "volume removed": lambda d: d["spec"]["template"]["spec"]["volumes"].pop(1),
    "node selector removed": lambda d: d["spec"]["template"]["spec"].pop("nodeSelector"),
    "tolerations removed": lambda d: d["spec"]["template"]["spec"].pop("tolerations"),
    "container added": lambda d: d["spec"]["template"]["spec"]["containers"].append({"name": "b", "image": "b:1"}),
    "false dropped": lambda d: d["spec"]["template"]["spec"].pop("hostNetwork"),
    "empty list dropped": lambda d: container(d).pop("command"),
    "quantity respelt": lambda d: container(d)["resources"]["requests"].update(cpu="1"),
    "replicas": lambda d: d["spec"].update(replicas=1),
}


async def test_every_change_of_ours_is_written_once(bench: Bench) -> None:
    """A change of the desired object, in value, order or presence, is one write and leaves nothing to write (Q08)."""
    body = deployment()
    await bench.settle(body)
    for name, change in OWN_CHANGES.items():
        changed = copy.deepcopy(body)
        change(changed)
        assert await bench.write(changed), name
        assert not await bench.write(changed), name
        live = bench.live(changed)
        assert live is not None
        if name != "quantity respelt":
            owned = ownership.entry(live)
            assert owned is not None
        await bench.settle(body)
    for other in (service(), config_map()):
        await bench.settle(other)


def _json_patch(path: str, value: Any = None, op: str = "replace") -> list[Json]:
    return [{"op": op, "path": path, **({} if op == "remove" else {"value": value})}]


CONTAINER = "/spec/template/spec/containers/0"
FOREIGN_CHANGES: dict[str, tuple[Callable[[], Json], list[Json]]] = {
    "image": (deployment, _json_patch(f"{CONTAINER}/image", "evil:1")),
    "args": (deployment, _json_patch(f"{CONTAINER}/args/1", "--y")),
    "env value": (deployment, _json_patch(f"{CONTAINER}/env/0/value", "2")),
    "env removed": (deployment, _json_patch(f"{CONTAINER}/env/0", op="remove")),
    "secret key": (deployment, _json_patch(f"{CONTAINER}/env/3/valueFrom/secretKeyRef/key", "z")),
    "label": (deployment, _json_patch("/metadata/labels/pdpool.io~1role", "prefill")),
    "replicas": (deployment, _json_patch("/spec/replicas", 3)),
    "owner dropped": (deployment, _json_patch("/metadata/ownerReferences", op="remove")),
    "hash removed": (deployment, _json_patch("/metadata/annotations/pdpool.io~1applied", op="remove")),
    "managedFields cleared": (deployment, _json_patch("/metadata/managedFields", [{}])),
    "env renamed": (deployment, _json_patch(f"{CONTAINER}/env/0/name", "B")),
    "container port": (deployment, _json_patch(f"{CONTAINER}/ports/2/containerPort", 8001)),
    "container renamed": (deployment, _json_patch(f"{CONTAINER}/name", "other")),
    "service port": (service, _json_patch("/spec/ports/0/port", 81)),
    "target port": (service, _json_patch("/spec/ports/0/targetPort", 81)),
    "selector": (service, _json_patch("/spec/selector/pdpool.io~1role", "x")),
    "key changed": (config_map, _json_patch("/data/a", "9")),
    "key removed": (config_map, _json_patch("/data/b", op="remove")),
}


async def test_what_others_change_of_ours_is_corrected(bench: Bench) -> None:
    """A field that we set and somebody else changes or removes is seen from ownership alone, and put right."""
    for name, (make, patch) in FOREIGN_CHANGES.items():
        body = make()
        before = await bench.settle(body)
        _patched(bench, body, patch)
        changed = bench.live(body)
        assert changed is not None
        assert await bench.write(body), name
        after = await bench.settle(body)
        assert after.get("spec") == before.get("spec"), name
        assert after.get("data") == before.get("data"), name
        assert after["metadata"]["labels"] == before["metadata"]["labels"], name


HARMLESS_CHANGES: dict[str, tuple[Callable[[], Json], list[Json]]] = {
    "foreign env": (deployment, _json_patch(f"{CONTAINER}/env/-", {"name": "OTHER", "value": "1"}, "add")),
    "foreign annotation": (deployment, _json_patch("/metadata/annotations/x", "y", "add")),
    "restart": (deployment, _json_patch("/spec/template/metadata/annotations", {"restartedAt": "now"}, "add")),
    "default changed": (deployment, _json_patch(f"{CONTAINER}/readinessProbe/timeoutSeconds", 9)),
    "equal quantity": (deployment, _json_patch(f"{CONTAINER}/resources/limits/cpu", "2000m")),
    "foreign key": (config_map, _json_patch("/data/z", "9", "add")),
}


async def test_what_others_add_beside_ours_stays(bench: Bench) -> None:
    """Fields that we never set belong to whoever set them: no write follows (Q08)."""
    for name, (make, patch) in HARMLESS_CHANGES.items():
        body = make()
        await bench.settle(body)
        _patched(bench, body, patch)
        assert not await bench.write(body), name


def _patched(bench: Bench, body: Json, patch: list[Json]) -> None:
    path = bench.api.path(f"{body['kind'].lower()}s", bench.namespace, body["metadata"]["name"])
    bench.api.request("PATCH", f"{path}?fieldManager=other", patch, content_type="application/json-patch+json")


async def test_a_child_of_the_pools_earlier_life_is_no_conflict(bench: Bench) -> None:
    """A pool that was deleted and made again waits until what the first one left is collected."""
    body = config_map()
    child = bench.child(body)
    (owner,) = child.body["metadata"]["ownerReferences"]
    # The finalizer keeps it for as long as the test looks, however fast the garbage collector is.
    left = {
        **child.body["metadata"],
        "ownerReferences": [{**owner, "uid": str(uuid.uuid4())}],
        "finalizers": ["example.com/wait"],
    }
    bench.api.create("configmaps", bench.namespace, {**child.body, "metadata": left})
    observed = Observed(PoolRef(bench.namespace, "rich"), bench._pool, {})
    outcome = await bench._writer.carry_out(observed, Plan(desired=None, apply=(child,)))
    assert not outcome.conflicts
    assert list(outcome.failed) == [child.key]
    bench.api.delete("configmaps", bench.namespace, "rich")
    bench.api.merge("configmaps", bench.namespace, "rich", {"metadata": {"finalizers": None}})
    assert await bench.write(body)


async def test_a_body_that_fits_no_schema_is_refused_for_good(bench: Bench) -> None:
    """The API server's 500 for a body with a repeated key is no fault of the server: it is reported, not retried."""
    body = deployment()
    _env(body).append({"name": "A", "value": "twice"})
    child = bench.child(body)
    observed = Observed(PoolRef(bench.namespace, "rich"), bench._pool, {})
    outcome = await bench._writer.carry_out(observed, Plan(desired=None, apply=(child,)))
    assert list(outcome.refused) == [child.key]
    assert not outcome.failed
