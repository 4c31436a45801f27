"""What a person may choose about a demo, from flags or the environment.

Boundary: parsing and defaults. With a kubeconfig the demo builds no cluster, engine or image; it says what it takes for
granted.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from e2e.cluster import DEFAULT_NODE_NAME, load
from e2e.scenarios.product import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLE = REPOSITORY / "manifests" / "samples" / "tiny-cpu.yaml"


@dataclass(frozen=True)
class Options:
    """One run of the demo."""

    command: Literal["up", "down"]
    kubeconfig: Path | None
    """Of a cluster that exists; None: the demo makes its own."""
    sample: Path
    namespace: str
    operator_image: str
    router_image: str
    engine_image: str
    ready_timeout_s: float

    @property
    def own_cluster(self) -> bool:
        """Whether the cluster is the demo's."""
        return self.kubeconfig is None


def parsed(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description="pdpool from nothing to a streamed answer.")
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG"),
        help="use this cluster (default: $KUBECONFIG, else make one)",
    )
    parser.add_argument(
        "--sample", type=Path, default=os.environ.get("PDPOOL_SAMPLE", SAMPLE), help="the pool ($PDPOOL_SAMPLE)"
    )
    parser.add_argument(
        "--namespace", default=os.environ.get("PDPOOL_NAMESPACE", "default"), help="of the pool ($PDPOOL_NAMESPACE)"
    )
    for part in ("operator", "router", "engine"):
        variable = f"PDPOOL_{part.upper()}_IMAGE"
        parser.add_argument(
            f"--{part}-image", default=os.environ.get(variable, ""), help=f"with a kubeconfig only (${variable})"
        )
    parser.add_argument(
        "--ready-timeout", type=float, default=900.0, metavar="SECONDS", help="for the pool to become ready"
    )
    chosen = parser.parse_args(arguments)
    return Options(
        command=chosen.command,
        kubeconfig=_foreign(chosen.kubeconfig),
        sample=Path(chosen.sample),
        namespace=chosen.namespace,
        operator_image=chosen.operator_image,
        router_image=chosen.router_image,
        engine_image=chosen.engine_image,
        ready_timeout_s=chosen.ready_timeout,
    )


def _foreign(kubeconfig: str | None) -> Path | None:
    """The kubeconfig of somebody else's cluster; None where none is given, or where it is the demo's own."""
    if not kubeconfig:
        return None
    # Whoever follows the demo's advice has the demo's own kubeconfig in the environment when the demo is taken down.
    path = Path(kubeconfig.split(os.pathsep)[0]).expanduser().resolve()
    own = load(DEFAULT_NODE_NAME)
    return None if own is not None and path == own.kubeconfig.resolve() else path
