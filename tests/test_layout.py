"""The layout that keeps imports sound: folders named like standard modules stay plain folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["operator", "router", "crds", "sim"])
def test_workspace_folders_are_no_packages(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard module in every interpreter started in the root."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_test_folder_is_a_package() -> None:
    """A package `tests/operator` would shadow the standard module for every test."""
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_standard_operator_module_wins_in_the_root() -> None:
    """An interpreter started in the root still gets the standard library's `operator`."""
    code = "import operator; print(operator.add(1, 2))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


def test_pure_rooms_import_no_io() -> None:
    """The layer contract of `.importlinter` names every room that exists, so that a new one cannot slip past it."""
    rooms = {path.stem for path in (ROOT / "operator/src/pdpool_operator").iterdir() if path.stem[0] != "_"}
    contract = (ROOT / ".importlinter").read_text()
    unnamed = {room for room in rooms if room not in contract} - {"py", "settings", "telemetry", "serve"}
    assert not unnamed, f"rooms without a layer in .importlinter: {sorted(unnamed)}"


def test_git_ignores_no_source() -> None:
    """An ignore pattern that also fits a package (`build/`) would leave it out of every clone without a word."""
    sources = [
        str(path.relative_to(ROOT))
        for folder in ("crds", "operator", "router", "sim", "e2e", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    command = ["git", "check-ignore", "--stdin", "--no-index"]
    done = subprocess.run(command, cwd=ROOT, input="\n".join(sources), capture_output=True, text=True, check=False)
    assert not done.stdout.split()


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    """A group is told to xdist by its tests' ids: where pytest keeps the ids elsewhere, groups are scattered.

    Each worker then starts every control plane and every set of engines for itself, and nothing else tells.
    """
    by_groups = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@together") is by_groups
