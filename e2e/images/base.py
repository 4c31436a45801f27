"""The base layer: a minimal Debian with its Python, made by debootstrap and kept in the cache.

Boundary: nothing of pdpool is in it; it changes only when the suite or the package list here does.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from e2e.cluster import debian
from e2e.cluster.commands import run
from e2e.cluster.paths import images_root
from e2e.images import oci
from e2e.images.workshop import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from e2e.cluster.progress import Progress

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
PACKAGES: Final = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
BUILDER_PACKAGES: Final = {"debootstrap": "debootstrap", "util-linux": "unshare"}
BUILD_TIMEOUT_S: Final = 900.0
_DOCUMENTS: Final = ("doc", "man", "info", "locale", "lintian", "bash-completion", "bug", "common-licenses")
LEFT_OUT: Final = frozenset(
    {
        *("boot", "dev", "home", "media", "mnt", "proc", "root", "run", "srv", "sys"),
        *(f"usr/share/{name}" for name in _DOCUMENTS),
        *("var/cache", "var/log", "var/lib/apt", "etc/machine-id"),
        *(f"usr/lib/{machine}-linux-gnu/gconv" for machine in ("x86_64", "aarch64")),
    }
)


def layer(progress: Progress) -> oci.Layer:
    """The base layer, built now unless it is in the cache."""
    # By what decides the content and not by this file's text: a rebuild takes a minute.
    decided = repr((SUITE, PYTHON, PACKAGES, sorted(LEFT_OUT), oci.FORMAT))
    target = images_root() / f"layer-base-{hashlib.sha256(decided.encode()).hexdigest()[:16]}.tar"
    if not target.exists():
        debian.ensure(BUILDER_PACKAGES, progress)
        with progress.step(f"base layer: Debian {SUITE} with Python {PYTHON}"), scratch_folder() as scratch:
            _fill(scratch / "root")
            oci.layer(scratch / "root", target, included=lambda name: name not in LEFT_OUT)
        oci.remove_others(images_root(), "layer-base-", target)
    return oci.existing_layer(target)


def _fill(root: Path) -> None:
    # In a mount namespace of its own, so that a kill leaves no mount of /proc behind.
    _isolated(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)])
    # Times are not kept in layers: Python must not compare them, or it would compile everything anew at each start.
    compile_all = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", f"/usr/lib/python{PYTHON}"]
    _isolated(["chroot", str(root), f"/usr/bin/python{PYTHON}", *compile_all])
    for line, listing in (
        ("nonroot:x:65532:65532::/tmp:/usr/sbin/nologin\n", "passwd"),
        ("nonroot:x:65532:\n", "group"),
    ):
        with (root / "etc" / listing).open("a") as stream:
            stream.write(line)
    (root / "tmp").chmod(0o1777)


def _isolated(command: Sequence[str]) -> None:
    run(["nice", "-n", "10", "unshare", "--mount", *command], timeout_s=BUILD_TIMEOUT_S)
