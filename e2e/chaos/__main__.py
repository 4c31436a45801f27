"""`make chaos-operator`: a seeded story of edits, kills and losses on a real cluster, and what held through it.

Boundary: the command line and the table. Bounded by MINUTES; everything that was started ends with this process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.chaos import ground
from e2e.chaos.recorder import LostError
from e2e.chaos.run import Plan, play, table
from e2e.chaos.story import Kind
from e2e.cluster.progress import ClusterError, Progress
from e2e.scenarios.api import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

SIGNALLED: Final = 128
_NODE_NOTICED_S: Final = 75.0
"""A node controller believes in a node for 50 s."""
_NODE_CALM_S: Final = 600.0
"""Fifteen pods that start on one busy machine, some of them again."""
_NODE_STILL_S: Final = 25.0
"""Routers that run are read every 20 s, and what they say is a condition."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Chaos for the operator (environment: MINUTES=30, SEED=, GROUND=node|control-plane)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.chaos", description=main.__doc__)
    parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(SIGNALLED + signum))
    minutes = float(os.environ.get("MINUTES") or 30)
    seed = int(os.environ.get("SEED") or secrets.randbelow(10**6))
    is_node = (os.environ.get("GROUND") or ("node" if os.geteuid() == 0 else "control-plane")) == "node"
    say = Progress("chaos").say
    say(f"seed {seed}")
    plan = Plan(seed, minutes, always=_ALWAYS)
    if is_node:
        plan = replace(plan, node_s=_NODE_NOTICED_S, calm_s=_NODE_CALM_S, still_s=_NODE_STILL_S)
    logs = Path(tempfile.mkdtemp(prefix="pdpool-chaos-"))
    began_s = time.monotonic()
    try:
        with ground.real_node() if is_node else ground.control_plane() as place:
            report = play(place, plan, logs, say, [ground.router_flag()] if is_node else [])
    except (ApiError, ClusterError, LostError) as fault:
        print(f"error: {fault}\nlogs: {logs}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    print(table(report, (time.monotonic() - began_s) / 60))
    print(f"\nlogs: {logs}\nagain: SEED={seed} make chaos-operator")
    return 1 if report.findings else 0


_ALWAYS: Final = ((Kind.KILL_LEADER, Kind.NODE), (Kind.API, Kind.KILL), (Kind.STOP_LEADER, Kind.MODE))
"""What each of three rounds has at least."""

if __name__ == "__main__":
    sys.exit(main())
