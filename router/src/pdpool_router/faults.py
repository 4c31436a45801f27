"""One tree of everything that can go wrong with a request.

```
Fault
├── ClientFault          the request itself is at fault; nothing is retried, no endpoint is blamed
│   ├── BadRequest · Unauthorized · UnknownModel · UnknownRoute · MethodNotAllowed · BodyTooLarge · HeadersTooLarge
│   └── RequestTimedOut · ExpectationFailed · UnsupportedCoding · UnsupportedVersion
├── Unavailable          nothing can take the request now; the client may come back
│   ├── NoEndpoint · NoPrefill · Saturated · RateLimited · ShuttingDown
└── EngineFault          an engine failed; counts against the endpoint
    ├── ConnectFailed · EngineReset · EngineStatus · EngineAborted · EngineMalformed
    └── EngineTimedOut
```

Boundary: names and messages that a client may see; `edge/errors.py` holds the one table that maps them to HTTP.
Messages hold no content of a request and no address of an engine.
"""

from __future__ import annotations


class Fault(Exception):  # noqa: N818 - the tree is of faults
    """Root of the tree; its text is shown to the client."""


class ClientFault(Fault):
    """The request itself is at fault."""


class BadRequest(ClientFault):
    """Not HTTP/1.1, or not a body that an engine would read."""


class Unauthorized(ClientFault):
    """No key, or none of the keys."""


class UnknownModel(ClientFault):
    """No such model is served here."""

    def __init__(self, model: str) -> None:
        # The client's own text goes back to it, bounded: it is no secret of anybody else.
        super().__init__(f"The model `{model[:256]}` does not exist.")


class UnknownRoute(ClientFault):
    """No such path."""


class MethodNotAllowed(ClientFault):
    """A known path, another method."""

    def __init__(self, allowed: str) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


class BodyTooLarge(ClientFault):
    """The body is longer than `limits.maxBodyBytes`."""


class HeadersTooLarge(ClientFault):
    """The request line and headers are longer than the server reads."""


class RequestTimedOut(ClientFault):
    """The client did not finish sending its request in time."""


class ExpectationFailed(ClientFault):
    """An `Expect` other than 100-continue."""


class UnsupportedCoding(ClientFault):
    """A transfer coding other than chunked."""


class UnsupportedVersion(ClientFault):
    """Neither HTTP/1.0 nor HTTP/1.1."""


class Unavailable(Fault):
    """Nothing can take the request now; the client may come back."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """When it is worth to come back."""


class NoEndpoint(Unavailable):
    """No engine is ready for the request."""


class NoPrefill(Unavailable):
    """No prefill engine is ready and the pool does not fall back to decode."""


class Saturated(Unavailable):
    """A limit on concurrent work is reached."""


class RateLimited(Unavailable):
    """The client's key asks for more than its share; others are served."""


class ShuttingDown(Unavailable):
    """The router takes no new requests."""


class EngineFault(Fault):
    """An engine failed; counts against the endpoint."""


class ConnectFailed(EngineFault):
    """No connection: the engine has seen nothing of the request."""


class EngineReset(EngineFault):
    """The connection broke before the answer was whole."""


class EngineStatus(EngineFault):
    """The engine answered 5xx."""


class EngineAborted(EngineFault):
    """The engine gave the request up (`abort`, `error`)."""

    def __init__(self, message: str, *, after_tokens: int = 0) -> None:
        super().__init__(message)
        self.after_tokens = after_tokens
        """Tokens it had made by then."""


class EngineMalformed(EngineFault):
    """The answer is not HTTP/1.1, or a prefill answer is not valid."""


class EngineTimedOut(EngineFault):
    """The engine was silent for too long."""
