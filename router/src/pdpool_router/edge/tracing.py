"""OpenTelemetry: a span for each sampled request, with spans for the choice, the legs, the transfer and the answer.

Boundary: spans are made when a request has ended, from its trail; only the one of the whole request is begun with it,
because engines get its id as their parent. Names and times only: no content, no header, no address of a client. It
needs the extra `tracing`, and is imported only where the environment names a collector.

    POST /v1/chat/completions      server span; parent from the client's `traceparent`
    ├── choice                     until the first leg is sent: the wait in line included
    ├── prefill                    each prefill leg
    ├── transfer                   decode asked to first byte: the pull of KV and the first token
    └── decode                     first byte to the end
"""

from __future__ import annotations

import os
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final, cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.trail import Leg, Trail

DEFAULT_SHARE: Final = 0.01
"""Of requests whose client has not decided; OTEL_TRACES_SAMPLER and its argument say otherwise."""
_SERVER_ERROR: Final = 500
_CONTEXT_HEADERS: Final = ("traceparent", "tracestate")


class Tracer:
    """Begins and ends the spans of requests."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        """Spans go to `exporter` (None: as the environment says) in batches, from a thread of their own."""
        self._provider = _provider()
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("pdpool_router")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, exchange: Exchange) -> Span | None:
        """Begins the span of a request, the parent of what engines trace; None: it is not sampled."""
        headers = exchange.headers
        told = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _CONTEXT_HEADERS}
        parent = self._propagator.extract({name: value for name, value in told.items() if value})
        start_ns = _ns(exchange.arrived_s)
        span = self._tracer.start_span(_name(exchange), parent, SpanKind.SERVER, start_time=start_ns)
        passed: dict[str, str] = {}
        self._propagator.inject(passed, set_span_in_context(span))
        headers.update({name.encode(): value.encode("latin-1") for name, value in passed.items()})
        return cast("Span", span) if span.is_recording() else None

    def end(self, exchange: Exchange, span: Span, now_s: float) -> None:
        """Ends the span of a request, and makes those of its steps."""
        span.set_attributes(
            {
                "http.request.method": exchange.method.decode("latin-1"),
                "http.route": exchange.route,
                "http.response.status_code": exchange.status,
                "gen_ai.request.model": exchange.model,
                "pdpool.request_id": exchange.engine_id.decode("ascii"),
                "pdpool.prefill": str(exchange.prefill),
            }
        )
        if exchange.status >= _SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        if exchange.trail is not None and exchange.trail.legs:
            self._steps(exchange.trail, set_span_in_context(span), exchange.arrived_s, now_s)
            span.set_attributes({f"pdpool.{name}": count for name, count in exchange.trail.tokens().items()})
        span.end(_ns(now_s))

    def close(self) -> None:
        """Sends what is held, within the exporter's own time limits."""
        self._provider.shutdown()

    def _steps(self, trail: Trail, within: Context, arrived_s: float, now_s: float) -> None:
        choice = self._tracer.start_span("choice", within, start_time=_ns(arrived_s))
        choice.end(_ns(trail.legs[0].sent_s))
        for leg in trail.legs:
            end_s = leg.ended_s or now_s
            if leg.kind == "prefill":
                self._step("prefill", within, leg, leg.sent_s, end_s)
            elif leg is trail.legs[-1] and trail.first_byte_s:
                self._step("transfer", within, leg, leg.sent_s, trail.first_byte_s, fault="")
                self._step("decode", within, leg, trail.first_byte_s, end_s)
            else:
                self._step("transfer", within, leg, leg.sent_s, end_s)

    def _step(
        self, name: str, within: Context, leg: Leg, start_s: float, end_s: float, *, fault: str | None = None
    ) -> None:
        attributes = {"pdpool.endpoint": leg.endpoint}
        span = self._tracer.start_span(name, within, SpanKind.CLIENT, attributes, start_time=_ns(start_s))
        why = leg.fault if fault is None else fault
        if why:
            span.set_status(Status(StatusCode.ERROR, why))
        span.end(_ns(end_s))


def _name(exchange: Exchange) -> str:
    return f"{exchange.method.decode('latin-1')} {exchange.route}"


def _provider() -> TracerProvider:
    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or "pdpool-router"})
    if os.environ.get("OTEL_TRACES_SAMPLER"):
        return TracerProvider(resource=resource)  # the library reads the variable
    return TracerProvider(resource=resource, sampler=ParentBasedTraceIdRatio(DEFAULT_SHARE))


def _ns(at_s: float) -> int:
    """A reading of `monotonic()` as the time of day, in ns since the epoch."""
    return time_ns() - int((monotonic() - at_s) * 1e9)
