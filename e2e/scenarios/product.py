"""The product installed on a cluster as a user installs it: `manifests/install.yaml` applied, the operator ready.

Boundary: the one committed manifest, with images named otherwise only where the caller asks for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from e2e.documents import documents
from e2e.scenarios.pools import Say, view, wait_for
from pdpool_api.names import OPERATOR_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from e2e.scenarios.api import ClusterApi, JsonObject

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALL_MANIFEST = REPOSITORY / "manifests" / "install.yaml"
OPERATOR_TIMEOUT_S = 120.0
ROUTER_IMAGE_FLAG = "--router-image"


def manifest(*, operator_image: str | None = None, router_image: str | None = None) -> list[JsonObject]:
    """The objects of the install manifest, with other images where they are given."""
    objects: list[JsonObject] = documents(INSTALL_MANIFEST.read_text())
    for container in _operator(objects)["spec"]["template"]["spec"]["containers"]:
        if operator_image:
            container["image"] = operator_image
        if router_image:
            container["args"] = _with_flag(container.get("args", []), ROUTER_IMAGE_FLAG, router_image)
    return objects


def images() -> Mapping[str, str]:
    """The images that the install manifest names: of the operator, and of the router it starts."""
    container = _operator(manifest())["spec"]["template"]["spec"]["containers"][0]
    router = next(
        (arg.partition("=")[2] for arg in container.get("args", []) if arg.startswith(f"{ROUTER_IMAGE_FLAG}=")), ""
    )
    return {"operator": container["image"], "router": router}


def operator_place() -> tuple[str, str]:
    """Namespace and name of the operator's Deployment."""
    metadata = _operator(manifest())["metadata"]
    return metadata["namespace"], metadata["name"]


def install(api: ClusterApi, objects: list[JsonObject], new_images: Sequence[str] = ()) -> None:
    """Apply the manifest's objects; a second time changes nothing.

    An operator that is there already is restarted where its image is among `new_images`: a changed content under the
    same name starts no new pod by itself.
    """
    namespace, name = operator_place()
    was_there = api.get("deployments", name, namespace) is not None
    text = yaml.safe_dump_all(objects, sort_keys=False)
    api.kubectl(["apply", "--server-side", "--force-conflicts", "-f", "-"], given=text)
    if was_there and images()["operator"] in new_images:
        api.kubectl(["rollout", "restart", "--namespace", namespace, f"deployment/{name}"])


@dataclass(frozen=True)
class Operator:
    """The operator's Deployment on a cluster."""

    api: ClusterApi
    namespace: str
    name: str

    @property
    def user(self) -> str:
        """Under which name its requests stand in the API server's audit log."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def is_there(self) -> bool:
        """Whether somebody has installed it."""
        return self._deployment() is not None

    def wait_ready(self, say: Say | None = None, timeout_s: float = OPERATOR_TIMEOUT_S) -> None:
        """Wait until it is rolled out.

        Raises:
            LateError: it is not; with its pods' states.
        """
        wait_for(self._is_rolled_out, timeout_s, f"operator {self.namespace}/{self.name}", self._summary, say)

    def metrics_addresses(self) -> list[str]:
        """Where its ready replicas are scraped."""
        pods = [view(pod) for pod in self._pods()]
        return [f"{pod.ip}:{OPERATOR_PORT}" for pod in pods if pod.ready]

    def kill(self) -> None:
        """End every pod of it at once, without a grace period; its Deployment brings another."""
        for pod in self._pods():
            self.api.delete("pods", pod["metadata"]["name"], self.namespace, grace_s=0)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Scaled to nothing for the length of the block."""
        replicas = (self._deployment() or {"spec": {}})["spec"].get("replicas", 1)
        self.api.patch("deployments", self.name, self.namespace, {"spec": {"replicas": 0}})
        try:
            wait_for(lambda: not self._pods(), OPERATOR_TIMEOUT_S, "the operator gone", self._summary)
            yield
        finally:
            self.api.patch("deployments", self.name, self.namespace, {"spec": {"replicas": replicas}})
            self.wait_ready()

    def _deployment(self) -> JsonObject | None:
        return self.api.get("deployments", self.name, self.namespace)

    def _pods(self) -> list[JsonObject]:
        """Its own pods: that of `helm test` stays in the namespace when it has ended."""
        deployment = self._deployment()
        chosen = deployment["spec"]["selector"]["matchLabels"] if deployment else {}
        return self.api.items("pods", self.namespace, ",".join(f"{key}={value}" for key, value in chosen.items()))

    def _is_rolled_out(self) -> bool:
        deployment = self._deployment()
        return deployment is not None and is_rolled_out(deployment)

    def _summary(self) -> str:
        return ", ".join(f"{pod.name} {pod.state}" for pod in map(view, self._pods())) or "no pods"


def operator(api: ClusterApi) -> Operator:
    """The operator where the install manifest puts it."""
    return Operator(api, *operator_place())


def is_rolled_out(deployment: JsonObject) -> bool:
    """Whether a Deployment runs exactly what its spec says, all of it available."""
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("replicas", 0) == wanted
        and status.get("updatedReplicas", 0) == wanted
        and status.get("availableReplicas", 0) == wanted
    )


def _operator(objects: list[JsonObject]) -> Any:
    return next(each for each in objects if each["kind"] == "Deployment")


def _with_flag(arguments: list[str], flag: str, value: str) -> list[str]:
    kept = [each for each in arguments if not each.startswith(f"{flag}=")]
    return [*kept, f"{flag}={value}"]
