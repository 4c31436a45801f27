"""The product installed on a cluster as a user installs it: `manifests/install.yaml` applied, the operator ready.

Boundary: the one committed manifest, with images named otherwise only where the caller asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from e2e.scenarios.pools import Say, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e2e.scenarios.api import ClusterApi, JsonObject

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALL_MANIFEST = REPOSITORY / "manifests" / "install.yaml"
OPERATOR_TIMEOUT_S = 120.0
ROUTER_IMAGE_FLAG = "--router-image"


def manifest(*, operator_image: str | None = None, router_image: str | None = None) -> list[JsonObject]:
    """The objects of the install manifest, with other images where they are given."""
    objects: list[JsonObject] = [each for each in yaml.safe_load_all(INSTALL_MANIFEST.read_text()) if each]
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


def wait_operator(api: ClusterApi, say: Say | None = None, timeout_s: float = OPERATOR_TIMEOUT_S) -> None:
    """Wait until the operator's Deployment is rolled out.

    Raises:
        LateError: it is not; with its pods' states.
    """
    namespace, name = operator_place()

    def rolled_out() -> bool:
        deployment = api.get("deployments", name, namespace)
        return deployment is not None and is_rolled_out(deployment)

    def summary() -> str:
        return ", ".join(
            f"{pod['metadata']['name']} {pod.get('status', {}).get('phase')}" for pod in api.items("pods", namespace)
        )

    wait_for(rolled_out, timeout_s, f"operator {namespace}/{name}", summary, say)


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
