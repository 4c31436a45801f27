"""OCI archives by hand: layers from folders, an image from layers, the same bytes from the same content.

Boundary: tar, JSON and digests; what goes into a folder is the caller's. No daemon, no registry, no container runtime.
Fixed times, owners and order make a layer's digest a function of its content, so that an unchanged layer is never
imported twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# To be raised with every change of how a folder becomes a layer.
FORMAT = 1
KEPT_S = 3600.0
EPOCH = "1970-01-01T00:00:00Z"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
# Uncompressed: archives never travel, and packing costs more than the disk it saves.
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """A layer's tar file and its digest."""

    path: Path
    digest: str

    @property
    def size_bytes(self) -> int:
        """The size of the tar file."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class Settings:
    """How a container of the image starts."""

    entrypoint: Sequence[str]
    user: str = "65532:65532"
    environment: Mapping[str, str] = field(default_factory=dict)
    working_folder: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)


def layer(root: Path, target: Path, *, included: Callable[[str], bool] = lambda _: True) -> Layer:
    """Write a layer with everything below `root` for which `included` does not say no (with all below that).

    Files belong to root and keep their permissions; devices and sockets are left out. `target` appears in one rename.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / "layer.tar"
        with tarfile.open(fresh, "w", format=tarfile.PAX_FORMAT) as archive:
            _add_tree(archive, root, "", included, {})
        fresh.replace(target)
    return existing_layer(target)


def existing_layer(path: Path) -> Layer:
    """A layer whose tar file is there already."""
    with path.open("rb") as stream:
        return Layer(path, hashlib.file_digest(stream, "sha256").hexdigest())


def archive(name: str, layers: Sequence[Layer], settings: Settings, target: Path) -> Path:
    """Write an OCI archive with one image called `name`; it appears at `target` in one rename."""
    config = _encoded(_config(layers, settings))
    manifest = _encoded(_manifest(layers, config))
    index = _encoded(_index(name, manifest))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / "image.tar"
        with tarfile.open(fresh, "w", format=tarfile.PAX_FORMAT) as tar:
            _add_bytes(tar, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))
            _add_bytes(tar, "index.json", index)
            for blob in (config, manifest):
                _add_bytes(tar, f"blobs/sha256/{_digest(blob)}", blob)
            for one in {one.digest: one for one in layers}.values():
                with one.path.open("rb") as stream:
                    tar.addfile(_member(f"blobs/sha256/{one.digest}", one.size_bytes), stream)
        fresh.replace(target)
    return target


def _add_tree(
    archive: tarfile.TarFile,
    folder: Path,
    prefix: str,
    included: Callable[[str], bool],
    links: dict[tuple[int, int], str],
) -> None:
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        name = f"{prefix}{entry.name}"
        if not included(name):
            continue
        facts = entry.stat(follow_symlinks=False)
        member = _member(name, 0)
        member.mode = stat.S_IMODE(facts.st_mode)
        if entry.is_symlink():
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.path)  # noqa: PTH115  (a plain string, as it stands)
            archive.addfile(member)
        elif entry.is_dir():
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
            _add_tree(archive, Path(entry.path), f"{name}/", included, links)
        elif entry.is_file():
            _add_file(archive, Path(entry.path), member, facts, links)


def _add_file(
    archive: tarfile.TarFile,
    path: Path,
    member: tarfile.TarInfo,
    facts: os.stat_result,
    links: dict[tuple[int, int], str],
) -> None:
    first = links.setdefault((facts.st_dev, facts.st_ino), member.name)
    if facts.st_nlink > 1 and first != member.name:
        member.type, member.linkname = tarfile.LNKTYPE, first
        archive.addfile(member)
        return
    member.size = facts.st_size
    with path.open("rb") as stream:
        archive.addfile(member, stream)


def _member(name: str, size: int) -> tarfile.TarInfo:
    """A regular file owned by root, at the epoch: what `TarInfo` is by default, said aloud."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.uid, member.gid, member.mode = size, 0, 0, 0, 0o644
    return member


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_member(name, len(content)), io.BytesIO(content))


def _config(layers: Sequence[Layer], settings: Settings) -> dict[str, object]:
    return {
        "architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "created": EPOCH,
        "config": {
            "User": settings.user,
            "Env": [f"{name}={value}" for name, value in sorted(settings.environment.items())],
            "Entrypoint": list(settings.entrypoint),
            "WorkingDir": settings.working_folder,
            "Labels": dict(settings.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one.digest}" for one in layers]},
        "history": [{"created": EPOCH, "created_by": "pdpool e2e.images"} for _ in layers],
    }


def _manifest(layers: Sequence[Layer], config: bytes) -> dict[str, object]:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor(CONFIG_TYPE, _digest(config), len(config)),
        "layers": [_descriptor(LAYER_TYPE, one.digest, one.size_bytes) for one in layers],
    }


def _index(name: str, manifest: bytes) -> dict[str, object]:
    described = _descriptor(MANIFEST_TYPE, _digest(manifest), len(manifest))
    tag = name.rpartition(":")[2]
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [{**described, "annotations": annotations}]}


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _encoded(document: dict[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def remove_others(folder: Path, prefix: str, kept: Path) -> None:
    """Remove what was made of former content, unless so lately that somebody may be about to import it."""
    for path in folder.glob(f"{prefix}*"):
        if path != kept and time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
