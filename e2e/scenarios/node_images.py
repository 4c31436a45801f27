"""The product's images brought into the demo's own node, and only what has changed.

Boundary: between the image tool, which knows contents, and the cluster tool, which knows the node. An image keeps its
name when its content changes, so what was imported is noted beside the cluster; the note goes with the cluster.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from e2e.cluster import Cluster, Progress
from e2e.images.build import MEMBERS, build, image_name

if TYPE_CHECKING:
    from collections.abc import Callable


def load_images(cluster: Cluster, say: Callable[[str], None] | None = None) -> list[str]:
    """Build the images of operator and router where needed and import those that are new.

    Returns:
        The names of the images that were imported.
    """
    note = cluster.layout.folder / "imported.json"
    imported: dict[str, str] = json.loads(note.read_text()) if note.exists() else {}
    present = set(cluster.images())
    fresh: list[str] = []
    for name, archive in build(MEMBERS, Progress("images")).items():
        image = image_name(name)
        if image in present and imported.get(image) == archive.name:
            continue
        if say is not None:
            say(f"import {image}")
        cluster.import_image(archive)
        imported[image] = archive.name
        note.write_text(json.dumps(imported))
        fresh.append(image)
    return fresh
