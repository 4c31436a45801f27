"""The API: which paths there are, what a request asks for, what the pool serves.

Boundary: from a whole HTTP request to a `Job` and back to an answer. A path is compared byte for byte and nothing
else is ever sent to an engine, so that no spelling reaches an engine's own routes.
"""

from __future__ import annotations

import re
from time import monotonic, time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from pdpool_api.engines.vllm import legs
from pdpool_api.engines.vllm.prompts import prompt_text
from pdpool_api.names import HEADER_REQUEST_ID
from pdpool_router.edge.access import own_salt
from pdpool_router.faults import (
    BadRequest,
    BodyTooLarge,
    Fault,
    MethodNotAllowed,
    NoEndpoint,
    ShuttingDown,
    Unauthorized,
    UnknownModel,
    UnknownRoute,
)
from pdpool_router.flow.admission import Share
from pdpool_router.forward.errand import Errand
from pdpool_router.forward.framing import connection_options
from pdpool_router.forward.handoff import Forwarder, Job, Journey
from pdpool_router.kv.knowledge import prompt_of, session_key
from pdpool_router.records import Request, Unplaced
from pdpool_router.schedule.disaggregate import candidates

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pdpool_api.router_config import RouterConfig
    from pdpool_router.edge.access import Access, Client
    from pdpool_router.edge.exchange import Exchange
    from pdpool_router.flow.admission import Admission
    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.telemetry import Telemetry

_GET: Final = (b"GET", b"HEAD")
_POST: Final = (b"POST",)
_GET_BODY_BYTES: Final = 65_536
_ALWAYS_FORWARDED: Final = (b"content-type", b"accept", b"traceparent", b"tracestate")
# The engine takes orders from these, or framing would be two people's business.
_NEVER_FORWARDED: Final = frozenset(
    {
        b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade",
        b"expect", b"accept-encoding", b"content-encoding", b"x-data-parallel-rank", HEADER_REQUEST_ID.encode(),
    }
)  # fmt: skip
_NEVER_FORWARDED_PREFIXES: Final = (b"x-prefiller-", b"x-pdpool-", b"proxy-")
_USUAL_OPTIONS: Final = (b"", b"keep-alive", b"close")
_MODELS_PREFIX: Final = b"/v1/models/"
# RFC 9112, section 3.2.2. Without a host, with a user's name or a fragment it is no target, and no path of ours.
_ABSOLUTE: Final = re.compile(rb"(?i:https?)://[^/?#@\\]+(/.*)", re.DOTALL)
_encode = msgspec.json.Encoder().encode


class _InLine:
    """A request that waits for its turn."""

    def __init__(self, exchange: Exchange, work: Journey | Errand, turn: asyncio.Future[None]) -> None:
        self._exchange = exchange
        self._work = work
        self._left = False
        self._since_s = monotonic()
        turn.add_done_callback(self._on_turn)

    def cancel(self) -> None:
        """See `Work`: the place in line itself is given back with the ticket."""
        self._left = True

    def _on_turn(self, turn: asyncio.Future[None]) -> None:
        fault = turn.exception()
        if self._left:
            return
        if fault is not None:
            assert isinstance(fault, Exception)
            self._exchange.fail(fault)
            self._exchange.end()
            return
        self._exchange.waited_s = monotonic() - self._since_s
        self._exchange.work = self._work
        self._work.start()


class _Path(NamedTuple):
    name: str
    methods: tuple[bytes, ...]
    handler: Callable[[Exchange], None]
    route: legs.Route | None = None
    needs_key: bool = True


class Api:
    """The routes of the API port."""

    def __init__(
        self,
        *,
        forwarder: Forwarder,
        endpoints: Endpoints,
        admission: Admission,
        telemetry: Telemetry,
        config: RouterConfig,
        access: Access,
    ) -> None:
        self._forwarder = forwarder
        self._endpoints = endpoints
        self._admission = admission
        self._telemetry = telemetry
        self._created_s = int(time())
        self.shutting_down = False
        self.configure(config, access)
        self._paths: Final = {
            path.name.encode(): path
            for path in (
                _Path("/health", _GET, self._health, needs_key=False),
                _Path("/v1/models", _GET, self._models),
                *(_Path(route.path, _POST, self._generate, route) for route in legs.Route),
                _Path("/tokenize", _POST, self._pass_on),
                _Path("/detokenize", _POST, self._pass_on),
                _Path("/v1/messages/count_tokens", _POST, self._pass_on),
            )
        }
        self._one_model: Final = _Path("/v1/models/{id}", _GET, self._model)

    def configure(self, config: RouterConfig, access: Access) -> None:
        """Takes over a configuration, and who may ask; requests in hand keep what they began with."""
        # Plain values: a model's attribute costs a call, and these are read for each request.
        self._max_body_bytes = config.limits.max_body_bytes
        self._primary = config.model.served_names[0]
        self._access = access
        self._adapters = frozenset(config.model.adapters)
        self._session_header = config.routing.session_header.encode()
        self._forwarded = _ALWAYS_FORWARDED + tuple(
            name
            for name in (text.encode() for text in config.forward_headers)
            if name not in _NEVER_FORWARDED
            and name not in _ALWAYS_FORWARDED
            and not name.startswith(_NEVER_FORWARDED_PREFIXES)
        )
        self._admission.configure(config.limits, _shares(config))
        for name in access.anybody.names:  # a gauge that is absent would be unknown, not 0
            self._telemetry.queued.setdefault(name, 0)

    # --- Routes --------------------------------------------------------------------------------------------------
    def screen(self, exchange: Exchange) -> Fault | None:
        """See `Application`."""
        path = exchange.screened = self._paths.get(exchange.path) or self._path(exchange)
        if path is None:
            return UnknownRoute("Not Found")
        exchange.route = path.name
        if exchange.method not in path.methods:
            return MethodNotAllowed(", ".join(method.decode() for method in path.methods))
        if path.needs_key:
            exchange.client = self._access.client(exchange.headers)
            if exchange.client is None:
                return Unauthorized("Incorrect API key provided.")
        if path.methods is _GET:
            exchange.body_limit = _GET_BODY_BYTES
            return None
        return self._body_fault(exchange)

    def _body_fault(self, exchange: Exchange) -> Fault | None:
        if self.shutting_down:
            return ShuttingDown("The router is shutting down.")
        limit = exchange.body_limit = self._max_body_bytes
        if exchange.content_length > limit:
            return BodyTooLarge(f"The request's body is longer than {limit} bytes.")
        return None

    def _path(self, exchange: Exchange) -> _Path | None:
        """A path that is none of the fixed ones: a model's, or one written as an absolute URL."""
        path = exchange.path
        absolute = _ABSOLUTE.fullmatch(path)
        if absolute is not None:
            path = exchange.path = absolute[1]
        if path.startswith(_MODELS_PREFIX) and len(path) > len(_MODELS_PREFIX):
            return self._one_model
        return self._paths.get(path)

    def dispatch(self, exchange: Exchange) -> None:
        """See `Routes`."""
        if exchange.refusal is not None:
            raise exchange.refusal
        exchange.screened.handler(exchange)

    def ended(self, exchange: Exchange) -> None:
        """See `Routes`."""
        if exchange.ticket is not None:
            self._admission.leave(exchange.ticket)

    # --- what the router answers itself --------------------------------------------------------------------------
    def serviceable(self) -> bool:
        """A request could be served now."""
        probe = Request(model="", prompt_bytes=0)
        return not self.shutting_down and not isinstance(candidates(probe, self._endpoints.snapshot()), Unplaced)

    def _health(self, exchange: Exchange) -> None:
        if self.shutting_down or not (self.serviceable() or (self._admission.asleep and self._admission.accepts)):
            raise (
                ShuttingDown("The router is shutting down.")
                if self.shutting_down
                else NoEndpoint("No request could be served now.")
            )
        exchange.reply(200, b"{}")

    def _models(self, exchange: Exchange) -> None:
        exchange.reply(200, _encode({"object": "list", "data": [self._card(name) for name in _client(exchange).names]}))

    def _model(self, exchange: Exchange) -> None:
        name = unquote_to_bytes(exchange.path[len(_MODELS_PREFIX) :]).decode("utf-8", "replace")
        if name not in _client(exchange).names:
            raise UnknownModel(name)
        exchange.reply(200, _encode(self._card(name)))

    def _card(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": "pdpool"}

    # --- what engines answer -------------------------------------------------------------------------------------
    def _generate(self, exchange: Exchange) -> None:
        route: legs.Route = exchange.screened.route
        client = _client(exchange)
        body, model = self._read(exchange, client)
        if client.salt:
            body = _salted(body, client.salt)
        request = asked(body, route, model, adapters=self._adapters, keys=self._forwarder.choice.policy.reads_prefixes)
        if self._session_header and self._session_header in exchange.headers:
            request = msgspec.structs.replace(request, session=session_key(exchange.headers[self._session_header]))
        job = Job(route, body, self._head_lines(exchange), request)
        self._admit(exchange, self._forwarder.journey(job, exchange), client, len(body.raw))

    def _pass_on(self, exchange: Exchange) -> None:
        client = _client(exchange)
        body, model = self._read(exchange, client)
        request = Request(model, len(body.raw))
        head = self._head_lines(exchange)
        errand = Errand(self._forwarder, exchange, path=exchange.path, body=body.raw, head=head, request=request)
        self._admit(exchange, errand, client, len(body.raw))

    def _admit(self, exchange: Exchange, work: Journey | Errand, client: Client, size_bytes: int) -> None:
        """Starts the work now, or when its turn comes."""
        ticket = exchange.ticket = self._admission.enter(
            model=exchange.model, size_bytes=size_bytes, tenant=client.tenant
        )
        if ticket.turn is not None:
            exchange.work = _InLine(exchange, work, ticket.turn)
            return
        exchange.work = work
        work.start()

    def _read(self, exchange: Exchange, client: Client) -> tuple[legs.Body, str]:
        """The body, and the model that it asks for (absent: the primary, as an engine takes it).

        Raises:
            ClientFault: not a body for this pool.
        """
        try:
            body = legs.received(exchange.body)
            model = legs.text_field(body.fields, "model")
        except legs.BodyError as fault:
            raise BadRequest(f"{fault}"[:1].upper() + f"{fault}"[1:] + ".") from fault
        exchange.body = b""
        asked = model or self._primary
        name = client.names.get(asked)
        if name is None:
            raise UnknownModel(asked)
        exchange.model = name
        return body, name

    def _head_lines(self, exchange: Exchange) -> bytes:
        headers = exchange.headers
        options = headers.get(b"connection", b"")
        nominated = () if options in _USUAL_OPTIONS else connection_options(options)
        lines = b""
        for name in self._forwarded:
            if name in headers and name not in nominated:
                lines += b"%b: %b\r\n" % (name, headers[name])
        return b"%baccept-encoding: identity\r\nx-request-id: %b\r\n" % (lines, exchange.engine_id)


def asked(body: legs.Body, route: legs.Route, model: str, *, adapters: frozenset[str], keys: bool) -> Request:
    """What a choice may depend on; `keys`: the policy compares prefixes."""
    whole = legs.one_engine_reason(body.fields) or ""
    prompt = None
    if keys:
        text = prompt_text(body.fields, route)
        if text is not None:
            prompt = prompt_of(text, model if model in adapters else "")
    return Request(model, len(body.raw), whole_reason=whole, prompt=prompt)


def _shares(config: RouterConfig) -> dict[str, Share]:
    return {
        tenant.key: Share(
            weight=tenant.weight,
            priority=tenant.priority,
            requests_per_second=tenant.requests_per_second,
            concurrent=tenant.concurrent,
        )
        for tenant in config.tenants
    }


def _client(exchange: Exchange) -> Client:
    assert exchange.client is not None, "screened before it is served"
    return exchange.client


def _salted(body: legs.Body, salt: str) -> legs.Body:
    """The body with its client's salt, so that no other client's KV matches it.

    Raises:
        BadRequest: the client's own salt is no salt.
    """
    try:
        own = legs.own_salt(body.fields)
    except legs.BodyError as fault:
        raise BadRequest(f"{fault}.") from fault
    return legs.salted(body, own_salt(salt, own) if own is not None else salt)
