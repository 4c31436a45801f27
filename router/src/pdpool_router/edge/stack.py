"""What holds for every request whatever its route, in the order in which it happens.

Boundary: ids, counting and the last resort; a route's own work is in `openai`. It is the `Application` of the port:

1. `rescue`: whatever goes wrong within becomes an answer, so that no request is left without one;
2. `trace`: before anything is counted or logged, the request gets its ids, and its span where it is traced;
3. the route;
4. `measure`: every end of a request is counted, refusals and departures included, and told to log and trace.

Why no chain of wrapped coroutines: each layer would cost a task's frame on every request; these are two calls.
"""

from __future__ import annotations

import itertools
import re
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from pdpool_api.names import HEADER_REQUEST_ID
from pdpool_router.trail import Trail

if TYPE_CHECKING:
    from pdpool_router.edge.access_log import AccessLog
    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.edge.tracing import Tracer
    from pdpool_router.faults import Fault
    from pdpool_router.telemetry import Telemetry

_OK: Final = 200
_MAX_CLIENT_ID: Final = 128
_ODD: Final = re.compile(rb"[^\x21-\x7e]")
_REQUEST_ID: Final = HEADER_REQUEST_ID.encode()


class Routes(Protocol):
    """What serves a request by its route."""

    def screen(self, exchange: Exchange) -> Fault | None:
        """See `Application`."""

    def dispatch(self, exchange: Exchange) -> None:
        """Begins to serve; `Exchange.end` follows, unless it raises.

        Raises:
            Fault: becomes the answer.
        """

    def ended(self, exchange: Exchange) -> None:
        """Gives back what the route took for the request."""


class Stack:
    """The application of the API port."""

    def __init__(
        self, routes: Routes, telemetry: Telemetry, *, access_log: AccessLog | None = None, tracer: Tracer | None = None
    ) -> None:
        self._routes = routes
        self._telemetry = telemetry
        self._access_log = access_log
        self._tracer = tracer
        self._process = secrets.token_hex(8).encode()
        self._numbers = itertools.count(1)
        self.screen: Final = routes.screen

    def serve(self, exchange: Exchange) -> None:
        """See `Application`."""
        try:
            self._trace(exchange)
            self._routes.dispatch(exchange)
        except Exception as fault:  # noqa: BLE001 - the last resort of a request
            exchange.fail(fault)
            exchange.end()

    def _trace(self, exchange: Exchange) -> None:
        """The engines' id is fresh, since a client's may collide with another's inside an engine.

        The client gets its own back, with what could forge a header or a log line taken out.
        """
        fresh = exchange.engine_id = b"%b-%x" % (self._process, next(self._numbers))
        own = exchange.headers.get(_REQUEST_ID)
        exchange.client_id = fresh if not own else (_ODD.sub(b"", own[: 2 * _MAX_CLIENT_ID])[:_MAX_CLIENT_ID] or fresh)
        if self._tracer is not None:
            exchange.span = self._tracer.begin(exchange)
        if self._access_log is not None or exchange.span is not None:
            exchange.trail = Trail()

    def ended(self, exchange: Exchange) -> None:
        """See `Application`."""
        self._routes.ended(exchange)
        if exchange.method == b"POST":  # questions about the router itself are no requests
            telemetry = self._telemetry
            telemetry.requests[exchange.model, exchange.status] += 1
            if exchange.status == _OK:
                telemetry.e2e.observe(monotonic() - exchange.arrived_s)
        if exchange.trail is not None:
            self._tell(exchange, monotonic())

    def _tell(self, exchange: Exchange, now_s: float) -> None:
        """Last of all: the log and the trace say how it ended."""
        if self._access_log is not None:
            self._access_log.ended(exchange, now_s)
        if self._tracer is not None and exchange.span is not None:
            self._tracer.end(exchange, exchange.span, now_s)
