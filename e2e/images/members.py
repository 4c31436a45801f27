"""What goes into the image of one workspace member: its locked third-party packages, and our own wheels on top.

Boundary: asks uv for both lists and lays the files out as Debian's Python expects them; layers and archives are
`oci.py`'s.
Two layers, because the first changes with the lock file and the second with every line of code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.commands import run
from e2e.cluster.paths import cache_root, images_root
from e2e.cluster.progress import ClusterError, Progress
from e2e.images import base, oci
from e2e.images.workshop import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SITE: Final = f"usr/local/lib/python{base.PYTHON}/dist-packages"
SCRIPTS: Final = "usr/local/bin"
PLATFORM: Final = {"x86_64": "x86_64-manylinux_2_36", "aarch64": "aarch64-manylinux_2_36"}
UV_TIMEOUT_S: Final = 600.0
_ORIGINS: Final = ("direct_url.json", "uv_cache.json")


@dataclass(frozen=True)
class Member:
    """One workspace member that has an image."""

    package: str
    folder: Path

    @property
    def version(self) -> str:
        """As its pyproject.toml says."""
        declared = tomllib.loads((self.folder / "pyproject.toml").read_text())
        return str(declared["project"]["version"])

    @property
    def image(self) -> str:
        """The image's name."""
        return f"localhost/{self.package}:{self.version}"


@dataclass(frozen=True)
class Contents:
    """The lock's answer for a member: third-party requirements with hashes, and the folders of our own packages."""

    requirements: str
    own: Sequence[Path]


def contents(member: Member) -> Contents:
    """What the lock file says the member needs, itself included."""
    exported = run(
        [
            uv(),
            "export",
            "--frozen",
            "--no-dev",
            "--all-extras",
            "--no-header",
            "--no-annotate",
            "--no-editable",
            "--package",
            member.package,
        ],
        folder=REPOSITORY,
        timeout_s=UV_TIMEOUT_S,
    )
    own = [line for line in exported.splitlines() if line.startswith("./")]
    requirements = "".join(f"{line}\n" for line in exported.splitlines() if not line.startswith("./"))
    return Contents(requirements, [REPOSITORY / line.split()[0] for line in own])


def third_party_layer(member: Member, found: Contents, progress: Progress) -> oci.Layer:
    """The layer of the locked third-party packages, built now unless it is in the cache."""
    key = _key(found.requirements.encode())
    target = images_root() / f"layer-{member.package}-packages-{key}.tar"
    if not target.exists():
        with progress.step("layer of third-party packages"), scratch_folder() as scratch:
            listing = scratch / "requirements.txt"
            listing.write_text(found.requirements)
            _install(scratch / "root", ["--require-hashes", "--requirement", str(listing)])
            oci.layer(scratch / "root", target)
        oci.remove_others(images_root(), f"layer-{member.package}-packages-", target)
    return oci.existing_layer(target)


def own_layer(member: Member, found: Contents, progress: Progress) -> oci.Layer:
    """The layer of our own packages and of their commands, built now unless these very sources are in the cache."""
    key = _key(*(chunk for folder in found.own for chunk in _sources(folder)))
    target = images_root() / f"layer-{member.package}-own-{key}.tar"
    if not target.exists():
        with progress.step(f"layer of {', '.join(folder.name for folder in found.own)}"), scratch_folder() as scratch:
            for folder in found.own:
                run(
                    [uv(), "build", "--wheel", "--quiet", "--out-dir", str(scratch / "wheels"), str(folder)],
                    timeout_s=UV_TIMEOUT_S,
                )
            root = scratch / "root"
            _install(root, ["--no-deps", *map(str, sorted((scratch / "wheels").glob("*.whl")))])
            _write_commands(root)
            oci.layer(root, target)
        oci.remove_others(images_root(), f"layer-{member.package}-own-", target)
    return oci.existing_layer(target)


def uv() -> str:
    """The uv to build with: the repository's own, or the one on PATH."""
    found = shutil.which("uv", path=f"{cache_root() / 'tools' / 'bin'}:{os.environ.get('PATH', '')}")
    if found is None:
        raise ClusterError("uv is needed to build images: run `make install` first")
    return found


def _install(root: Path, arguments: Sequence[str]) -> None:
    """Lay packages out below `root` for the image's Python and not for the one that runs here."""
    site = root / SITE
    target = ["--target", str(site), "--python-version", base.PYTHON, "--python-platform", PLATFORM[os.uname().machine]]
    command = [
        uv(),
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--only-binary",
        ":all:",
        "--link-mode",
        "copy",
    ]
    run([*command, *target, *arguments], folder=root.parent, timeout_s=UV_TIMEOUT_S)
    for left in (site / "bin", site / ".lock"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    _forget_origins(site)
    _compile(site)


def _forget_origins(site: Path) -> None:
    """Remove where, when and by whom each package was installed: the same package is the same bytes.

    Scripts are gone already; what is recorded of them tells the path of the Python that installed them.
    """
    for found in site.glob("*.dist-info"):
        for name in _ORIGINS:
            (found / name).unlink(missing_ok=True)
        record = found / "RECORD"
        kept = (line for line in record.read_text().splitlines(keepends=True) if not line.startswith(_recorded(found)))
        record.write_text("".join(kept))


def _recorded(found: Path) -> tuple[str, ...]:
    return ("bin/", *(f"{found.name}/{name}," for name in _ORIGINS))


def _compile(site: Path) -> None:
    """Compile without times (the layer keeps none), so that nothing is compiled at each start in a read-only root."""
    python = _matching_python()
    if python is None:
        return
    flags = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(site), "-p", f"/{SITE}"]
    # A package may ship a file of another Python's syntax; the rest is compiled all the same.
    subprocess.run(
        [python, "-m", "compileall", *flags, str(site)], capture_output=True, timeout=UV_TIMEOUT_S, check=False
    )


def _matching_python() -> str | None:
    """A Python whose compiled files the image's Python reads."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == base.PYTHON:
        return sys.executable
    return shutil.which(f"python{base.PYTHON}")


def _write_commands(root: Path) -> None:
    """One script per console entry point, for the image's interpreter."""
    folder = root / SCRIPTS
    folder.mkdir(parents=True)
    for distribution in distributions(path=[str(root / SITE)]):
        for entry in distribution.entry_points.select(group="console_scripts"):
            script = folder / entry.name
            script.write_text(
                f"#!/usr/bin/python{base.PYTHON}\nimport sys\n\n"
                f"from {entry.module} import {entry.attr}\n\nsys.exit({entry.attr}())\n"
            )
            script.chmod(0o755)


def _sources(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield str(path.relative_to(folder)).encode()
            yield path.read_bytes()


def _key(*chunks: bytes) -> str:
    """The content and whoever lays it out decide a layer's name."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + bytes([oci.FORMAT]))
    for chunk in chunks:
        digest.update(len(chunk).to_bytes(8, "big") + chunk)
    return digest.hexdigest()[:16]
