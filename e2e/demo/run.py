"""The demo's straight line: cluster and engine, images, product, pool, answers, account.

Boundary: the order of steps; each is done by the tool named after its thing. Every step may find its work done and then
does nothing, so that a run that was cut off is simply run again.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from e2e.cluster import Cluster, down, up
from e2e.cluster.binaries import cached_path, ensure
from e2e.cluster.progress import Progress
from e2e.demo import account, talk
from e2e.engine import install, model
from e2e.scenarios import engine_metrics, host_links, product
from e2e.scenarios.api import ClusterApi, JsonObject
from e2e.scenarios.engine_metrics import Reading
from e2e.scenarios.node_images import load_images
from e2e.scenarios.pools import LateError, Pool, wait_for
from e2e.scenarios.startup import StartupWatch
from pdpool_api.names import Role

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.demo.options import Options
    from e2e.demo.view import View

CLUSTER, ENGINE, IMAGES, PRODUCT, APPLY, READY, ANSWERS = (
    "cluster",
    "engine and model",
    "images",
    "install pdpool",
    "apply the sample",
    "pool Ready",
    "answers",
)
OTHER_RUN_WAIT_S = 600.0
INSTALLED_BY_DEMO = "pdpool.io/installed-by-demo"
"""On the operator's namespace: `down` removes only what `up` has made."""
GONE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Place:
    """The cluster that a demo runs on."""

    api: ClusterApi
    kubectl: str
    logs: Path | None
    new_images: list[str]
    """Images of a changed content under a name that pods may run already."""


def step_names(options: Options) -> list[str]:
    """The steps of a run, in order."""
    first = [CLUSTER, ENGINE, IMAGES] if options.own_cluster else []
    return [*first, PRODUCT, APPLY, READY, ANSWERS]


def assumptions(options: Options) -> str:
    """What a run on somebody else's cluster takes for granted."""
    return "\n".join(
        [
            f"Using the cluster of {options.kubeconfig}: pdpool is installed there and {options.sample} applied.",
            "Nothing else is made. Taken for granted:",
            "  - its nodes can pull the images of operator and router (--operator-image, --router-image;",
            "    default: those of manifests/install.yaml)",
            "  - the sample's engine can start there (--engine-image replaces its image; volumes are the sample's)",
            "  - Services and pods of the cluster can be reached from here by their addresses",
        ]
    )


def prepare(options: Options, view: View) -> Place:
    """A cluster with a node that has everything the product and the sample need."""
    if options.kubeconfig is not None:
        kubectl = shutil.which("kubectl") or str(ensure(["kubectl"], Progress("demo"))["kubectl"])
        return Place(ClusterApi(options.kubeconfig, kubectl), kubectl, None, [])
    with ThreadPoolExecutor(1) as beside:
        # The engine is downloads, the cluster is compiling: side by side neither waits for the other.
        engine = beside.submit(_engine, view)
        cluster, new_images = _cluster(view)
        engine.result()
    kubectl = str(cached_path("kubectl"))
    return Place(ClusterApi(cluster.kubeconfig, kubectl), kubectl, cluster.layout.logs, new_images)


def _cluster(view: View) -> tuple[Cluster, list[str]]:
    with view.step(CLUSTER):
        cluster = up(wait_s=OTHER_RUN_WAIT_S)
    with view.step(IMAGES) as step:
        return cluster, load_images(cluster, lambda word: view.say(step, word))


def _engine(view: View) -> None:
    with view.step(ENGINE):
        install.install(Progress("engine"))
        model.make(Progress("engine"))
        host_links.make()


def install_product(options: Options, view: View, place: Place) -> None:
    """Apply the install manifest and wait for the operator."""
    with view.step(PRODUCT) as step:
        objects = product.manifest(
            operator_image=options.operator_image or None, router_image=options.router_image or None
        )
        namespace, _ = product.operator_place()
        was_there = place.api.get("namespaces", namespace) is not None
        product.install(place.api, objects, place.new_images)
        if not was_there:
            mark = {"metadata": {"annotations": {INSTALLED_BY_DEMO: "true"}}}
            place.api.patch("namespaces", namespace, None, mark)
        product.operator(place.api).wait_ready(lambda word: view.say(step, word))


def sample(options: Options) -> JsonObject:
    """The pool of the sample, with another engine image where one is given."""
    pool: JsonObject = yaml.safe_load(options.sample.read_text())
    if options.engine_image:
        pool["spec"].setdefault("engine", {})["image"] = options.engine_image
    return pool


def serve(options: Options, view: View, place: Place) -> account.Measured:
    """Apply the sample, wait for it, ask it, and measure all along."""
    wanted = sample(options)
    pool = Pool(place.api, wanted["metadata"]["name"], options.namespace)
    was_there = pool.read() is not None
    with StartupWatch(pool) as starts:
        with view.step(APPLY):
            applied_s = time.time()
            _apply(options, place, wanted)
        with view.step(READY) as step:
            # Without the words before: the step itself says what is waited for.
            pool.wait_ready(options.ready_timeout_s, lambda word: view.say(step, word.partition(": ")[2]))
            ready_s = time.time()
        with view.step(ANSWERS):
            return _answers(pool, wanted, starts, applied_s, ready_s, fresh=not was_there)


def _apply(options: Options, place: Place, wanted: JsonObject) -> None:
    if options.engine_image:
        place.api.kubectl(["apply", "--namespace", options.namespace, "-f", "-"], given=yaml.safe_dump(wanted))
    else:
        place.api.kubectl(["apply", "--namespace", options.namespace, "-f", str(options.sample)])


def served_name(wanted: JsonObject) -> str:
    """The primary name of a pool's model."""
    told: dict[str, Any] = wanted["spec"]["model"]
    return str((told.get("servedNames") or [told["id"]])[0])


def _answers(
    pool: Pool, wanted: JsonObject, starts: StartupWatch, applied_s: float, ready_s: float, *, fresh: bool
) -> account.Measured:
    url, name, salt = pool.service_url(), served_name(wanted), time.strftime("%H:%M:%S")
    # Nobody asked a fresh pool anything yet: its pages, half a second's reading, would only delay the first token.
    before = {pod.name: Reading({}) for pod in pool.pods()} if fresh else _readings(pool)
    with talk.client(url) as openai:
        first = talk.streamed(openai, name, f"{salt} first")
        chat = talk.whole(openai, name, f"{salt} second")
        second = talk.streamed(openai, name, f"{salt} third")
    if first.first_token_s is None:
        raise LateError("the stream ended without a token")
    overhead_s = starts.overhead_s(applied_s, first.first_token_s) if fresh else None
    own = [start.own_s for start in starts.engines() if start.own_s is not None]
    return account.Measured(
        pods=pool.pods(),
        before=before,
        after=_readings(pool),
        streams=[first, second],
        chat=chat,
        service_url=url,
        apply_to_ready_s=ready_s - applied_s,
        own_start_s=max(own, default=None),
        overhead_s=overhead_s,
    )


def _readings(pool: Pool) -> dict[str, Reading]:
    engines = [pod for pod in pool.pods() if pod.role != Role.ROUTER and pod.ready]
    return {pod.name: engine_metrics.read(pod.url) for pod in engines}


def remove(options: Options) -> None:
    """Remove everything that `up` made: the pool and the product, or the demo's own cluster and the links."""
    progress = Progress("demo down")
    if options.kubeconfig is None:
        down(wait_s=OTHER_RUN_WAIT_S)
        host_links.remove()
        return
    kubectl = shutil.which("kubectl") or str(ensure(["kubectl"], progress)["kubectl"])
    _remove_from(ClusterApi(options.kubeconfig, kubectl), options, progress)


def _remove_from(api: ClusterApi, options: Options, progress: Progress) -> None:
    pool = Pool(api, sample(options)["metadata"]["name"], options.namespace)
    with progress.step(f"pool {pool.name}"):
        api.delete("inferencepools", pool.name, pool.namespace)
        wait_for(lambda: not pool.pods(), GONE_TIMEOUT_S, "the pool's pods gone", pool.summary, progress.say)
    namespace, _ = product.operator_place()
    home = api.get("namespaces", namespace)
    if home is None:
        return
    if INSTALLED_BY_DEMO not in home["metadata"].get("annotations", {}):
        progress.say("pdpool stays: it was there before the demo")
        return
    others = len(api.items("inferencepools"))
    if others:
        progress.say(f"pdpool stays: {others} other pools use it")
        return
    with progress.step("pdpool"):
        api.kubectl(["delete", "--ignore-not-found", "-f", str(product.INSTALL_MANIFEST)])
