"""`pdpool-router`: the command.

Boundary: arguments, logging, signals and the exit code; the router itself is `assembly.Router`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from pdpool_api.router_config import ConfigError
from pdpool_router.assembly import Router
from pdpool_router.config import Settings, settings, watch
from pdpool_router.edge.access_log import AccessLog

if TYPE_CHECKING:
    from pdpool_router.edge.tracing import Tracer

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
EXIT_USAGE: Final = 2
_COLLECTOR_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
YOUNG_OBJECTS: Final = 10_000
"""So many more objects than at the last collection start one."""


def main() -> None:
    """Runs the router until SIGTERM or SIGINT."""
    try:
        chosen = settings()
    except ConfigError as fault:
        sys.stderr.write(f"pdpool-router: {fault}\n")
        raise SystemExit(EXIT_USAGE) from fault
    _log_to_stderr(chosen)
    _allow_connections()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(chosen))


async def _serve(chosen: Settings) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    now = asyncio.Event()

    def stop() -> None:
        # The second signal does not wait for streams.
        (now if ended.is_set() else ended).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        router = Router(chosen.config, access_log=_access_log(chosen.access_log), tracer=_tracer())
    except ConfigError as fault:
        sys.stderr.write(f"pdpool-router: {fault}\n")
        raise SystemExit(EXIT_USAGE) from fault
    try:
        await router.start(chosen.host, chosen.port, chosen.admin_port)
    except OSError as fault:
        raise SystemExit(f"pdpool-router: {fault}") from fault
    # What was loaded by now lives as long as the process: the collector need not walk it again under load.
    gc.collect()
    gc.freeze()
    # Requests in hand are no garbage: a few dozen of them must not start a collection again and again.
    gc.set_threshold(YOUNG_OBJECTS)
    watching = None
    if chosen.file is not None:
        watching = loop.create_task(watch(chosen.file, chosen.config, router.configure))
    try:
        await ended.wait()
        drained = loop.create_task(router.drain())
        hurried = loop.create_task(now.wait())
        await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        hurried.cancel()
    finally:
        if watching is not None:
            watching.cancel()
        await router.close()


def _access_log(share: float) -> AccessLog | None:
    return AccessLog(share, chance=random.random) if share else None


def _tracer() -> Tracer | None:
    """What traces requests; None where the environment names no collector, or what it takes is not installed."""
    if not any(os.environ.get(name) for name in _COLLECTOR_VARIABLES):
        return None
    try:
        from pdpool_router.edge.tracing import Tracer  # noqa: PLC0415 - an extra, and half a second of imports
    except ImportError:
        structlog.get_logger("pdpool_router").warning("no traces: pdpool-router[tracing] is not installed")
        return None
    return Tracer()


def _allow_connections() -> None:
    """Raises the soft limit of open files to the hard one: each request holds two, and 1024 is a common default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_to_stderr(chosen: Settings) -> None:
    renderer = (
        structlog.processors.JSONRenderer()
        if chosen.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[chosen.log_level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    main()
