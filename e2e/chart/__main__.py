"""`python -m e2e.chart [--check]`: the plain install manifest, which is the chart rendered with its defaults.

Boundary: writes `manifests/install.yaml`, or says that it differs. What the chart itself takes from the code (the CRD,
the rules) is `pdpool_operator.install`'s to write, and is written before.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

import yaml

from e2e.chart.helm import INSTALL_FILE, NAMESPACE, render
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER: Final = """\
# The chart charts/pdpool with its defaults: `make generate` renders it. Do not edit; images are changed with kustomize.
"""


def manifest() -> str:
    """The whole file: the namespace, which no chart makes, and the chart."""
    labels = {"app.kubernetes.io/part-of": "pdpool", "pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    # What keeps a CRD when helm uninstalls means nothing to kubectl.
    return _HEADER + yaml.safe_dump(namespace, sort_keys=False) + render(values={"crds.keep": False})


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifest, or (`--check`) say whether it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m e2e.chart", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")
    given = parser.parse_args(arguments)
    try:
        text = manifest()
    except ClusterError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    if not given.check:
        INSTALL_FILE.write_text(text, encoding="utf-8")
        return 0
    if INSTALL_FILE.exists() and INSTALL_FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{INSTALL_FILE.name} differs from the chart: run `make generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
