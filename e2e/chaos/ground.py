"""Where a story plays: a control plane with stand-in nodes, or the machine's real node with stand-in engines in pods.

Boundary: brings up, hands out pools' first specs, and breaks what is below the operator. Everything goes with this
process.
"""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from e2e.chaos import operators
from e2e.chaos.nodes import StandInNodes
from e2e.cluster import Cluster, down, start_daemon, stop_daemon, up
from e2e.cluster.binaries import cached_path
from e2e.images.build import image_name
from e2e.scenarios import standin_pool
from e2e.scenarios.api import ApiError, ClusterApi
from e2e.scenarios.node_images import load_images
from e2e.scenarios.pools import is_ready
from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]
GPUS: Final = 7
"""Cap of each pool: both roles at their largest, and one accelerator for a surge."""
_PACES: Final[Mapping[str, Json]] = {
    "tight": {"maxSurge": 0, "maxUnavailable": 1},
    "roomy": {"maxSurge": 1, "maxUnavailable": 0},
    "quick": {"maxSurge": 1, "maxUnavailable": 1},
}
_NODE_GPUS: Final = "64"
_GPU: Final = "nvidia.com/gpu"
_API_BACK_S: Final = 90.0
_NODE_BACK_S: Final = 120.0
_POLL_S: Final = 0.5


class Ground:
    """A cluster under a story."""

    def __init__(self, cluster: Cluster, api: ClusterApi) -> None:
        self.cluster = cluster
        self.api = api

    def cast(self) -> dict[str, Json]:
        """The first specs of the story's pools, by name."""
        raise NotImplementedError

    def lose_node(self, pick: float) -> str:
        """A node falls silent; its name."""
        raise NotImplementedError

    def heal_nodes(self, name: str = "") -> None:
        """A node (or every one) is back."""
        raise NotImplementedError

    def restart_api(self, after_s: float) -> None:
        """A kill -9 of the API server, and a new one a little later; answers when this returns."""
        stop_daemon(self.cluster, "apiserver")
        time.sleep(after_s)
        start_daemon(self.cluster, "apiserver")
        until_s = time.monotonic() + _API_BACK_S
        while time.monotonic() < until_s:
            with contextlib.suppress(ApiError):
                self.api.request("GET", "/api/v1/namespaces/default")
                return
            time.sleep(0.2)
        raise ApiError("the API server does not come back")


class ControlPlane(Ground):
    """A control plane; nodes are a thread that says what kubelets would."""

    def __init__(self, cluster: Cluster, api: ClusterApi, nodes: StandInNodes) -> None:
        super().__init__(cluster, api)
        self.nodes = nodes

    def cast(self) -> dict[str, Json]:
        """Three paces of rollouts; one of them refuses to serve without prefill."""
        return {name: _spec(pace, alone=name != "roomy") for name, pace in _PACES.items()}

    def lose_node(self, pick: float) -> str:
        """One of the stand-ins."""
        name = self.nodes.names[int(pick * len(self.nodes.names))]
        self.nodes.silence(name)
        return name

    def heal_nodes(self, name: str = "") -> None:
        """They are heard of again."""
        self.nodes.heal(name)


class RealNode(Ground):
    """The machine's one node: kubelet, containerd, scheduler; engines are stand-ins in pods."""

    def __init__(self, cluster: Cluster, api: ClusterApi) -> None:
        super().__init__(cluster, api)
        self._lost = False

    def cast(self) -> dict[str, Json]:
        """The same paces with engines that run."""
        return {name: _running_spec(name, pace) for name, pace in _PACES.items()}

    def lose_node(self, pick: float) -> str:
        """Its kubelet is killed: the node controller finds out by itself."""
        del pick
        if not self._lost:
            stop_daemon(self.cluster, "kubelet")
            self._lost = True
        return "the kubelet"

    def heal_nodes(self, name: str = "") -> None:
        """A new kubelet, which begins by taking away what no device plugin tells of."""
        del name
        if self._lost:
            start_daemon(self.cluster, "kubelet")
            self._lost = False
        self.give_accelerators()

    def give_accelerators(self) -> None:
        """Says that the node has accelerators, until it is Ready and says so itself.

        Raises:
            ApiError: the node does not come back.
        """
        until_s = time.monotonic() + _NODE_BACK_S
        while time.monotonic() < until_s:
            # The API server may be away meanwhile.
            with contextlib.suppress(ApiError):
                (node,) = self.api.items("nodes")
                if is_ready(node) and node["status"]["allocatable"].get(_GPU) == _NODE_GPUS:
                    return
                path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                body = {"status": {"capacity": {_GPU: _NODE_GPUS}}}
                self.api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            time.sleep(_POLL_S)
        raise ApiError("the node does not come back with its accelerators")


def _spec(pace: Json, *, alone: bool) -> Json:
    role = {"replicas": 2, "drainSeconds": 5, "rollout": pace}
    return {
        "model": {"id": "/models/tiny", "servedNames": ["tiny"]},
        "transfer": {"leaseSeconds": 6},
        "prefill": dict(role),
        "decode": dict(role),
        "maxGpus": GPUS,
        "router": {
            "replicas": 1,
            "drainSeconds": 5,
            "routing": {"onPrefillUnavailable": "Local" if alone else "Fail"},
        },
    }


def _running_spec(name: str, pace: Json) -> Json:
    spec: Json = standin_pool.manifest(name, "default", prefill=2, decode=2)["spec"]
    for role in ("prefill", "decode"):
        del spec[role]["hardware"]
        spec[role]["resources"]["limits"] = {_GPU: "1"}
        spec[role]["rollout"] = pace
    return {**spec, "maxGpus": GPUS}


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A control plane of its own while the block lasts."""
    with _up(node=False) as (cluster, api), StandInNodes(api) as nodes:
        yield ControlPlane(cluster, api, nodes)


@contextmanager
def real_node() -> Iterator[RealNode]:
    """The machine's node while the block lasts; needs root, and that nobody else has it."""
    with _up(node=True) as (cluster, api):
        load_images(cluster)
        found = RealNode(cluster, api)
        found.give_accelerators()
        yield found


def router_flag() -> str:
    """Which image routers run, for the operator's command line."""
    return f"--router-image={image_name('router')}"


@contextmanager
def _up(*, node: bool) -> Iterator[tuple[Cluster, ClusterApi]]:
    name = f"chaos-{os.getpid()}"
    cluster = up(name, control_plane_only=not node, owned=True)
    try:
        cluster.apply(operators.manifest())
        cluster.wait_established(names.CRD_NAME)
        api = ClusterApi(cluster.kubeconfig, str(cached_path("kubectl")))
        try:
            yield cluster, api
        finally:
            api.close()
    finally:
        down(name, keep_logs=False)
