"""The command line of the image builder; see `python -m e2e.images --help`.

Boundary: arguments in, archive paths on stdout; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from e2e.cluster.progress import ClusterError, Progress
from e2e.images.build import NAMES, build, image_name

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.images", description="Images of pdpool without a registry or a daemon."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("build", help="write OCI archives to the cache and print image names and paths")
    one.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; all by default")
    chosen = parser.parse_args(arguments)
    try:
        archives = build(chosen.names or NAMES, Progress("images"))
    except ClusterError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    for name, path in archives.items():
        print(f"{image_name(name)}\t{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
