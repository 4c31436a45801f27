"""Real Argo CD beside a control plane: its controllers, repo server and Redis as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.chart import CHART
from e2e.cluster import Progress, down, up
from e2e.cluster.binaries import ARGO_CD, ensure, module_source
from e2e.cluster.debian import ensure as ensure_packages
from tests.operator.harness import Api, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

ROOT = CHART.parents[1]
NAMESPACE = "argocd"
PROJECT: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "AppProject",
    "metadata": {"name": "default", "namespace": NAMESPACE},
    "spec": {
        "sourceRepos": ["*"],
        "destinations": [{"namespace": "*", "server": "*"}],
        "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
    },
}


@dataclass(frozen=True)
class Repository:
    """A git repository that Argo CD reads."""

    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def write(self, path: str, text: str) -> None:
        """One more commit with this file in it."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"Change {path}")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, timeout=60)


@pytest.fixture(scope="session")
def plane() -> Iterator[Cluster]:
    name = f"test-{os.getpid()}-argocd"
    yield up(name, control_plane_only=True, owned=True)
    down(name, keep_logs=False)


@pytest.fixture(scope="session")
def api(plane: Cluster) -> Iterator[Api]:
    found = Api(plane.kubeconfig)
    yield found
    found.close()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The chart, as it stands in this working copy."""
    found = Repository(tmp_path_factory.mktemp("repository"))
    found.git("init", "--quiet", "--initial-branch=main")
    for file in sorted(CHART.rglob("*")):
        if file.is_file():
            target = found.folder / "charts" / "pdpool" / file.relative_to(CHART)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    found.write("README.md", "The chart of pdpool, and a team's pools.\n")
    return found


@dataclass(frozen=True)
class Argo:
    """Argo CD at work."""

    folder: Path
    environment: dict[str, str]
    repo_server: str

    @contextmanager
    def application_sets(self) -> Iterator[None]:
        """Its ApplicationSet controller too, for the block."""
        ports = [f"--{name}-addr=127.0.0.1:{free_port()}" for name in ("metrics", "probe", "webhook")]
        command = [
            str(self.folder / "bin" / "argocd-applicationset-controller"),
            *("--namespace", NAMESPACE, *ports),
            *("--argocd-repo-server", self.repo_server, "--repo-server-plaintext"),
        ]
        with _running({"applicationset-controller": command}, self.environment, self.folder):
            yield


@pytest.fixture(scope="session")
def argo(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Argo]:
    """Argo CD at work, with the health check of manifests/argocd among its settings."""
    folder = tmp_path_factory.mktemp("argocd")
    _settings(plane)
    ensure_packages({"redis-server": "redis-server"}, Progress("argocd"))
    redis, repo = free_port(), free_port()
    environment = _environment(folder, plane.kubeconfig)
    cache = ["--redis", f"127.0.0.1:{redis}"]
    commands = {
        "redis": ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        "repo-server": [
            str(folder / "bin" / "argocd-repo-server"),
            *(
                "--port",
                str(repo),
                "--address",
                "127.0.0.1",
                "--metrics-port",
                str(free_port()),
                "--disable-tls",
                *cache,
            ),
        ],
        "controller": [
            str(folder / "bin" / "argocd-application-controller"),
            *("--kubeconfig", str(plane.kubeconfig), "--namespace", NAMESPACE, "--metrics-port", str(free_port())),
            *("--repo-server", f"127.0.0.1:{repo}", "--repo-server-plaintext", *cache),
            *("--app-resync", "10", "--app-resync-jitter", "0", "--self-heal-timeout-seconds", "5"),
        ],
    }
    with _running(commands, environment, folder):
        yield Argo(folder, environment, f"127.0.0.1:{repo}")


def _environment(folder: Path, kubeconfig: Path) -> dict[str, str]:
    """Programs under the names by which they are called, and settings of a controller outside of its cluster."""
    programs = folder / "bin"
    programs.mkdir()
    found = ensure(["argocd", "helm3"], Progress("argocd"))
    for name in ("argocd-repo-server", "argocd-application-controller", "argocd-applicationset-controller"):
        (programs / name).symlink_to(found["argocd"])
    (programs / "helm").symlink_to(found["helm3"])
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "ARGOCD_FAKE_IN_CLUSTER": "true",  # `https://kubernetes.default.svc` is the cluster of the kubeconfig
        "ARGOCD_GPG_ENABLED": "false",
        "ARGOCD_CONTROLLER_REPLICAS": "1",
        "TMPDIR": str(folder),
    }


def _settings(plane: Cluster) -> None:
    source = module_source("github.com/argoproj/argo-cd/v3", ARGO_CD, Progress("argocd")) / "manifests" / "crds"
    kinds = [yaml.safe_load(file.read_text()) for file in sorted(source.glob("*-crd.yaml"))]
    plane.apply(kinds)
    for kind in kinds:
        plane.wait_established(kind["metadata"]["name"])
    plane.kubectl("create", "namespace", NAMESPACE)
    labels = {"app.kubernetes.io/part-of": "argocd"}
    for kind, name in (("ConfigMap", "argocd-cm"), ("Secret", "argocd-secret")):
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        held = {"stringData": {"server.secretkey": "tests"}} if kind == "Secret" else {}
        plane.apply([{"apiVersion": "v1", "kind": kind, "metadata": metadata, **held}])
    # As the page says: server-side and under a name of its own, so that other settings stay.
    ours = str(ROOT / "manifests" / "argocd" / "argocd-cm.yaml")
    flags = ["--server-side", "--field-manager=pdpool-health", "--namespace", NAMESPACE]
    plane.kubectl("apply", *flags, "--filename", ours)
    plane.apply([PROJECT])


@contextmanager
def _running(commands: dict[str, list[str]], environment: dict[str, str], folder: Path) -> Iterator[None]:
    started = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("ab") as log:
                streams = {"stdout": log, "stderr": log}
                started.append(subprocess.Popen(["nice", *command], env=environment, cwd=folder, **streams))
            time.sleep(1)
            assert started[-1].poll() is None, (folder / f"{name}.log").read_text()[-2000:]
        yield
    finally:
        for each in reversed(started):
            each.terminate()
        for each in started:
            each.wait(timeout=60)
