"""The steps of a release, in order; each raises `ClusterError` with what is wrong.

Boundary: the table of contents; licences are judged in `licences.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from e2e.chart import CHART, INSTALL_FILE, lint, package
from e2e.cluster.commands import run
from e2e.cluster.paths import cache_root, images_root
from e2e.cluster.progress import ClusterError, Progress
from e2e.images.build import MEMBERS, build
from e2e.images.members import contents, third_party_layer, uv
from e2e.release import licences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from e2e.images.members import Member

ROOT: Final = CHART.parents[1]
TARGET: Final = ROOT / "dist" / "release"
PACKAGES: Final = ("crds", "operator", "router", "sim")
CRD: Final = ROOT / "crds" / "inferencepools.pdpool.io.yaml"


def version() -> str:
    """The one version of packages, chart and changelog."""
    told = {
        folder: str(tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["version"])
        for folder in PACKAGES
    }
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    told |= {"chart": chart["version"], "appVersion": chart["appVersion"]}
    if len(set(told.values())) != 1:
        raise ClusterError(f"versions differ: {', '.join(f'{place} {text}' for place, text in told.items())}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if "## Unreleased" not in changelog and f"## {chart['version']}" not in changelog:
        raise ClusterError(f"CHANGELOG.md speaks neither of Unreleased nor of {chart['version']}")
    return str(chart["version"])


def packages() -> None:
    """Wheels of every member."""
    for folder in PACKAGES:
        run([uv(), "build", "--wheel", "--quiet", "--out-dir", TARGET, ROOT / folder], timeout_s=600)


def manifests() -> None:
    """The chart's archive, the plain manifest, the CRD alone."""
    lint()
    package(TARGET)
    for file in (INSTALL_FILE, CRD):
        shutil.copy(file, TARGET / file.name)


def images(progress: Progress) -> None:
    """Both images, built a second time from nothing but the base layer, and the same to the last bit."""
    first = build(MEMBERS, progress)
    with _elsewhere():
        second = build(MEMBERS, Progress("again"))
        for name, archive in first.items():
            if _sha256(archive) != _sha256(second[name]):
                raise ClusterError(f"image {name}: two builds of the same sources differ")
    for name, archive in first.items():
        shutil.copy(archive, TARGET / f"pdpool-{name}.oci.tar")


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Another cache for images, with the base layer (Debian's archive moves on) and the tools, and nothing else."""
    real, base = cache_root(), sorted(images_root().glob("layer-base-*.tar"))
    before = os.environ.get("PDPOOL_CACHE")
    with tempfile.TemporaryDirectory(prefix="release-", dir=real) as folder:
        (Path(folder) / "images").mkdir()
        (Path(folder) / "tools").symlink_to(real / "tools")
        for layer in base:
            (Path(folder) / "images" / layer.name).hardlink_to(layer)
        os.environ["PDPOOL_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("PDPOOL_CACHE")
            if before is not None:
                os.environ["PDPOOL_CACHE"] = before


def materials(progress: Progress) -> None:
    """What is in the images besides Debian: bills of materials, and licences that we may ship."""
    found: set[licences.Licensed] = set()
    for name, member in MEMBERS.items():
        (TARGET / f"pdpool-{name}.cdx.json").write_text(bill(member))
        found |= set(licences.of(third_party_layer(member, contents(member), progress).path))
    listed = sorted(found, key=lambda each: each.name.lower())
    (TARGET / "LICENCES.md").write_text(licences.table(listed))
    if refused := [f"{each.name} ({each.licence or 'not told'})" for each in listed if not each.allowed]:
        raise ClusterError(f"licences that we may not ship, or do not know: {', '.join(refused)}")


def bill(member: Member) -> str:
    """The bill of materials of an image (CycloneDX): what the lock file puts into it, and nothing of development.

    Raises `ClusterError` when none is made.
    """
    command = [uv(), "export", "--frozen", "--no-dev", "--all-extras", "--package", member.package]
    text = run([*command, "--format", "cyclonedx1.5"], folder=ROOT, timeout_s=600)
    if json.loads(text)["bomFormat"] != "CycloneDX":
        raise ClusterError(f"{member.package}: no bill of materials was made")
    return text


def checksums() -> list[Path]:
    """SHA256SUMS over everything; the files."""
    files = sorted(path for path in TARGET.iterdir() if path.is_file() and path.name != ".gitignore")
    (TARGET / "SHA256SUMS").write_text("".join(f"{_sha256(file)}  {file.name}\n" for file in files))
    return files


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a whole release in dist/release, and publish nothing."""
    argparse.ArgumentParser(prog="python -m e2e.release", description=main.__doc__).parse_args(arguments)
    progress = Progress("release")
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    try:
        number = version()
        with progress.step("packages"):
            packages()
        with progress.step("chart and manifests"):
            manifests()
        with progress.step("images, twice"):
            images(progress)
        with progress.step("bills of materials and licences"):
            materials(progress)
    except ClusterError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    for file in checksums():
        print(f"{file.stat().st_size:>12}  {file.relative_to(ROOT)}")
    print(f"pdpool {number}: complete; nothing was published")
    return 0


if __name__ == "__main__":
    sys.exit(main())
