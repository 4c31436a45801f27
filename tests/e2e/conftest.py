"""The product on the machine's full cluster, installed once for all tests here, and the pools that they share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from e2e.cluster.binaries import cached_path
from e2e.cluster.fixtures import SharedNode, shared_node
from e2e.demo.options import SAMPLE
from e2e.engine import install, model
from e2e.scenarios import host_links, product, standin_pool
from e2e.scenarios.api import ClusterApi
from e2e.scenarios.node_images import load_images
from e2e.scenarios.pools import Pool, wait_for
from e2e.scenarios.quickstart import Newcomer
from e2e.scenarios.startup import StartupWatch

if TYPE_CHECKING:
    from e2e.cluster import Cluster, Moment
    from e2e.scenarios.product import Operator

__all__ = ["shared_node"]

QUICKSTART_INSTALL, QUICKSTART_APPLY = 2, 1
"""How many commands of the quick start install the product, and apply the sample."""
STANDIN_READY_S = 60.0
REAL_READY_S = 300.0

# It only waits until a minute has passed since the quiet pool came up: last, it has nothing left to wait for.
LAST = "test_nothing_is_written_while_nothing_changes"

Say = Callable[[str], None]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the test that needs the most time since set-up to the end, whatever the random order is."""
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Prints at once, whatever pytest captures: set-up here takes a minute, and silence looks like a hang."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert reporter is not None
    assert capture is not None

    def print_now(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"  {text}")

    return print_now


@pytest.fixture(scope="session")
def cluster(shared_node: SharedNode, say: Say) -> Cluster:
    say("cluster: up")
    return shared_node.running()


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[ClusterApi]:
    reached = ClusterApi(cluster.kubeconfig, str(cached_path("kubectl")))
    yield reached
    reached.close()


@pytest.fixture(scope="session")
def newcomer(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, say: Say) -> Iterator[Newcomer]:
    """Somebody who types the quick start's commands: each of the fixtures that need one leaves the rest to the next."""
    folder = tmp_path_factory.mktemp("newcomer")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text())
    somebody = Newcomer(kubeconfig, folder, say)
    yield somebody
    somebody.leave()


@pytest.fixture(scope="session")
def operator(cluster: Cluster, api: ClusterApi, newcomer: Newcomer, say: Say) -> Operator:
    """The operator as a pod of its image, installed as the quick start says; or by the manifest where one is."""
    new_images = load_images(cluster, say)
    installed = product.operator(api)
    if installed.is_there:
        say("pdpool: install by the manifest")
        product.install(api, product.manifest(), new_images)
        newcomer.skips(QUICKSTART_INSTALL)
    else:
        newcomer.types(QUICKSTART_INSTALL)
    installed.wait_ready(say)
    return installed


@dataclass(frozen=True)
class Namespaces:
    """Namespaces of this session, all removed at its end."""

    api: ClusterApi
    made: list[str]

    def make(self, suffix: str, labels: dict[str, str] | None = None) -> str:
        """A fresh namespace."""
        name = f"e2e-{os.getpid()}-{suffix}"
        self.api.create("namespaces", None, {"metadata": {"name": name, "labels": labels or {}}})
        self.made.append(name)
        return name


@pytest.fixture(scope="session")
def namespaces(api: ClusterApi, operator: Operator) -> Iterator[Namespaces]:
    del operator  # installed first: CRDs must be known before anything is made
    spaces = Namespaces(api, [])
    yield spaces
    for name in spaces.made:
        api.delete("namespaces", name)


@pytest.fixture(scope="session")
def namespace(namespaces: Namespaces) -> str:
    """The namespace of the shared pools."""
    return namespaces.make("shared")


@dataclass(frozen=True)
class QuietPool:
    """A pool that no test touches, and since when it has been as it should be."""

    pool: Pool
    since: Moment
    since_s: float
    """By the monotonic clock."""


@pytest.fixture(scope="session")
def quiet(cluster: Cluster, api: ClusterApi, namespace: str, say: Say) -> QuietPool:
    """A pool of stand-in engines that no test touches."""
    pool = _standin(api, "quiet", namespace, say)
    # Its routers are read some seconds after it is ready; that turns a condition once.
    wait_for(lambda: _routing(pool) == "True", STANDIN_READY_S, "its routers read", pool.summary)
    return QuietPool(pool, cluster.audit.now(), time.monotonic())


def _routing(pool: Pool) -> str:
    conditions = (pool.read() or {}).get("status", {}).get("conditions", ())
    return next((each["status"] for each in conditions if each["type"] == "RoutingHealthy"), "")


@pytest.fixture(scope="session")
def pool(api: ClusterApi, namespace: str, quiet: QuietPool, say: Say) -> Pool:
    """A pool of stand-in engines that tests change, and leave ready as they found it."""
    del quiet  # started first, so that its quiet time runs meanwhile
    return _standin(api, "changed", namespace, say)


def _standin(api: ClusterApi, name: str, namespace: str, say: Say) -> Pool:
    api.create("inferencepools", namespace, standin_pool.manifest(name, namespace))
    made = Pool(api, name, namespace)
    say(f"pool {name} of stand-in engines: start")
    made.wait_ready(STANDIN_READY_S, say)
    return made


@dataclass(frozen=True)
class RealPool:
    """The committed sample, applied and ready, with what was seen of its start."""

    pool: Pool
    model: str
    starts: StartupWatch
    applied_s: float
    ready_s: float
    """Seconds of the Unix epoch, as `applied_s`."""


@pytest.fixture(scope="session")
def real_pool(api: ClusterApi, namespaces: Namespaces, newcomer: Newcomer, say: Say) -> Iterator[RealPool]:
    """The one set of real engines, started by the unchanged sample."""
    install.install()
    model.make()
    had_links = host_links.ROOT.exists()
    host_links.make()
    space = namespaces.make("real")
    sample = yaml.safe_load(SAMPLE.read_text())
    made = Pool(api, sample["metadata"]["name"], space)
    newcomer.works_in(space)
    with StartupWatch(made) as starts:
        applied_s = time.time()
        newcomer.types(QUICKSTART_APPLY)
        say("pool of real engines: start")
        made.wait_ready(REAL_READY_S, say)
        ready_s = time.time()
        yield RealPool(made, sample["spec"]["model"]["servedNames"][0], starts, applied_s, ready_s)
    if not had_links:
        host_links.remove()
