"""Two legs, one request: prefill computes the prompt, decode pulls its KV and answers.

Boundary: the order of legs, what is tried again and what is not, and who is blamed; bodies come from the engine's
`legs`, choices from `choice`, the answer's bytes go through `relay`. The rules of failure in one place:

- 4xx of either leg is the client's answer, passed on once.
- Prefill: a connection that cannot be made or breaks, or 5xx, or a request given up: once elsewhere. Only where
  nothing can be connected to and no other prefill is left does the configured fallback decide.
- Decode: no connection: the same parameters once at another decode of the revision. A break, 5xx or a request given
  up before the first byte, or no other decode of the revision: both legs once, on another pair.
- A silent engine is 504, and nothing is tried again. Nor is it after a byte of the answer was forwarded.

The parameters of one prefill answer go to one decode request only, with the very prompt they were made for.

Why callbacks and no coroutine: between two legs nothing waits but the engines, and a task that wakes up for each
answer costs more than all that is done with it.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from pdpool_api.engines.vllm import legs
from pdpool_api.names import Role
from pdpool_router.faults import (
    ConnectFailed,
    EngineAborted,
    EngineFault,
    EngineMalformed,
    EngineTimedOut,
    NoEndpoint,
)
from pdpool_router.forward.call import Body, Call, Carrier
from pdpool_router.forward.choice import unavailable, without
from pdpool_router.forward.leg import BAD_REQUEST, OK, SERVER_ERROR, rank_line, request_bytes, status_fault
from pdpool_router.forward.relay import Large, Sink, Stream
from pdpool_router.forward.whole import MAX_COLLECTED_BYTES, MAX_HELD_BYTES, Whole
from pdpool_router.kv.blocks import TokenChain, packed
from pdpool_router.records import Decision, Endpoint, Request, Unplaced, Way
from pdpool_router.state.inflight import Lease
from pdpool_router.state.loads import Work
from pdpool_router.telemetry import Telemetry
from pdpool_router.trail import Trail

if TYPE_CHECKING:
    from pdpool_api.router_config import RouterConfig
    from pdpool_router.forward.choice import Choice
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.transport import Transport
    from pdpool_router.forward.upstream import Upstream
    from pdpool_router.records import Prompt
    from pdpool_router.state.endpoints import Endpoints

_ENOUGH_EVENTS: Final = 3
"""Of a stream, to tell how far apart its tokens come."""
_log = structlog.get_logger("pdpool_router")


class Job(msgspec.Struct, frozen=True, gc=False):
    """One generating request, ready to be sent."""

    route: legs.Route
    body: legs.Body
    head: bytes
    """Header lines for both legs, each with its line end, without host and content-length."""
    request: Request


# The members of an enumeration are found through its metaclass: by a call.
_REMOTE: Final = Way.REMOTE
_NOWHERE: Final = Endpoint(uid="", name="", role=Role.DECODE, host="", port=0)
_UNDECIDED: Final = Decision(Way.NONE, _NOWHERE)


class Forwarder:
    """What all journeys share."""

    def __init__(
        self, *, transport: Transport, endpoints: Endpoints, choice: Choice, telemetry: Telemetry, config: RouterConfig
    ) -> None:
        self.transport: Final = transport
        self.inflight: Final = endpoints.inflight
        self.health: Final = endpoints.health
        self.endpoints: Final = endpoints
        self.loads: Final = endpoints.loads
        self.prefixes: Final = endpoints.prefixes
        self.choice: Final = choice
        self.telemetry: Final = telemetry
        self.configure(config)

    def configure(self, config: RouterConfig) -> None:
        """Takes over a configuration."""
        # Plain numbers: a model's attribute costs a call, and these are read for each leg.
        self.connect_s = config.limits.connect_seconds
        self.prefill_s = config.limits.prefill_seconds
        self.idle_s = config.limits.idle_seconds

    def journey(self, job: Job, sink: Sink) -> Journey:
        """A request's journey, to be started."""
        return Journey(self, job, sink, job.request, self.telemetry, sink.trail)


class Journey(msgspec.Struct, eq=False):
    """One generating request on its way through its legs: a `Receiver` of each, one after the other.

    It ends once, by `Sink.end` or by `cancel`; whatever it holds is given back by then. A struct, because one is made
    for every request.
    """

    _forwarder: Forwarder
    _job: Job
    _sink: Sink
    _request: Request
    _telemetry: Telemetry
    _trail: Trail | None
    carrier: Carrier | None = None
    """What carries the present leg."""
    _endpoint: Endpoint = _NOWHERE
    """Where the present leg goes."""
    _decision: Decision = _UNDECIDED
    """Why it goes there."""
    _work: Work | None = None
    """What it makes that endpoint do."""
    _asked_ids: bool = False
    """The prefill leg asks for the ids of the prompt's tokens."""
    _ids: TokenChain | None = None
    """Those ids."""
    _told: tuple[str, ...] = ()
    """The uids of endpoints that prefixes were told of as getting this prompt."""
    _lease: Lease | None = None
    """The present leg's place at its endpoint."""
    _prefilling: bool = False
    """The present leg is the prefill leg."""
    _started_s: float = 0.0
    _own_s: float = 0.0
    """What the router itself took so far, without waiting for engines or in line."""
    _ready_s: float = 0.0
    """When all that the present leg needs was there."""
    _local_place: Lease | None = None
    _handoff: legs.Handoff | None = None
    """What the prefill leg handed over; None: one leg serves the request."""
    _prefill: Endpoint | None = None
    """Where that was."""
    _answering_body: bytes = b""
    _head_came: bool = False
    """The head of the answering leg's answer is there."""
    _kv_is_settled: bool = False
    """Decode pulled what prefill holds for it, or has told prefill that nobody will."""
    _stream: Stream | None = None
    _may_retry_prefill: bool = True
    _may_reconnect: bool = True
    _may_repeat: bool = True
    _over: bool = False

    def start(self) -> None:
        """Takes the first step; all others follow from what engines answer."""
        self._ready_s = self._sink.arrived_s + self._sink.waited_s
        try:
            self._take(self._forwarder.choice.plan(self._request))
        except Exception as fault:  # noqa: BLE001 - a request must not be left without an answer
            self._fail(fault)

    def cancel(self) -> None:
        """The client left: both legs' engines notice at once, and nothing more is told to the sink."""
        if self._trail is not None:
            self._trail.ended(monotonic(), "ClientLeft")
        self._let_go()

    def _take(self, decision: Decision) -> None:
        telemetry = self._telemetry
        telemetry.prefix_query_tokens += decision.prompt_tokens
        telemetry.prefix_hit_tokens += decision.cached_tokens
        if decision.way is _REMOTE:
            self._send_prefill(decision)
        else:
            self._send_alone(decision)

    def _tell_prefixes(self, prompt: Prompt, uid: str) -> None:
        """An endpoint is about to hold this prompt."""
        if uid not in self._told:
            self._told += (uid,)
            self._forwarder.prefixes.begin(prompt, uid)

    # --- the prefill leg -----------------------------------------------------------------------------------------
    def _send_prefill(self, decision: Decision) -> None:
        forwarder, job = self._forwarder, self._job
        self._decision = decision
        match = decision.match
        self._asked_ids = match is not None and job.route in legs.TELLS_IDS and forwarder.prefixes.wants_ids(match)
        body = legs.prefill_body(job.body.fields, job.route, want_token_ids=self._asked_ids)
        self._sink.prefill = _REMOTE
        self._prefilling = True
        self._endpoint = endpoint = decision.endpoint
        self._work = forwarder.loads.begin(endpoint, decision.uncached_tokens)
        if self._request.prompt is not None:
            self._tell_prefixes(self._request.prompt, endpoint.uid)
        self._lease = forwarder.inflight.reserve(endpoint)
        self._started_s = now_s = monotonic()
        self._own_s += now_s - self._ready_s
        if self._trail is not None:
            self._trail.sent("prefill", endpoint.name, now_s)
        head = job.head if decision.rank is None else job.head + rank_line(decision.rank)
        request = request_bytes(endpoint, job.route.path_bytes, head, body)
        forwarder.transport.send(endpoint, Call(request, self, forwarder.connect_s, forwarder.prefill_s))

    def _prefill_answered(self, head: Head, body: bytes, now_s: float) -> None:
        """What it hands over goes to decode; 4xx goes to the client.

        Raises:
            EngineFault: the answer is no success.
        """
        status = head.status
        if status != OK:
            if status >= SERVER_ERROR:
                raise status_fault(status)
            if status < BAD_REQUEST:
                raise EngineMalformed("The prefill engine's answer is not valid.")
            self._finish(head, body, None)
            return
        try:
            handoff = legs.handoff(body, wants_ids=self._asked_ids)
        except legs.HandoffError as fault:
            raise EngineMalformed("The prefill engine's answer is not valid.") from fault
        endpoint = self._endpoint
        self._learn(handoff, now_s)
        self._release()
        self._forwarder.health.succeeded(endpoint.uid)
        self._telemetry.handoff.observe(now_s - self._started_s)
        if self._trail is not None:
            self._trail.ended(now_s)
        self._prefilling = False
        self._prefill = endpoint
        self._handoff = handoff
        if handoff.params is None:
            self._telemetry.local_prefills["no_kv"] += 1
            self._sink.prefill = Way.LOCAL
        self._answering_body = legs.decode_body(self._job.body, handoff.params)
        self._ready_s = now_s
        self._send_decode()

    def _learn(self, handoff: legs.Handoff, now_s: float) -> None:
        """What a prefill answer teaches: how long it took, how much was cached, which tokens the prompt became."""
        forwarder, telemetry, decision = self._forwarder, self._telemetry, self._decision
        tokens = handoff.prompt_tokens
        if not tokens or self._work is None:
            return
        took_s = now_s - self._started_s
        forwarder.loads.computed(self._endpoint, self._work, max(0, tokens - handoff.cached_tokens), took_s * 1000)
        if decision.predicted_ms:
            telemetry.prediction_error.observe(abs(took_s - decision.predicted_ms / 1000))
        prompt = self._request.prompt
        if prompt is None or decision.match is None:
            return
        telemetry.predicted_cached_tokens += decision.cached_tokens
        telemetry.actual_cached_tokens += handoff.cached_tokens
        forwarder.prefixes.count(prompt, tokens)
        if handoff.ids:
            ids = packed(handoff.ids)
            if ids:
                self._ids = chain = TokenChain(ids, adapter=prompt.adapter, salt=prompt.salt)
                forwarder.prefixes.learn(prompt, chain)

    def _prefill_failed(self, fault: EngineFault) -> None:
        """Once elsewhere, or what the configured fallback says."""
        if isinstance(fault, EngineTimedOut):
            raise fault
        self._request = without(self._request, self._endpoint)
        again = self._forwarder.choice.replan(self._request)
        elsewhere = isinstance(again, Decision) and again.way is Way.REMOTE
        if elsewhere and self._may_retry_prefill:
            self._may_retry_prefill = False
            self._telemetry.retries["prefill"] += 1
        elif elsewhere or not isinstance(fault, ConnectFailed):
            raise fault
        # Else nothing listens at any prefill: that is what the fallback is for.
        if isinstance(again, Unplaced):
            raise unavailable(again) from fault
        self._prefilling = False
        self._take(again)

    # --- the answering leg ---------------------------------------------------------------------------------------
    def _send_decode(self) -> None:
        """The second of two legs."""
        assert self._prefill is not None
        placed = self._forwarder.choice.place(self._request, self._prefill.revision, self._ids, self._decision.match)
        if placed is None:
            self._begin_again()
        else:
            self._send_answering(placed)

    def _begin_again(self) -> None:
        """What prefill handed over has no taker any more, as its revision is gone: both legs, on a pair of another."""
        again = self._forwarder.choice.replan(self._request) if self._may_repeat else None
        if not isinstance(again, Decision):
            raise NoEndpoint("No decode engine is ready for this request.")
        self._may_repeat = False
        self._telemetry.retries["pair"] += 1
        self._leave_handoff()
        self._take(again)

    def _send_alone(self, decision: Decision) -> None:
        """The only leg."""
        self._sink.prefill = decision.way
        self._answering_body = legs.decode_body(self._job.body, None)
        if decision.way is Way.LOCAL:
            self._telemetry.local_prefills[decision.reason] += 1
            self._local_place = self._forwarder.inflight.reserve_local_prefill(decision.endpoint)
        self._send_answering(decision)

    def _send_answering(self, decision: Decision) -> None:
        forwarder, job = self._forwarder, self._job
        self._kv_is_settled = self._head_came = False
        self._decision = decision
        self._endpoint = endpoint = decision.endpoint
        self._lease = forwarder.inflight.reserve(endpoint)
        self._started_s = now_s = monotonic()
        if self._handoff is None or self._handoff.params is None:
            self._work = forwarder.loads.begin_whole(endpoint, decision.uncached_tokens, now_s)
        else:
            self._work = forwarder.loads.begin(endpoint, 0)
        if self._request.prompt is not None:
            self._tell_prefixes(self._request.prompt, endpoint.uid)
        self._own_s += now_s - self._ready_s
        if self._trail is not None:
            self._trail.sent("decode", endpoint.name, now_s)
        head = job.head if decision.rank is None else job.head + rank_line(decision.rank)
        request = request_bytes(endpoint, job.route.path_bytes, head, self._answering_body)
        forwarder.transport.send(endpoint, Call(request, self, forwarder.connect_s, 0, forwarder.idle_s))

    def _answer_came(self, head: Head, body: bytes) -> None:
        """A whole answer, unless it only looks like one.

        Raises:
            EngineFault: it is no success.
        """
        status = head.status
        if status >= SERVER_ERROR:
            raise status_fault(status)
        usage = None
        if status == OK:
            usage = legs.usage(body)
            if legs.unfinished(body, self._job.route):
                raise EngineAborted(
                    "The engine aborted the request.", after_tokens=usage.completion_tokens if usage else 0
                )
            self._forwarder.endpoints.took(self._giver, self._endpoint)
        self._finish(head, body, usage)

    def _answer_failed(self, fault: EngineFault) -> None:
        """The same parameters elsewhere where nothing was seen of them; else both legs on another pair."""
        choice, prefill, failed = self._forwarder.choice, self._prefill, self._endpoint
        if prefill is not None and isinstance(fault, ConnectFailed):
            self._request = without(self._request, failed)
            if choice.place(self._request, prefill.revision) is not None:
                if not self._may_reconnect:
                    raise fault
                self._may_reconnect = False
                self._telemetry.retries["decode"] += 1
                self._send_decode()
                return
            # Nobody else of its revision: a pair of another one may be there.
        another = None
        if not isinstance(fault, EngineTimedOut) and not (isinstance(fault, EngineAborted) and fault.after_tokens):
            another = self._another_pair()
        if another is None:
            raise fault
        self._may_repeat = False
        self._telemetry.retries["decode" if prefill is None else "pair"] += 1
        self._leave_handoff()
        self._request, decision = another
        self._take(decision)

    def _another_pair(self) -> tuple[Request, Decision] | None:
        if not self._may_repeat:
            return None
        return self._forwarder.choice.another_pair(self._request, self._prefill, self._endpoint)

    # --- what engines answer: `Receiver` -------------------------------------------------------------------------
    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        """See `Receiver`."""
        self.carrier = None  # it is free for others
        try:
            if self._prefilling:
                self._prefill_answered(head, body, now_s)
            else:
                if not self._head_came:  # else it was told before, and this is the end of its body
                    self._note_answering(head)
                self._answer_came(head, body)
        except EngineFault as fault:
            self.on_fault(fault)
        except Exception as fault:  # noqa: BLE001 - see `start`
            self._fail(fault)

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        """See `Receiver`."""
        del now_s
        if self._prefilling:
            return Whole(self, head, upstream, MAX_COLLECTED_BYTES)
        self._note_answering(head)
        if head.status != OK:
            return Whole(self, head, upstream, MAX_COLLECTED_BYTES)
        if not head.events:
            return Whole(self, head, upstream, MAX_HELD_BYTES)
        self._sink.feeds_from(upstream)
        self._stream = Stream(self, self._sink, self._job.route, self._telemetry, head=head, upstream=upstream)
        return self._stream

    def on_too_much(self, head: Head, upstream: Upstream, first: bytes, now_s: float) -> None:
        """See `Taker`."""
        if self._prefilling or head.status != OK:
            self.give_up(EngineMalformed("The engine's answer is too long."))
            return
        self._sink.feeds_from(upstream)
        if self._trail is not None:
            self._trail.first_byte_s = now_s
        upstream.hand_over_to(Large(self, self._sink, head, first))

    def on_fault(self, fault: Exception) -> None:
        """See `Receiver`."""
        try:
            self._release()
            self._ready_s = now_s = monotonic()
            if self._trail is not None:
                self._trail.ended(now_s, type(fault).__name__)
            if not isinstance(fault, EngineFault):
                self._fail(fault)
                return
            self._blame(fault)
            if self._prefilling:
                self._prefill_failed(fault)
            else:
                self._answer_failed(fault)
        except Exception as last:  # noqa: BLE001 - see `start`
            self._fail(last)

    def _blame(self, fault: EngineFault) -> None:
        """Nothing listens there: clear. What failed on handed KV may be the giver's fault."""
        giver = self._giver
        if isinstance(fault, ConnectFailed):
            self._forwarder.health.failed(self._endpoint.uid, certain=True)
        elif giver is not None and not self._prefilling:
            self._forwarder.endpoints.refused(giver, self._endpoint)
        else:
            self._forwarder.health.failed(self._endpoint.uid)

    @property
    def _giver(self) -> Endpoint | None:
        """Whose KV the answering leg uses; None: decode's own."""
        return self._prefill if self._handoff is not None and self._handoff.params is not None else None

    def _note_answering(self, head: Head) -> None:
        status = head.status
        self._head_came = True
        # Of a request that it refuses decode tells prefill, which gives the KV up at once.
        self._kv_is_settled = status in (OK, BAD_REQUEST)
        if status < SERVER_ERROR:
            self._telemetry.overhead.observe(self._own_s)
        endpoints = self._forwarder.endpoints
        if status == OK and not endpoints.calm:
            endpoints.answers(self._giver, self._endpoint)
        if self._local_place is not None:
            self._local_place.release()  # its prompt is computed

    # --- what becomes of the answer: `Source` --------------------------------------------------------------------
    def replaceable(self) -> bool:
        """See `Source`."""
        return self._another_pair() is not None

    def give_up(self, fault: EngineFault) -> None:
        """See `Source`."""
        if self.carrier is not None:
            self.carrier.abandon_for(self)
        self.on_fault(fault)

    def began(self, now_s: float) -> None:
        """See `Source`."""
        work = self._work
        if work is None:
            return
        work.started()
        took_ms = (now_s - self._started_s) * 1000
        decision, loads = self._decision, self._forwarder.loads
        if self._handoff is not None and self._handoff.params is not None:
            loads.pulled(self._endpoint, decision.uncached_tokens, took_ms)
        elif decision.prompt_tokens:
            loads.computed(self._endpoint, work, decision.uncached_tokens, took_ms)

    def forwarded(self, broken: EngineFault | None) -> None:
        """See `Source`."""
        stream = self._stream
        if broken is None and stream is not None and stream.text.events > _ENOUGH_EVENTS:
            self._forwarder.loads.stepped(
                self._endpoint, (stream.last_s - stream.first_s) * 1000 / (stream.text.events - 1)
            )
        health, endpoint = self._forwarder.health, self._endpoint
        if self._trail is not None:
            self._trail.ended(monotonic(), type(broken).__name__ if broken is not None else "")
        if broken is not None:
            self._telemetry.truncated_streams += 1
        told_failure = self._stream is not None and self._stream.text.told_failure
        if broken is not None or told_failure:
            health.failed(endpoint.uid)
            why = type(broken).__name__ if broken is not None else "the engine's own error event"
            _log.warning("stream broken", endpoint=endpoint.name, why=why)
        else:
            self._forwarder.endpoints.took(self._giver, endpoint)
        self._count(self._streamed_usage())
        self._end()

    def _streamed_usage(self) -> legs.Usage:
        """Token counts of a stream: what it told; else prefill's count of the prompt, and one token an event."""
        told = self._stream.text if self._stream is not None else None
        if told is not None and told.usage is not None:
            return told.usage
        # A chat's first event tells the role and no token.
        events = max(told.events - (self._job.route is legs.Route.CHAT), 0) if told is not None else 0
        handoff = self._handoff
        return legs.Usage(handoff.prompt_tokens, events, handoff.cached_tokens) if handoff else legs.Usage(0, events, 0)

    # --- the end -------------------------------------------------------------------------------------------------
    def _finish(self, head: Head, body: bytes, usage: legs.Usage | None) -> None:
        """The client gets an engine's whole answer."""
        self._sink.relay_answer(head, body)
        if self._trail is not None:
            self._trail.ended(monotonic())
        if usage is not None:
            self._count(usage)
        self._end()

    def _fail(self, fault: Exception) -> None:
        if self._over:
            raise fault
        self._sink.fail(fault)
        self._end()

    def _end(self) -> None:
        self._over = True
        self._let_go()
        self._sink.end()

    def _count(self, usage: legs.Usage) -> None:
        telemetry = self._telemetry
        if self._handoff is None and usage.prompt_tokens and self._decision.match is not None:
            # Through the hop decode's engine repeats prefill's number, which was counted with it.
            telemetry.predicted_cached_tokens += self._decision.cached_tokens
            telemetry.actual_cached_tokens += usage.cached_tokens
            if self._request.prompt is not None and self._decision.way is not Way.NONE:
                self._forwarder.prefixes.count(self._request.prompt, usage.prompt_tokens)
        telemetry.prompt_tokens += usage.prompt_tokens
        telemetry.completion_tokens += usage.completion_tokens
        telemetry.cached_tokens += usage.cached_tokens
        if self._trail is not None:
            self._trail.counted(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    def _let_go(self) -> None:
        if self.carrier is not None:
            self.carrier.abandon_for(self)
            self.carrier = None
        self._release()
        self._leave_handoff()
        prompt, told, self._told = self._request.prompt, self._told, ()
        if prompt is not None:
            for uid in told:
                self._forwarder.prefixes.end(prompt, uid)

    def _release(self) -> None:
        if self._work is not None:
            self._work.end()
            self._work = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        if self._local_place is not None:
            self._local_place.release()
            self._local_place = None

    def _leave_handoff(self) -> None:
        handoff, self._handoff = self._handoff, None
        self._prefill = None
        if handoff is not None and handoff.params is not None and not self._kv_is_settled:
            # Its KV stays at prefill until the lease ends.
            self._telemetry.orphaned_prefills += 1
