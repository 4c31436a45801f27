"""The node's runtime and network programs, from the distribution's packages.

Boundary: asks apt only for what is missing, and leaves no service of theirs running: the cluster starts its own
containerd.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.commands import run, succeeds
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import ClusterError, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

CNI_FOLDER: Final = "/usr/lib/cni"
_SEARCH_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

# A program or file that proves each package.
NODE_PACKAGES: Final[Mapping[str, str]] = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": f"{CNI_FOLDER}/bridge",
    "iptables": "iptables",
    "nftables": "nft",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "openssl": "openssl",
    "mount": "mount",
    "util-linux": "setsid",
}
CONTROL_PLANE_PACKAGES: Final[Mapping[str, str]] = {"openssl": "openssl", "util-linux": "setsid"}


def unpacked(package: str, member: str, progress: Progress) -> Path:
    """A program out of a package's archive, kept in the cache: nothing is installed, and no service starts.

    For programs that need no more than the C library. Raises `ClusterError` if apt cannot fetch it.
    """
    folder = cache_root() / "debian" / package
    if not (folder / member).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            progress.step(f"fetch {package}"),
            tempfile.TemporaryDirectory(prefix=f".{package}-", dir=folder.parent) as scratch,
        ):
            fetch = ["apt-get", "download", package]
            if not succeeds(fetch, folder=Path(scratch)):
                run(["apt-get", "update"], timeout_s=600)
                run(fetch, folder=Path(scratch), timeout_s=600)
            (archive,) = Path(scratch).glob("*.deb")
            run(["dpkg-deb", "--extract", archive, Path(scratch) / "files"])
            shutil.rmtree(folder, ignore_errors=True)
            (Path(scratch) / "files").rename(folder)
    return folder / member


def ensure(packages: Mapping[str, str], progress: Progress) -> None:
    """Install those packages whose program is missing; raises `ClusterError` if apt cannot."""
    missing = [package for package, proof in packages.items() if not _present(proof)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterError(f"these Debian packages are needed and cannot be installed from here: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"install {' '.join(missing)}"):
        run(["apt-get", "update"], environment=environment, timeout_s=600)
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
        run(install, environment=environment, timeout_s=1200)
        if "containerd" in missing and Path("/run/systemd/system").is_dir():
            succeeds(["systemctl", "disable", "--now", "containerd.service"])


def program(name: str) -> str:
    """The full path of an installed program, also where PATH lacks the system folders."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SEARCH_PATH}")
    if found is None:
        raise ClusterError(f"the program {name} is not installed")
    return found


def _present(proof: str) -> bool:
    if proof.startswith("/"):
        return Path(proof).exists()
    return shutil.which(proof, path=f"{os.environ.get('PATH', '')}:{_SEARCH_PATH}") is not None
