"""`python -m e2e.engine install | model | mounts | up | down`: the real engine as a tool."""

from __future__ import annotations

import argparse
import sys
import time

from e2e.cluster.progress import Progress
from e2e.engine import install, model, real


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.engine", description="Real vLLM with NIXL on the CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="make the virtual environment (vLLM, NIXL) if it is not there; prints its path")
    commands.add_parser("model", help="make the tiny model if it is not there; prints its path")
    commands.add_parser("mounts", help="print the folders that a pod must mount to run the engine")
    up = commands.add_parser("up", help="run prefill and decode servers on loopback until Ctrl-C; prints their URLs")
    up.add_argument("--pairs", type=int, default=1, choices=[1, 2])
    up.add_argument("--lease-seconds", type=int, default=12)
    return parser


def _up(pairs: int, lease_s: int) -> None:
    with real.running(pairs, lease_s=lease_s) as engines:
        for engine in engines.engines:
            print(f"{engine.role} {engine.url}", flush=True)
        while True:
            ended = [engine for engine in engines.engines if not engine.is_running]
            if ended:
                raise install.InstallError(f"engine {ended[0].role} ended; its log is {ended[0].log}")
            time.sleep(1)


def main() -> int:
    """Run one command; the answer goes to stdout, progress to stderr."""
    arguments = _parser().parse_args()
    progress = Progress("engine")
    try:
        if arguments.command == "install":
            print(install.install(progress))
        elif arguments.command == "model":
            install.install(progress)
            print(model.make(progress))
        elif arguments.command == "mounts":
            print(*install.host_mounts(), sep="\n")
        elif arguments.command == "up":
            _up(arguments.pairs, arguments.lease_seconds)
    except KeyboardInterrupt:
        return 130
    except install.InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
