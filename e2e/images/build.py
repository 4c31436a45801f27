"""Building the images: the table of contents of this package."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from e2e.cluster.paths import images_root
from e2e.cluster.progress import ClusterError, Progress
from e2e.images import base, oci, pause
from e2e.images.members import REPOSITORY, SCRIPTS, Member, contents, own_layer, third_party_layer
from e2e.images.workshop import builder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PAUSE: Final = "pause"
MEMBERS: Final = {
    "operator": Member("pdpool-operator", REPOSITORY / "operator"),
    "router": Member("pdpool-router", REPOSITORY / "router"),
}
NAMES: Final = (PAUSE, *MEMBERS)


def image_name(name: str) -> str:
    """What the image called `name` here (`operator`, `router`, `pause`) is called in a node."""
    return pause.NAME if name == PAUSE else MEMBERS[name].image


def build(names: Iterable[str], progress: Progress) -> dict[str, Path]:
    """Archives of the named images, each built now unless the same content is in the cache.

    Raises `ClusterError` for an unknown name, or with the words of the program that failed.
    """
    with builder(progress):
        return {name: _archive(name, progress) for name in names}


def _archive(name: str, progress: Progress) -> Path:
    if name == PAUSE:
        return pause.archive(progress)
    if name not in MEMBERS:
        raise ClusterError(f"image {name!r}: must be one of {', '.join(NAMES)}")
    member = MEMBERS[name]
    found = contents(member)
    layers = [base.layer(progress), third_party_layer(member, found, progress), own_layer(member, found, progress)]
    settings = oci.Settings(
        entrypoint=[f"/{SCRIPTS}/{member.package}"],
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        labels={"org.opencontainers.image.title": member.package, "org.opencontainers.image.version": member.version},
    )
    key = hashlib.sha256("".join(one.digest for one in layers).encode() + repr((settings, member.image)).encode())
    target = images_root() / f"{member.package}-{key.hexdigest()[:16]}.tar"
    if not target.exists():
        with progress.step(f"image {member.image}"):
            oci.archive(member.image, layers, settings, target)
        oci.remove_others(images_root(), f"{member.package}-", target)
    return target
