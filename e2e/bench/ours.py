"""Our router as it is measured: this checkout, on the interpreter that its image has.

Boundary: an environment of its own, as each peer has one; starting and measuring it is `router`'s business. The image
carries Debian's Python, which is built with profile-guided optimisation; a developer's own build often is not, and
would measure something that nobody runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from e2e.bench.peers import PeerError
from e2e.cluster.paths import cache_root
from e2e.engine.install import uv

SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
INSTALL_TIMEOUT_S: Final = 300
_REPOSITORY: Final = Path(__file__).parents[2]


def interpreter() -> Path:
    """The system's Python where it can run the router, else the one that runs this."""
    if SYSTEM_PYTHON.exists():
        asked = [str(SYSTEM_PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return SYSTEM_PYTHON
    return Path(sys.executable)


def program() -> Path:
    """The router's program, in an environment that is brought up to date with this checkout.

    Raises:
        PeerError: the installer failed.
    """
    python = interpreter()
    key = hashlib.sha256(f"{_REPOSITORY} {python.resolve()}".encode()).hexdigest()[:12]
    environment = cache_root() / "bench" / f"ours-{key}"
    command = [str(uv()), "sync", "--quiet", "--frozen", "--no-dev", "--package", "pdpool-router"]
    done = subprocess.run(
        [*command, "--python", str(python), "--compile-bytecode"],
        cwd=_REPOSITORY,
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise PeerError(f"our own environment was not made: {done.stderr.strip()[-800:]}")
    return environment / "bin" / "pdpool-router"


def described(program_: Path) -> str:
    """The interpreter of an environment, for the account of a run."""
    tell = "import platform as p, sys; print(p.python_implementation(), p.python_version(), p.python_compiler())"
    python = program_.with_name("python")
    said = subprocess.run([str(python), "-c", tell], capture_output=True, text=True, check=True).stdout.strip()
    return f"{said} ({python.resolve()})"
