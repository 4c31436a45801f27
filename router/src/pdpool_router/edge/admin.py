"""The admin port: metrics, liveness, readiness, and what the router knows.

Boundary: it reads; nothing here is on the path of a request, hence a library's server and exposition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from pdpool_api.names import ENGINE_ROLES, ROUTER_METRICS_PREFIX
from pdpool_router.edge.page import STATES, Page, described, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdpool_router.edge.explain import Explainer
    from pdpool_router.feeds.kv_events import KvEvents
    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.telemetry import Histogram, Telemetry

_MAX_ASKED_BYTES: Final = 33_554_432


class Metrics(Collector):
    """The router's counters as metric families, made at scrape time."""

    def __init__(self, telemetry: Telemetry, endpoints: Endpoints, kv_events: KvEvents) -> None:
        self._telemetry = telemetry
        self._endpoints = endpoints
        self._kv_events = kv_events

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
        yield from self._unstarted()
        yield self._states()
        yield self._stale()
        yield from self._prefixes()

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

    def _unstarted(self) -> Iterable[Metric]:
        legs = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}unstarted",
            "Requests that an endpoint has not begun to answer, by endpoint.",
            labels=("endpoint", "role"),
        )
        tokens = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}unstarted_prompt_tokens",
            "Their prompt tokens that are still to be computed, as estimated, by endpoint.",
            labels=("endpoint", "role"),
        )
        for endpoint in self._endpoints.all():
            load = self._endpoints.loads.loads.get(endpoint.uid)
            labels = (endpoint.name, endpoint.role.value)
            legs.add_metric(labels, load.unstarted if load is not None else 0)
            tokens.add_metric(labels, load.unstarted_tokens if load is not None else 0)
        yield legs
        yield tokens

    def _prefixes(self) -> Iterable[Metric]:
        t, known = self._telemetry, self._endpoints.prefixes
        for name, text, value in (
            ("prefix_query_tokens", "Prompt tokens that were looked up.", t.prefix_query_tokens),
            ("prefix_hit_tokens", "Those that the chosen endpoint was believed to hold.", t.prefix_hit_tokens),
            ("predicted_cached_tokens", "Predicted, where the engine told the truth.", t.predicted_cached_tokens),
            ("actual_cached_tokens", "What engines told of those.", t.actual_cached_tokens),
            ("kv_event_gaps", "Times that KV events were missed.", t.kv_event_gaps),
            (
                "kv_index_evictions",
                "Blocks forgotten because of the bound.",
                known.blocks.evictions + known.guesses.evictions,
            ),
        ):
            yield _counter(name, text, (), {(): value})
        yield _histogram(
            "prediction_error_seconds", "Predicted against real time of a prefill, without sign.", t.prediction_error
        )
        blocks = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}kv_index_blocks",
            "Blocks that an endpoint is believed to hold; where that is guessed, pieces of text.",
            labels=("endpoint",),
        )
        for endpoint in self._endpoints.all():
            blocks.add_metric((endpoint.name,), known.blocks_of(endpoint.uid))
        yield blocks
        yield GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}kv_events_missing",
            "Endpoints whose KV events should come and do not.",
            value=len(self._kv_events.missing()),
        )
        yield GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}index_approximate",
            "1 while what some endpoint holds is guessed from what was sent there.",
            value=float(bool(known.guessed)),
        )

    def _states(self) -> Metric:
        family = GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}endpoints", "Endpoints, by role and state.", labels=("role", "state")
        )
        known = [(endpoint.role, state_of(endpoint, self._endpoints)) for endpoint in self._endpoints.all()]
        for role in ENGINE_ROLES:
            for state in STATES:
                family.add_metric((role.value, state), known.count((role, state)))
        return family

    def _stale(self) -> Metric:
        loads = self._endpoints.loads.loads
        known = [load for each in self._endpoints.all() if (load := loads.get(each.uid)) is not None and load.reported]
        return GaugeMetricFamily(
            f"{ROUTER_METRICS_PREFIX}stale_endpoints",
            "Endpoints whose engine metrics are old or unknown.",
            value=len(self._endpoints.all()) - len(known),
        )


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

    def __init__(
        self,
        telemetry: Telemetry,
        endpoints: Endpoints,
        page: Page,
        *,
        ready: Callable[[], str],
        kv_events: KvEvents,
        explain: Explainer,
    ) -> None:
        """`ready` tells why the router is not ready; empty: it is."""
        self._endpoints = endpoints
        self._page = page
        self._ready = ready
        self._kv_events = kv_events
        self._explainer = explain
        self._registry = CollectorRegistry()
        self._registry.register(Metrics(telemetry, endpoints, kv_events))
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> int:
        """Opens the port; the number that was opened (`port` 0: any)."""
        app = web.Application(client_max_size=_MAX_ASKED_BYTES)
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/debug/snapshot", self._snapshot),
                *self._page.routes(),
                web.post("/debug/decide", self._decide),
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

    async def _decide(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(self._explainer.explain(await request.read(), request.query.get("route", "")))
        except ValueError as fault:
            return web.json_response({"error": str(fault)}, status=400)

    async def _snapshot(self, request: web.Request) -> web.Response:
        del request
        known = self._endpoints.prefixes
        missing = {endpoint.uid for endpoint in self._kv_events.missing()}
        return web.json_response(
            {
                "listed": self._endpoints.listed,
                "index": {
                    "blocks": known.blocks.size,
                    "maxBlocks": known.blocks.max_blocks,
                    "blockTokens": known.block_sizes,
                    "texts": known.texts,
                    "bytesPerToken": round(known.bytes_per_token, 3),
                },
                "endpoints": [
                    {**described(each, self._endpoints), "eventsMissing": each.uid in missing}
                    for each in self._endpoints.all()
                ],
            }
        )
