"""What a release checks: one version, licences that we may ship. `make release` makes a whole one."""

from __future__ import annotations

import json
import subprocess
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest

from e2e.release import __main__ as release
from e2e.release import licences

if TYPE_CHECKING:
    from pathlib import Path

LOCK = release.ROOT / "uv.lock"


@pytest.mark.parametrize(
    ("metadata", "licence", "allowed"),
    [
        ("License-Expression: MIT", "MIT", True),
        ("License-Expression: Apache-2.0 AND MIT", "Apache-2.0 AND MIT", True),
        ("License-Expression: GPL-3.0-only OR BSD-3-Clause", "GPL-3.0-only OR BSD-3-Clause", True),
        ("License-Expression: MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only", False),
        ("License-Expression: Apache-2.0 AND CNRI-Python", "Apache-2.0 AND CNRI-Python", True),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", "Apache-2.0 WITH LLVM-exception", True),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD", True),
        ("Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0", True),
        ("License: MIT License", "MIT", True),
        ("License: permitted for everybody", "", False),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", "", False),
        ("Summary: says nothing", "", False),
    ],
)
def test_a_licence_is_read_from_metadata_and_judged(metadata: str, licence: str, *, allowed: bool) -> None:
    """An expression first, then classifiers, then words; what is not known may not be shipped."""
    found = licences.licensed(Parser().parsestr(f"Name: p\nVersion: 1\n{metadata}\n"))
    assert (found.name, found.version, found.licence) == ("p", "1", licence)
    assert found.allowed is allowed


@pytest.mark.parametrize(
    ("name", "holds"), [("operator", {"kopf", "pydantic", "structlog"}), ("router", {"uvloop", "msgspec", "pyzmq"})]
)
def test_a_bill_of_materials_names_what_an_image_holds(name: str, holds: set[str]) -> None:
    """Each package with the version that the lock file has, and none of the tools of development."""
    text = release.bill(release.MEMBERS[name])
    listed = {each["name"]: each for each in json.loads(text)["components"]}
    assert holds <= listed.keys()
    assert not {"pytest", "ruff", "sphinx", "matplotlib"} & listed.keys()
    locked = {each["name"]: each.get("version") for each in release.tomllib.loads(LOCK.read_text())["package"]}
    for package in holds:
        assert listed[package]["version"] == locked[package]


def test_checksums_are_of_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sha256sum --check` reads them."""
    monkeypatch.setattr(release, "TARGET", tmp_path)
    for name in ("b.tgz", "a.whl"):
        (tmp_path / name).write_text(name)
    assert [file.name for file in release.checksums()] == ["a.whl", "b.tgz"]
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 0


def test_every_part_is_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, chart and changelog agree; a difference names both places."""
    assert release.version() == "0.1.0"
    monkeypatch.setattr(release, "PACKAGES", ("crds",))
    monkeypatch.setattr(release.tomllib, "loads", lambda _: {"project": {"version": "9.9.9"}})
    with pytest.raises(release.ClusterError, match=r"crds 9\.9\.9, chart 0\.1\.0"):
        release.version()
