"""The layers around every request, outermost first: one ordered list.

Boundary: what holds for all routes; a route's own work is in `openai`. Each layer says why it stands where it stands.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api.names import HEADER_REQUEST_ID
from pdpool_router.edge import errors
from pdpool_router.edge.exchange import Exchange
from pdpool_router.faults import Fault

if TYPE_CHECKING:
    from pdpool_router.telemetry import Telemetry

Handler = Callable[[Exchange], Awaitable[None]]
Layer = Callable[[Handler], Handler]

_OK: Final = 200
_CLIENT_LEFT: Final = 499
_MAX_CLIENT_ID: Final = 128
_ODD: Final = re.compile(rb"[^\x21-\x7e]")
_log = structlog.get_logger("pdpool_router")


def rescue(handler: Handler) -> Handler:
    """Outermost: whatever goes wrong within becomes an answer, so that no request is left without one."""

    async def rescued(exchange: Exchange) -> None:
        try:
            await handler(exchange)
        except Fault as fault:
            exchange.fail(fault)
        except Exception as fault:  # noqa: BLE001 - the last resort of a request
            # Neither text nor locals of the exception: they may hold parts of the request.
            _log.error("request failed by a defect", kind=type(fault).__name__, where=_where(fault))
            if exchange.begun:
                exchange.abort()
            else:
                exchange.answer(500, errors.INTERNAL_ERROR)

    return rescued


def trace() -> Layer:
    """Before anything is counted or logged: gives the request its ids.

    The engines' id is fresh, since a client's may collide with another's inside an engine; the client gets its own
    back, with what could forge a header or a log line taken out.
    """
    process = secrets.token_hex(8).encode()
    numbers = itertools.count(1)
    header = HEADER_REQUEST_ID.encode()

    def layer(handler: Handler) -> Handler:
        def traced(exchange: Exchange) -> Awaitable[None]:  # it waits for nothing itself, so it costs no coroutine
            fresh = b"%b-%x" % (process, next(numbers))
            own = exchange.headers.get(header)
            exchange.engine_id = fresh
            exchange.client_id = (
                fresh if not own else (_ODD.sub(b"", own[: 2 * _MAX_CLIENT_ID])[:_MAX_CLIENT_ID] or fresh)
            )
            return handler(exchange)

        return traced

    return layer


def measure(telemetry: Telemetry) -> Layer:
    """Inside the ids, around the route: counts every end of a request, refusals and departures included."""

    def layer(handler: Handler) -> Handler:
        async def measured(exchange: Exchange) -> None:
            code = _CLIENT_LEFT
            try:
                await handler(exchange)
                code = exchange.status
            except Fault as fault:
                code = errors.shape(fault).status
                raise
            except Exception:
                code = 500
                raise
            finally:
                if exchange.method == b"POST":  # questions about the router itself are no requests
                    telemetry.requests[exchange.model, code] += 1
                    if code == _OK:
                        telemetry.e2e.observe(monotonic() - exchange.arrived_s)

        return measured

    return layer


def stacked(handler: Handler, telemetry: Telemetry) -> Handler:
    """The handler inside all layers."""
    layers: tuple[Layer, ...] = (rescue, trace(), measure(telemetry))
    for layer in reversed(layers):
        handler = layer(handler)
    return handler


def _where(fault: BaseException) -> str:
    step = fault.__traceback__
    if step is None:
        return "?"
    while step.tb_next is not None:
        step = step.tb_next
    return f"{step.tb_frame.f_code.co_qualname}:{step.tb_lineno}"
