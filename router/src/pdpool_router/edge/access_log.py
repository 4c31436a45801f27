"""One JSON line for a request, when it has ended: who asked what of which engines, how long it took, how it ended.

Boundary: names from the configuration, ids, times and counts; never content, headers or addresses of clients. Lines are
written in one go at each tick: a system call for each would cost more than the line. A share of them can be asked for;
answers of 500 and above are all logged.
"""

from __future__ import annotations

import sys
from time import time
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.trail import Trail

MAX_HELD_BYTES: Final = 65_536
_SERVER_ERROR: Final = 500
_encode = msgspec.json.Encoder().encode


class _Lines:
    """A file whose lines go out together."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._held: list[bytes] = []
        self._bytes = 0

    def add(self, line: bytes) -> None:
        self._held.append(line + b"\n")
        self._bytes += len(line)
        if self._bytes > MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._out.write(b"".join(self._held))
            self._out.flush()
            self._held.clear()
            self._bytes = 0


class AccessLog:
    """Writes the lines of requests."""

    def __init__(self, share: float, *, chance: Callable[[], float], out: BinaryIO | None = None) -> None:
        """`share`: of requests below 500, in [0, 1]; `chance`: a uniform number in [0, 1)."""
        self._share = share
        self._chance = chance
        self._lines = _Lines(out or sys.stderr.buffer)

    def ended(self, exchange: Exchange, now_s: float) -> None:
        """Logs a request, unless it is left out by chance."""
        if exchange.status < _SERVER_ERROR and self._chance() >= self._share:
            return
        client, trail = exchange.client, exchange.trail
        told = {
            "event": "request",
            "timestamp": round(time(), 3),
            "id": exchange.client_id.decode("ascii"),
            "engine_id": exchange.engine_id.decode("ascii"),
            "method": exchange.method.decode("latin-1"),
            "route": exchange.route,
            "model": exchange.model,
            "key": (client.name or None) if client is not None else None,
            "status": exchange.status,
            "prefill": exchange.prefill,
            "duration_ms": _ms(now_s - exchange.arrived_s),
        }
        if trail is not None:
            told |= _of(trail, exchange.arrived_s)
        self._lines.add(_encode(told))

    def flush(self) -> None:
        """Writes what is held."""
        self._lines.flush()


def _of(trail: Trail, arrived_s: float) -> dict[str, object]:
    prefill, decode = trail.last("prefill"), trail.last("decode")
    found: dict[str, object] = {
        "prefill_endpoint": prefill.endpoint if prefill is not None else None,
        "decode_endpoint": decode.endpoint if decode is not None else None,
        "legs": len(trail.legs),
    }
    if trail.legs:
        found["wait_ms"] = _ms(trail.legs[0].sent_s - arrived_s)
    if trail.first_byte_s:
        found["first_byte_ms"] = _ms(trail.first_byte_s - arrived_s)
    if fault := next((leg.fault for leg in reversed(trail.legs) if leg.fault), ""):
        found["fault"] = fault
    return {**found, **trail.tokens()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
