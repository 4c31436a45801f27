"""The full cluster: pods with names, Services and a network of their own."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster import Cluster, status
from e2e.cluster.host_pods import PYTHON, python_pod
from e2e.cluster.network import BRIDGE, NODE_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

WAIT_S = 60.0
SERVE = ("-c", "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()")
# Each look-up and request is bounded; one line of JSON tells what happened.
PROBE = """
import json, socket, sys, urllib.request
def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=3).status
    except OSError as failure:
        return str(failure)
def resolve(name):
    try:
        return socket.gethostbyname(name)
    except socket.gaierror as failure:
        return "no such name" if failure.errno == socket.EAI_NONAME else str(failure)
def connect(address):
    try:
        return socket.create_connection(address, timeout=3) and "connected"
    except OSError as failure:
        return type(failure).__name__
print(json.dumps({
    "name": resolve("web.%s.svc.cluster.local" % sys.argv[1]),
    "short name": resolve("web"),
    "headless": resolve("web-each"),
    "outside name": resolve("outside.invalid"),
    "outside address": connect(("192.0.2.200", 80)),
    "answers": [ask("http://web/") for _ in range(40)],
}))
"""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Web:
    """A namespace with a pod `web` that serves, the Services `web` and `web-each` before it, and a pod `other`."""

    cluster: Cluster
    namespace: str

    def get(self, *arguments: str) -> Any:
        return self.cluster.objects(*arguments, "--namespace", self.namespace)

    def probe(self, pod: str) -> dict[str, Any]:
        command = ["exec", "--stdin", pod, "--namespace", self.namespace, "--", PYTHON, "-", self.namespace]
        return dict(json.loads(self.cluster.kubectl(*command, text_input=PROBE)))


@pytest.fixture
def namespace(full_cluster: Cluster) -> Iterator[str]:
    """A namespace of this test alone: a former test's may still be going."""
    name = f"cluster-test-{next(_numbers)}"
    full_cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    yield name
    full_cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def web(full_cluster: Cluster, namespace: str) -> Web:
    pods = [python_pod(name, namespace, SERVE) for name in ("web", "other")]
    for pod in pods:
        # Otherwise the pods' own names would shadow the Service's.
        pod["spec"]["hostname"] = f"host-{pod['metadata']['name']}"
    full_cluster.apply([*pods, _service("web", namespace), _service("web-each", namespace, clusterIP="None")])
    full_cluster.kubectl("wait", "--for=condition=Ready", "--timeout=50s", "pod", "--all", "--namespace", namespace)
    return Web(full_cluster, namespace)


def _service(name: str, namespace: str, **spec: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    ports = [{"port": 80, "targetPort": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }


@pytest.mark.parametrize("pod", ["other", "web"])
def test_a_pod_resolves_and_reaches_a_service(web: Web, pod: str) -> None:
    """Each of 40 requests through the Service is answered, also from the very pod behind it; nothing outside is."""
    told = web.probe(pod)
    assert told["name"] == told["short name"] == web.get("service", "web")["spec"]["clusterIP"]
    assert told["headless"] == web.get("pod", "web")["status"]["podIP"]
    assert told["answers"] == [200] * 40
    assert told["outside name"] == "no such name"
    # Refused, or no route at all where the machine has none: at once in either case.
    assert told["outside address"] in {"ConnectionRefusedError", "OSError"}


def test_ranges_are_routed_to_the_bridge_whether_or_not_there_is_a_rule(full_cluster: Cluster) -> None:
    """Addresses that no Service and no pod has still go to the bridge, and a rule drops what would leave elsewhere."""
    assert full_cluster.server.startswith(f"https://{NODE_ADDRESS}:")
    for address in ("10.96.200.200", "10.244.0.250"):
        told = subprocess.run(
            ["ip", "-json", "route", "get", address], capture_output=True, text=True, check=True, timeout=10
        )
        assert json.loads(told.stdout)[0]["dev"] == BRIDGE
    rules = subprocess.run(
        ["nft", "list", "chain", "inet", "pdpool", "keep_in"], capture_output=True, text=True, check=True, timeout=10
    )
    assert "10.96.0.0/16" in rules.stdout
    assert "10.244.0.0/24" in rules.stdout
    assert "drop" in rules.stdout


def test_a_deleted_pod_is_gone_soon(web: Web) -> None:
    """A pod does not hang in Terminating: its network namespace can be taken apart."""
    web.cluster.kubectl("delete", "pod", "other", "--namespace", web.namespace, "--wait=true", "--timeout=30s")
    assert [pod["metadata"]["name"] for pod in web.get("pods")["items"]] == ["web"]


def test_an_image_that_was_not_imported_fails_here_and_asks_no_registry(full_cluster: Cluster, namespace: str) -> None:
    """The pull of an unknown image is refused by this machine itself."""
    pod = python_pod("missing", namespace, ())
    pod["spec"]["containers"][0] |= {"image": "images.invalid/none:1", "imagePullPolicy": "IfNotPresent"}
    full_cluster.apply([pod])
    deadline_s = time.monotonic() + WAIT_S
    message = ""
    while "127.0.0.1:1" not in message:
        assert time.monotonic() < deadline_s, message
        time.sleep(0.2)
        found = full_cluster.objects("pod", "missing", "--namespace", namespace)["status"]
        message = json.dumps(found.get("containerStatuses", []))


def test_a_second_full_cluster_is_refused(full_cluster: Cluster) -> None:
    """One machine has room for one node: another name is refused with the name of the one that has it."""
    second = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "up", "--name", "second"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert f"the full cluster {full_cluster.name!r} has this machine's node" in second.stderr
    assert status("second")["state"] == "absent"
