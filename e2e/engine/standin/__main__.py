"""`python -m e2e.engine.standin serve MODEL …`: the stand-in as a process, with vLLM's command line.

Boundary: wiring, signals and the exit status. `$PDPOOL_STANDIN` holds what is not vLLM's (`script.Settings` as JSON).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec
import uvloop

from e2e.engine.standin.cli import config_from
from e2e.engine.standin.script import Settings
from e2e.engine.standin.standin import Standin

if TYPE_CHECKING:
    from e2e.engine.standin.config import EngineConfig


async def serve(config: EngineConfig, settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT (drain, then 0; a second one ends at once) or the engine's death (1)."""
    standin = Standin(config=config, settings=settings)
    signals = 0
    draining: asyncio.Task[None] | None = None

    def on_signal() -> None:
        nonlocal signals, draining
        signals += 1
        draining = asyncio.ensure_future(standin.drain() if signals == 1 else standin.stop())

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await standin.start()
    print(
        f"stand-in engine (not vLLM) for {config.served_names[0]} on {config.host}:{standin.port or 'later'}",
        flush=True,
    )
    await standin.ended.wait()
    return 1 if standin.engine.dead else 0


def main() -> int:
    """Parse, then serve."""
    if sys.argv[1:2] != ["serve"]:
        print("usage: python -m e2e.engine.standin serve MODEL [vllm's flags]", file=sys.stderr)
        return 2
    config = config_from(sys.argv[2:], os.environ)
    settings = msgspec.json.decode(os.environ.get("PDPOOL_STANDIN", "{}"), type=Settings)
    return uvloop.run(serve(config, settings))


if __name__ == "__main__":
    sys.exit(main())
