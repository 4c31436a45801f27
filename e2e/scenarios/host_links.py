"""Fixed places on the node through which pods mount the engine: `/var/lib/pdpool/{python,packages,model,cache}`.

Boundary: makes and removes these links, nothing else. Where the engine's environment lies depends on who installed it;
through links at fixed places the committed sample is applied as it stands. Symbolic links, because they leave no mount
behind: kubelet and the container runtime resolve them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.engine import install, model

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path("/var/lib/pdpool")
NAMES = ("python", "packages", "model", "cache")


def targets() -> Mapping[str, Path]:
    """What each link points to: the interpreter's prefix, the engine's packages, the model, what engines write down."""
    venv = install.venv()
    places = (install.interpreter().parent.parent, install.site_packages(venv), model.folder(), venv.parent / "cache")
    return dict(zip(NAMES, places, strict=True))


def make(root: Path = ROOT) -> None:
    """Point the links at the present environment and model.

    Raises:
        FileExistsError: something that is not a link stands at one of the places; it is left alone.
    """
    root.mkdir(parents=True, exist_ok=True)
    places = targets()
    places["cache"].mkdir(exist_ok=True)
    for name, target in places.items():
        link = root / name
        if link.exists() and not link.is_symlink():
            raise FileExistsError(f"{link} is not a link that the demo made; move it away")
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def remove(root: Path = ROOT) -> None:
    """Remove the links, and their folder when nothing else lies in it."""
    for name in NAMES:
        link = root / name
        if link.is_symlink():
            link.unlink()
    with contextlib.suppress(OSError):
        root.rmdir()
