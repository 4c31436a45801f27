"""Two legs, one request: prefill computes the prompt, decode pulls its KV and answers.

Boundary: the order of legs, what is tried again and what is not, and who is blamed; bodies come from the engine's
`legs`, choices from the policy, bytes go through `Relay`. The rules of failure in one place:

- 4xx of either leg is the client's answer, passed on once.
- Prefill: a connection that cannot be made or breaks, or 5xx, or a request given up: once elsewhere. Only where
  nothing can be connected to and no other prefill is left does the configured fallback decide.
- Decode: no connection: the same parameters once at another decode of the revision. A break, 5xx or a request given
  up before the first byte: both legs once, on another pair.
- A silent engine is 504, and nothing is tried again. Nor is it after a byte of the answer was forwarded.

The parameters of one prefill answer go to one decode request only, with the very prompt they were made for.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from pdpool_api.engines.vllm import legs
from pdpool_router.faults import (
    ConnectFailed,
    EngineAborted,
    EngineFault,
    EngineMalformed,
    EngineStatus,
    EngineTimedOut,
    NoEndpoint,
    NoPrefill,
    Saturated,
    Unavailable,
)
from pdpool_router.forward.relay import Answer, Collector, Relay, Relayed, Sink
from pdpool_router.records import Decision, Endpoint, Request, Unplaced, Way

if TYPE_CHECKING:
    import random

    from pdpool_api.router_config import RouterConfig
    from pdpool_router.forward.transport import Transport
    from pdpool_router.schedule.interface import Policy
    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.telemetry import Telemetry

_log = structlog.get_logger("pdpool_router")

_OK: Final = 200
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_BUSY: Final = 503

_UNPLACED: Final[dict[Unplaced, tuple[type[Unavailable], str]]] = {
    Unplaced.NO_ENDPOINT: (NoEndpoint, "No engine is ready for this request."),
    Unplaced.NO_PREFILL: (NoPrefill, "No prefill engine is ready."),
    Unplaced.LOCAL_PREFILLS_FULL: (
        Saturated,
        "No prefill engine is ready, and decode computes as many prompts as it may.",
    ),
}


class Job(msgspec.Struct, frozen=True, gc=False):
    """One generating request, ready to be sent."""

    route: legs.Route
    body: legs.Body
    head: bytes
    """Header lines for both legs, each with its line end, without host and content-length."""
    request: Request


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a request ended, for the account."""

    answer: Answer | None
    """An answer that is still to be written; None: a stream was forwarded."""
    way: Way
    usage: legs.Usage | None = None


class _Retries(msgspec.Struct):
    """What may still be tried again for one request."""

    prefill: bool = True
    connect: bool = True
    pair: bool = True


class _Handed(msgspec.Struct, frozen=True, gc=False):
    """The prefill leg's success."""

    endpoint: Endpoint
    handoff: legs.Handoff
    answered_s: float
    own_s: float
    """What the router itself took before this leg."""


class _Leg(msgspec.Struct, frozen=True, gc=False):
    """An answering leg, ready to be sent."""

    endpoint: Endpoint
    body: bytes
    way: Way
    ready_s: float
    """When all that it needs was there."""
    own_s: float
    """What the router itself took before that."""


class _AnotherPair(Exception):  # noqa: N818 - a turn of the loop, not an error
    def __init__(self, request: Request, decision: Decision) -> None:
        super().__init__()
        self.request = request
        self.decision = decision


class Forwarder:
    """Serves requests from engines."""

    def __init__(
        self,
        *,
        transport: Transport,
        endpoints: Endpoints,
        policy: Policy,
        telemetry: Telemetry,
        config: RouterConfig,
        rng: random.Random,
    ) -> None:
        self._transport = transport
        self._endpoints = endpoints
        self._telemetry = telemetry
        self._rng = rng
        self.policy = policy
        self.config = config

    async def generate(self, job: Job, sink: Sink) -> Outcome:
        """Serves a generating request.

        A stream goes to `sink` as it comes; another answer is in the outcome.

        Raises:
            Fault: nothing was forwarded.
        """
        request = job.request
        retries = _Retries()
        decision = self._plan(request)
        while True:
            try:
                sink.prefill = decision.way
                if decision.way is Way.REMOTE:
                    prefilled = await self._prefill(job, request, decision, retries, sink.arrived_s)
                    if isinstance(prefilled, _Handed):
                        return await self._decode(job, request, prefilled, sink, retries)
                    if isinstance(prefilled, Answer):
                        return Outcome(prefilled, Way.REMOTE)
                    decision = prefilled
                    sink.prefill = decision.way
                return await self._one_leg(job, request, decision, sink, retries)
            except _AnotherPair as again:
                request, decision = again.request, again.decision

    async def pass_on(self, path: bytes, body: bytes, head: bytes, request: Request) -> Answer:
        """The answer of one engine to a request that is no generation (`/tokenize` and the like).

        Raises:
            Fault: no engine answered.
        """
        snapshot = self._endpoints.snapshot()
        engines = snapshot.aggregated or snapshot.decode or snapshot.prefill
        whole = msgspec.structs.replace(snapshot, aggregated=engines)
        tried = request
        while True:
            decision = self.policy.plan(tried, whole, monotonic(), self._rng)
            if isinstance(decision, Unplaced):
                raise _unavailable(decision)
            endpoint = decision.endpoint
            lease = self._endpoints.inflight.reserve(endpoint)
            try:
                answer = await self._collect(endpoint, path, head, body, total_s=self.config.limits.prefill_seconds)
            except EngineTimedOut:
                raise
            except EngineFault:
                if tried.failed or len(engines) == 1:
                    raise
                tried = _without(tried, endpoint)
                self._telemetry.retries["whole"] += 1
            else:
                if answer.head.status == _OK:
                    self._endpoints.health.succeeded(endpoint.uid)
                return answer
            finally:
                lease.release()

    # --- choosing ------------------------------------------------------------------------------------------------
    def _plan(self, request: Request) -> Decision:
        found = self.policy.plan(request, self._endpoints.snapshot(), monotonic(), self._rng)
        if isinstance(found, Unplaced):
            raise _unavailable(found)
        return found

    def _place(self, request: Request, revision: str) -> Endpoint | None:
        snapshot = self._endpoints.snapshot()
        if not snapshot.one_revision:
            request = msgspec.structs.replace(request, revision=revision)
        placed = self.policy.place(request, None, snapshot, monotonic(), self._rng)
        return placed.endpoint if placed is not None else None

    def _another_pair(self, request: Request, prefill: Endpoint | None, decode: Endpoint) -> _AnotherPair | None:
        """The request again without the pair that failed; where that leaves none, without one of the two."""
        losers = (prefill, decode) if prefill is not None else (decode,)
        for without in (losers, (decode,), losers[:1]):
            tried = _without(request, *without)
            found = self.policy.plan(tried, self._endpoints.snapshot(), monotonic(), self._rng)
            if isinstance(found, Unplaced):
                continue
            if prefill is not None and (
                found.way is not Way.REMOTE or self._place(tried, found.endpoint.revision) is None
            ):
                continue
            return _AnotherPair(tried, found)
        return None

    def _replaceable(self, retries: _Retries, request: Request, prefill: Endpoint | None, decode: Endpoint) -> bool:
        return retries.pair and self._another_pair(request, prefill, decode) is not None

    # --- two legs ------------------------------------------------------------------------------------------------
    async def _prefill(
        self, job: Job, request: Request, decision: Decision, retries: _Retries, arrived_s: float
    ) -> _Handed | Answer | Decision:
        """The prefill leg: what it hands over; or the client's answer; or that decode computes the prompt itself."""
        body = legs.prefill_body(job.body.fields, job.route)
        own_s = monotonic() - arrived_s
        while True:
            endpoint = decision.endpoint
            lease = self._endpoints.inflight.reserve(endpoint)
            started_s = monotonic()
            try:
                answer = await self._collect(
                    endpoint, job.route.path_bytes, job.head, body, total_s=self.config.limits.prefill_seconds
                )
                if answer.head.status != _OK:
                    return answer
                handed = _Handed(endpoint, self._handoff(endpoint, answer), answer.ended_s, own_s)
            except EngineTimedOut:
                raise
            except EngineFault as fault:
                request = _without(request, endpoint)
                again = self.policy.plan(request, self._endpoints.snapshot(), monotonic(), self._rng)
                if isinstance(again, Decision) and again.way is Way.REMOTE and retries.prefill:
                    retries.prefill = False
                    self._telemetry.retries["prefill"] += 1
                    decision = again
                    continue
                if not isinstance(fault, ConnectFailed) or (isinstance(again, Decision) and again.way is Way.REMOTE):
                    raise
                # Nothing listens at any prefill: that is what the fallback is for.
                if isinstance(again, Unplaced):
                    raise _unavailable(again) from fault
                return again
            finally:
                lease.release()
            self._telemetry.handoff.observe(handed.answered_s - started_s)
            return handed

    def _handoff(self, endpoint: Endpoint, answer: Answer) -> legs.Handoff:
        health = self._endpoints.health
        try:
            handed = legs.handoff(answer.body)
        except legs.HandoffError as fault:
            health.failed(endpoint.uid)
            raise EngineMalformed("The prefill engine's answer is not valid.") from fault
        health.succeeded(endpoint.uid)
        return handed

    async def _decode(self, job: Job, request: Request, prefilled: _Handed, sink: Sink, retries: _Retries) -> Outcome:
        handoff = prefilled.handoff
        way = Way.LOCAL if handoff.params is None else Way.REMOTE
        if handoff.params is None:
            self._telemetry.local_prefills["no_kv"] += 1
            sink.prefill = way
        body = legs.decode_body(job.body, handoff.params)
        relay: Relay | None = None
        try:
            while True:
                endpoint = self._place(request, prefilled.endpoint.revision)
                if endpoint is None:
                    raise NoEndpoint("No decode engine is ready for this request.")
                relay = Relay(
                    sink,
                    job.route,
                    self._telemetry,
                    replaceable=partial(self._replaceable, retries, request, prefilled.endpoint, endpoint),
                )
                try:
                    leg = _Leg(endpoint, body, way, prefilled.answered_s, prefilled.own_s)
                    return await self._relay(job, leg, relay, prefilled)
                except ConnectFailed:
                    request = _without(request, endpoint)
                    if not retries.connect or self._place(request, prefilled.endpoint.revision) is None:
                        raise
                    retries.connect = False
                    self._telemetry.retries["decode"] += 1
                except EngineFault as fault:
                    again = (
                        self._another_pair(request, prefilled.endpoint, endpoint)
                        if _may_repeat(fault, retries)
                        else None
                    )
                    if again is None:
                        raise
                    retries.pair = False
                    self._telemetry.retries["pair"] += 1
                    raise again from None
        finally:
            if handoff.params is not None and (relay is None or not relay.answered):
                # Its KV stays at prefill until the lease ends.
                self._telemetry.orphaned_prefills += 1

    # --- one leg -------------------------------------------------------------------------------------------------
    async def _one_leg(self, job: Job, request: Request, decision: Decision, sink: Sink, retries: _Retries) -> Outcome:
        body = legs.decode_body(job.body, None)
        endpoint = decision.endpoint
        place = None
        if decision.way is Way.LOCAL:
            self._telemetry.local_prefills[decision.reason] += 1
            place = self._endpoints.inflight.reserve_local_prefill(endpoint)
        relay = Relay(
            sink,
            job.route,
            self._telemetry,
            replaceable=partial(self._replaceable, retries, request, None, endpoint),
            on_answered=place.release if place is not None else None,
        )
        try:
            return await self._relay(job, _Leg(endpoint, body, decision.way, sink.arrived_s, 0.0), relay, None)
        except EngineFault as fault:
            again = self._another_pair(request, None, endpoint) if _may_repeat(fault, retries) else None
            if again is None:
                raise
            retries.pair = False
            self._telemetry.retries["decode"] += 1
            raise again from None
        finally:
            if place is not None:
                place.release()

    async def _relay(self, job: Job, leg: _Leg, relay: Relay, prefilled: _Handed | None) -> Outcome:
        """The answering leg.

        Raises:
            EngineFault: nothing was forwarded.
        """
        health = self._endpoints.health
        lease = self._endpoints.inflight.reserve(leg.endpoint)
        self._telemetry.overhead.observe(monotonic() - leg.ready_s + leg.own_s)
        try:
            result = await self._transport.call(
                leg.endpoint,
                _request(leg.endpoint, job.route.path_bytes, job.head, leg.body),
                relay,
                connect_s=self.config.limits.connect_seconds,
                idle_s=self.config.limits.idle_seconds,
            )
            if isinstance(result, Relayed):
                if result.broken is not None or relay.told_failure:
                    health.failed(leg.endpoint.uid)
                    why = type(result.broken).__name__ if result.broken is not None else "the engine's own error event"
                    _log.warning("stream broken", endpoint=leg.endpoint.name, why=why)
                else:
                    health.succeeded(leg.endpoint.uid)
                return Outcome(None, leg.way, _streamed_usage(relay, job.route, prefilled))
            return self._judged(job.route, leg.endpoint, result, leg.way)
        except EngineFault as fault:
            health.failed(leg.endpoint.uid, certain=isinstance(fault, ConnectFailed))
            raise
        finally:
            lease.release()

    def _judged(self, route: legs.Route, endpoint: Endpoint, answer: Answer, way: Way) -> Outcome:
        """A whole answer, unless it only looks like one."""
        status = answer.head.status
        if status >= _SERVER_ERROR:
            raise _status_fault(status)
        if status == _OK:
            usage = legs.usage(answer.body)
            if legs.unfinished(answer.body, route):
                raise EngineAborted(
                    "The engine aborted the request.", after_tokens=usage.completion_tokens if usage else 0
                )
            self._endpoints.health.succeeded(endpoint.uid)
            return Outcome(answer, way, usage)
        return Outcome(answer, way)

    async def _collect(self, endpoint: Endpoint, path: bytes, head: bytes, body: bytes, *, total_s: float) -> Answer:
        """A whole answer below 500; whether it is a success is for the caller to judge and to tell.

        Raises:
            EngineFault: there is none.
        """
        health = self._endpoints.health
        try:
            answer: Answer = await self._transport.call(
                endpoint,
                _request(endpoint, path, head, body),
                Collector(),
                connect_s=self.config.limits.connect_seconds,
                total_s=total_s,
            )
            status = answer.head.status
            if status >= _SERVER_ERROR:
                raise _status_fault(status)
            if status != _OK and status < _CLIENT_ERROR:
                raise EngineMalformed("The engine's answer is not valid.")
        except EngineFault as fault:
            health.failed(endpoint.uid, certain=isinstance(fault, ConnectFailed))
            raise
        return answer


def _request(endpoint: Endpoint, path: bytes, head: bytes, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path,
        endpoint.host_field,
        head,
        len(body),
        body,
    )


def _unavailable(why: Unplaced) -> Unavailable:
    kind, text = _UNPLACED[why]
    return kind(text)


def _without(request: Request, *endpoints: Endpoint) -> Request:
    return msgspec.structs.replace(request, failed=request.failed | {endpoint.uid for endpoint in endpoints})


def _may_repeat(fault: EngineFault, retries: _Retries) -> bool:
    if isinstance(fault, EngineTimedOut) or (isinstance(fault, EngineAborted) and fault.after_tokens):
        return False
    return retries.pair


def _status_fault(status: int) -> EngineStatus:
    return EngineStatus("The engine failed." if status != _BUSY else "The engine is overloaded.")


def _streamed_usage(relay: Relay, route: legs.Route, prefilled: _Handed | None) -> legs.Usage:
    """Token counts of a stream: what it told; else prefill's count of the prompt, and one token an event."""
    if relay.usage is not None:
        return relay.usage
    events = relay.events - (1 if route is legs.Route.CHAT else 0)
    if prefilled is None:
        return legs.Usage(0, max(events, 0), 0)
    return legs.Usage(prefilled.handoff.prompt_tokens, max(events, 0), prefilled.handoff.cached_tokens)
