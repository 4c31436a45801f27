"""The one table from faults to HTTP, and the shapes of an error: OpenAI's, and on its own routes Anthropic's.

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
_SERVER_ERROR: Final = 500
_MESSAGES: Final = b"/v1/messages"
_ANTHROPICS_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_encode = msgspec.json.Encoder().encode


def shape(fault: faults.Fault) -> Shape:
    """Status and names of a fault."""
    return next((shape for kind, shape in _TABLE if isinstance(fault, kind)), _OWN_DEFECT)


def is_anthropics(path: bytes) -> bool:
    """Whether a route speaks Anthropic's dialect."""
    return path.startswith(_MESSAGES)


def body(fault: faults.Fault, path: bytes = b"") -> bytes:
    """The JSON of a fault, as the clients of the route read it."""
    kind = shape(fault)
    param = "model" if isinstance(fault, faults.UnknownModel) else None
    return _error(kind, str(fault), param, path)


def event(fault: faults.Fault, path: bytes = b"") -> bytes:
    """An event of a stream that tells a fault; the stream ends after it, without its usual end."""
    return b"%bdata: %b\n\n" % (b"event: error\n" if is_anthropics(path) else b"", body(fault, path))


def internal(path: bytes) -> bytes:
    """The JSON of a defect of the router's own; it tells nothing."""
    return _error(_OWN_DEFECT, "Internal error.", None, path)


def _error(kind: Shape, message: str, param: str | None, path: bytes) -> bytes:
    error = {"message": message, "type": kind.type, "param": param, "code": kind.code}
    if not is_anthropics(path):
        return _encode({"error": error})
    # Anthropic's clients go by these two types; what else OpenAI's shape tells is kept.
    status = kind.status
    own = _ANTHROPICS_TYPES.get(status) or ("api_error" if status >= _SERVER_ERROR else "invalid_request_error")
    return _encode({"type": "error", "error": {**error, "type": own}})


def header_lines(fault: faults.Fault) -> bytes:
    """Header lines that belong to a fault."""
    if isinstance(fault, faults.Unavailable):
        return b"retry-after: %d\r\n" % fault.retry_after_s
    if isinstance(fault, faults.Unauthorized):
        return b"www-authenticate: Bearer\r\n"
    if isinstance(fault, faults.MethodNotAllowed):
        return b"allow: %b\r\n" % fault.allowed.encode()
    return b""
