"""One builder at a time in the image cache, and scratch folders that no kill leaves for good.

Boundary: the cache's folder for images; what is built there is the other modules' business.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.lock import held
from e2e.cluster.paths import images_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.progress import Progress

SCRATCH_PREFIX: Final = ".scratch-"
WAIT_S: Final = 1200.0


@contextmanager
def builder(progress: Progress) -> Iterator[None]:
    """Hold the image cache; waits for another builder and clears what a killed one left."""
    with held(images_root() / "lock", wait_s=WAIT_S, waiting=progress.say):
        for left in images_root().glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(left)
        yield


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the cache that goes at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=images_root()) as folder:
        yield Path(folder)
