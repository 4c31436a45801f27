"""The one table from faults to HTTP, and OpenAI's shape of an error.

Boundary: bytes of bodies and events; what went wrong is `faults`. A fault that is not in the table is the router's
own defect: 500.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from pdpool_router import faults


class Shape(NamedTuple):
    """How a kind of fault looks to a client."""

    status: int
    type: str
    code: str | None


# The first class that matches counts: special ones stand before their parents.
_TABLE: Final[tuple[tuple[type[faults.Fault], Shape], ...]] = (
    (faults.Unauthorized, Shape(401, "invalid_request_error", "invalid_api_key")),
    (faults.UnknownModel, Shape(404, "invalid_request_error", "model_not_found")),
    (faults.UnknownRoute, Shape(404, "invalid_request_error", "not_found")),
    (faults.MethodNotAllowed, Shape(405, "invalid_request_error", "method_not_allowed")),
    (faults.BodyTooLarge, Shape(413, "invalid_request_error", "body_too_large")),
    (faults.HeadersTooLarge, Shape(431, "invalid_request_error", "headers_too_large")),
    (faults.RequestTimedOut, Shape(408, "invalid_request_error", "request_timeout")),
    (faults.ExpectationFailed, Shape(417, "invalid_request_error", "expectation_failed")),
    (faults.UnsupportedCoding, Shape(501, "invalid_request_error", "unsupported_transfer_coding")),
    (faults.UnsupportedVersion, Shape(505, "invalid_request_error", "unsupported_http_version")),
    (faults.ClientFault, Shape(400, "invalid_request_error", None)),
    (faults.ShuttingDown, Shape(503, "service_unavailable", "shutting_down")),
    (faults.NoPrefill, Shape(503, "service_unavailable", "no_prefill")),
    (faults.NoEndpoint, Shape(503, "service_unavailable", "no_endpoint")),
    (faults.RateLimited, Shape(429, "rate_limit_error", "rate_limit_exceeded")),
    (faults.Saturated, Shape(503, "service_unavailable", "saturated")),
    (faults.Unavailable, Shape(503, "service_unavailable", None)),
    (faults.EngineTimedOut, Shape(504, "upstream_error", "engine_timeout")),
    (faults.EngineAborted, Shape(502, "upstream_error", "engine_aborted")),
    (faults.EngineFault, Shape(502, "upstream_error", "engine_failure")),
)
_OWN_DEFECT: Final = Shape(500, "internal_error", None)
_encode = msgspec.json.Encoder().encode


def shape(fault: faults.Fault) -> Shape:
    """Status and names of a fault."""
    return next((shape for kind, shape in _TABLE if isinstance(fault, kind)), _OWN_DEFECT)


def body(fault: faults.Fault) -> bytes:
    """OpenAI's JSON of a fault."""
    kind = shape(fault)
    param = "model" if isinstance(fault, faults.UnknownModel) else None
    return _encode({"error": {"message": str(fault), "type": kind.type, "param": param, "code": kind.code}})


def event(fault: faults.Fault) -> bytes:
    """An event of a stream that tells a fault; the stream ends after it, without `[DONE]`."""
    return b"data: %b\n\n" % body(fault)


def header_lines(fault: faults.Fault) -> bytes:
    """Header lines that belong to a fault."""
    if isinstance(fault, faults.Unavailable):
        return b"retry-after: %d\r\n" % fault.retry_after_s
    if isinstance(fault, faults.Unauthorized):
        return b"www-authenticate: Bearer\r\n"
    if isinstance(fault, faults.MethodNotAllowed):
        return b"allow: %b\r\n" % fault.allowed.encode()
    return b""


INTERNAL_ERROR: Final = _encode(
    {"error": {"message": "Internal error.", "type": _OWN_DEFECT.type, "param": None, "code": None}}
)
