"""Logs and metrics of the operator.

Boundary: formats and counts; decides nothing. One format for our own records and those of libraries.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pdpool_api.names import OPERATOR_METRICS_PREFIX

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS: Final = Histogram(
    f"{OPERATOR_METRICS_PREFIX}reconcile_seconds",
    "Duration of one reconcile of one pool, in seconds.",
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
RECONCILE_ERRORS: Final = Counter(
    f"{OPERATOR_METRICS_PREFIX}reconcile_errors",
    "Reconciles that did not do all they planned.",
    registry=REGISTRY,
)
CHILD_WRITES: Final = Counter(
    f"{OPERATOR_METRICS_PREFIX}child_writes", "Applies and deletes of children.", registry=REGISTRY
)
WATCH_RESTARTS: Final = Counter(
    f"{OPERATOR_METRICS_PREFIX}watch_restarts",
    "Ends of the event loop that were followed by a new one.",
    registry=REGISTRY,
)
LEADING: Final = Gauge(f"{OPERATOR_METRICS_PREFIX}leading", "1 while this replica acts.", registry=REGISTRY)
POOLS: Final = Gauge(f"{OPERATOR_METRICS_PREFIX}pools", "Pools known.", registry=REGISTRY)


def configure_logs(level: str, form: str) -> None:
    """Sends every record to standard error, as JSON lines or for a person."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    if form != "json":
        shared.pop()  # the console renderer lays out tracebacks itself
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line per event of every object otherwise.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    for noisy in ("kopf._core", "kopf._cogs", "kopf.activities", "kubernetes", "asyncio", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It warns that it leaves signals alone, which is why it runs in a thread.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
