"""The base layer: a minimal Debian with its Python, made by debootstrap and kept in the cache.

Boundary: nothing of pdpool is in it; it changes only when the suite or the package list here does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.cluster import debian
from e2e.cluster.commands import run
from e2e.cluster.paths import images_root
from e2e.cluster.progress import Progress
from e2e.images import oci
from e2e.images.workshop import scratch_folder

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
PACKAGES: Final = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
BUILDER_PACKAGES: Final = {"debootstrap": "debootstrap", "util-linux": "unshare"}
BUILD_TIMEOUT_S: Final = 900.0
LEFT_OUT: Final = frozenset({
    "dev", "proc", "sys", "run", "boot", "media", "mnt", "srv", "home", "root",
    "usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion",
    "usr/share/bug", "usr/share/common-licenses", "usr/lib/x86_64-linux-gnu/gconv", "var/cache", "var/log", "var/lib/apt", "etc/machine-id",
})  # fmt: skip


def layer(progress: Progress) -> oci.Layer:
    """The base layer, built now unless it is in the cache."""
    key = hashlib.sha256(Path(__file__).read_bytes() + Path(oci.__file__).read_bytes()).hexdigest()[:16]
    target = images_root() / f"base-{key}.tar"
    if not target.exists():
        debian.ensure(BUILDER_PACKAGES, progress)
        with progress.step(f"base layer: Debian {SUITE} with Python {PYTHON}"), scratch_folder() as scratch:
            _fill(scratch / "root")
            oci.layer(scratch / "root", target, included=lambda name: name not in LEFT_OUT)
        oci.remove_others(images_root(), "base-", target)
    return oci.existing_layer(target)


def _fill(root: Path) -> None:
    # In a mount namespace of its own, so that a kill leaves no mount of /proc behind.
    _isolated(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)])
    # Times are not kept in layers: Python must not compare them, or it would compile everything anew at each start.
    compile_all = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", f"/usr/lib/python{PYTHON}"]
    _isolated(["chroot", str(root), f"/usr/bin/python{PYTHON}", *compile_all])
    for line, listing in (("nonroot:x:65532:65532::/tmp:/usr/sbin/nologin\n", "passwd"), ("nonroot:x:65532:\n", "group")):
        with (root / "etc" / listing).open("a") as stream:
            stream.write(line)
    (root / "tmp").chmod(0o1777)


def _isolated(command: Sequence[str]) -> None:
    run(["nice", "-n", "10", "unshare", "--mount", *command], timeout_s=BUILD_TIMEOUT_S)
