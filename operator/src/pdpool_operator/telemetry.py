"""Logs and metrics of the operator.

Boundary: formats and counts; decides nothing. One format for our own records and those of libraries.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pdpool_api.names import OPERATOR_METRICS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.core import Metric

    from pdpool_api.names import Role
    from pdpool_operator.records import PoolRef
    from pdpool_operator.sizes import Sizes

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
TICK_SECONDS: Final = Histogram(
    f"{OPERATOR_METRICS_PREFIX}tick_seconds",
    "Duration of one decision about the sizes of one pool, readings aside, in seconds.",
    registry=REGISTRY,
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25),
)
POOLS: Final = Gauge(f"{OPERATOR_METRICS_PREFIX}pools", "Pools known.", registry=REGISTRY)


class _OfPools(Collector):
    """What holds of single pools, read at scrape time; a pool that is gone has no series."""

    def __init__(self) -> None:
        self.desired: dict[PoolRef, Mapping[Role, int]] = {}
        self.sizes: dict[PoolRef, Sizes] = {}

    def collect(self) -> Iterable[Metric]:
        """Three families."""
        of_role = ("namespace", "pool", "role")
        desired = GaugeMetricFamily(
            f"{OPERATOR_METRICS_PREFIX}desired_replicas", "Replicas that should run.", labels=of_role
        )
        active = GaugeMetricFamily(
            f"{OPERATOR_METRICS_PREFIX}scaling_active",
            "1 while an autoscaled role has a known signal, 0 while it has none and holds its size.",
            labels=of_role,
        )
        demand = GaugeMetricFamily(
            f"{OPERATOR_METRICS_PREFIX}demand",
            "Replicas that a signal asks for, not rounded: total / target. An unknown signal has no series.",
            labels=(*of_role, "signal"),
        )
        for ref, replicas in self.desired.items():
            for role, count in replicas.items():
                desired.add_metric((ref.namespace, ref.name, role.value), count)
        for ref, sizes in self.sizes.items():
            for role, each in sizes.items():
                labels = (ref.namespace, ref.name, role.value)
                active.add_metric(labels, 0 if each.unknown else 1)
                for signal, needed in each.demands.items():
                    demand.add_metric((*labels, signal), needed)
        return desired, active, demand


_OF_POOLS: Final = _OfPools()
REGISTRY.register(_OF_POOLS)


def tell_desired(ref: PoolRef, replicas: Mapping[Role, int]) -> None:
    """Shows the sizes that a reconcile worked towards."""
    _OF_POOLS.desired[ref] = replicas


def tell_sizes(ref: PoolRef, sizes: Sizes) -> None:
    """Shows what a tick said of a pool."""
    _OF_POOLS.sizes[ref] = sizes


def forget(ref: PoolRef) -> None:
    """Takes the series of a pool away."""
    _OF_POOLS.desired.pop(ref, None)
    _OF_POOLS.sizes.pop(ref, None)


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
