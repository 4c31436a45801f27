"""The admin port: metrics, liveness, readiness, and what the router knows.

Boundary: it reads; nothing here is on the path of a request, hence a library's server and exposition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from pdpool_api.names import ENGINE_ROLES, ROUTER_METRICS_PREFIX
from pdpool_router.edge.page import STATES, Page, described, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.telemetry import Histogram, Telemetry


class Metrics(Collector):
    """The router's counters as metric families, made at scrape time."""

    def __init__(self, telemetry: Telemetry, endpoints: Endpoints) -> None:
        self._telemetry = telemetry
        self._endpoints = endpoints

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        t = self._telemetry
        yield _counter(
            "requests",
            "Requests, by model and status.",
            ("model", "code"),
            {(m, str(c)): n for (m, c), n in t.requests.items()},
        )
        yield _counter(
            "retries",
            "Legs sent again, by what was tried again.",
            ("leg",),
            {(leg,): n for leg, n in t.retries.items()},
        )
        yield _counter(
            "local_prefill",
            "Prompts computed by decode although two legs could have served them.",
            ("reason",),
            {(reason,): n for reason, n in t.local_prefills.items()},
        )
        yield _counter(
            "truncated_streams", "Streams that broke after a byte was forwarded.", (), {(): t.truncated_streams}
        )
        yield _counter(
            "orphaned_prefills", "Prefill answers whose KV no decode engine pulled.", (), {(): t.orphaned_prefills}
        )
        yield _counter(
            "tokens",
            "Tokens, by kind.",
            ("kind",),
            {("prompt",): t.prompt_tokens, ("completion",): t.completion_tokens, ("cached",): t.cached_tokens},
        )
        yield _histogram("ttft_seconds", "Arrival of a request to the first byte of its answer's body.", t.ttft)
        yield _histogram("itl_seconds", "Gap between two reads of a stream.", t.itl)
        yield _histogram("e2e_seconds", "Arrival of a request to the end of its answer.", t.e2e)
        yield _histogram("overhead_seconds", "The router's own part of the time to the first byte.", t.overhead)
        yield _histogram("handoff_seconds", "The prefill leg.", t.handoff)
        yield self._queued()
        yield self._inflight()
        yield self._states()

    def _queued(self) -> Metric:
        family = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}queued",
            "Requests that wait for room, or for the pool to wake, by model.",
            labels=("model",),
        )
        for model, count in self._telemetry.queued.items():
            family.add_metric((model,), count)
        return family

    def _inflight(self) -> Metric:
        family = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}inflight", "Requests in flight, by endpoint.", labels=("endpoint", "role")
        )
        # An endpoint that is gone has no series, whatever still runs there: its successor may have its name.
        for endpoint in self._endpoints.all():
            family.add_metric(
                (endpoint.name, endpoint.role.value), self._endpoints.inflight.requests.get(endpoint.uid, 0)
            )
        return family

    def _states(self) -> Metric:
        family = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}endpoints", "Endpoints, by role and state.", labels=("role", "state")
        )
        known = [(endpoint.role, state_of(endpoint, self._endpoints)) for endpoint in self._endpoints.all()]
        for role in ENGINE_ROLES:
            for state in STATES:
                family.add_metric((role.value, state), known.count((role, state)))
        return family


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(f"{ROUTER_METRICS_PREFIX}{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    for bound_s, count in zip(histogram.bounds_s, histogram.counts, strict=False):
        cumulative += count
        buckets.append((str(bound_s), cumulative))
    buckets.append(("+Inf", cumulative + histogram.counts[-1]))
    return HistogramMetricFamily(f"{ROUTER_METRICS_PREFIX}{name}", text, buckets=buckets, sum_value=histogram.sum_s)


class Admin:
    """The admin port's server."""

    def __init__(self, telemetry: Telemetry, endpoints: Endpoints, page: Page, *, ready: Callable[[], str]) -> None:
        """`ready` tells why the router is not ready; empty: it is."""
        self._endpoints = endpoints
        self._page = page
        self._ready = ready
        self._registry = CollectorRegistry()
        self._registry.register(Metrics(telemetry, endpoints))
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> int:
        """Opens the port; the number that was opened (`port` 0: any)."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/debug/snapshot", self._snapshot),
                *self._page.routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        number: int = self._runner.addresses[0][1]
        return number

    async def close(self) -> None:
        """Closes the port."""
        self._page.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _livez(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        reason = self._ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _snapshot(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(
            {
                "listed": self._endpoints.listed,
                "endpoints": [described(each, self._endpoints) for each in self._endpoints.all()],
            }
        )
