"""The image whose only program waits: sandbox of every pod, and shell for what runs from host mounts.

Boundary: one static program of a few kB, compiled here; nothing else is in the image but mount points.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster import debian
from e2e.cluster.commands import run
from e2e.cluster.paths import images_root
from e2e.images import oci

if TYPE_CHECKING:
    from e2e.cluster.progress import Progress

NAME: Final = "localhost/pause:1"
SOURCE: Final = Path(__file__).with_name("pause.c")
COMPILER_PACKAGES: Final = {"gcc": "gcc", "libc6-dev": "/usr/include/stdio.h"}
# The places where a host's programs are mounted need the links that a merged /usr expects around them.
LINKS: Final = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}


def archive(progress: Progress) -> Path:
    """The archive of the image, built now unless it is in the cache."""
    content = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes() + bytes([oci.FORMAT]))
    target = images_root() / f"pause-{content.hexdigest()[:16]}.tar"
    if not target.exists():
        debian.ensure(COMPILER_PACKAGES, progress)
        with progress.step(f"image {NAME}"):
            _build(target)
        oci.remove_others(images_root(), "pause-", target)
    return target


def _build(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        root = Path(scratch) / "root"
        for folder in ("usr", "tmp", "dev", "proc", "sys", "etc"):
            (root / folder).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for link, goal in LINKS.items():
            (root / link).symlink_to(goal)
        (root / "etc" / "passwd").write_text("root:x:0:0::/:/\nnonroot:x:65532:65532::/tmp:/\n")
        (root / "etc" / "group").write_text("root:x:0:\nnonroot:x:65532:\n")
        run(["gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", root / "pause"])
        layer = oci.layer(root, Path(scratch) / "layer.tar")
        oci.archive(NAME, [layer], oci.Settings(entrypoint=["/pause"]), target)
