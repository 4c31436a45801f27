"""A request to one engine that is no generation (`/tokenize` and the like).

Boundary: one leg, tried once more at another engine where the first fails; generation is `handoff`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pdpool_router.faults import ConnectFailed, EngineFault, EngineMalformed, EngineTimedOut
from pdpool_router.forward.call import Body, Call, Carrier
from pdpool_router.forward.choice import without
from pdpool_router.forward.leg import BAD_REQUEST, OK, SERVER_ERROR, request_bytes, status_fault
from pdpool_router.forward.whole import MAX_COLLECTED_BYTES, Whole

if TYPE_CHECKING:
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.handoff import Forwarder
    from pdpool_router.forward.relay import Sink
    from pdpool_router.forward.upstream import Upstream
    from pdpool_router.records import Endpoint, Request
    from pdpool_router.state.inflight import Lease


class Errand:
    """One such request: a `Receiver` of its answer. It ends once, by `Sink.end` or by `cancel`."""

    def __init__(
        self, forwarder: Forwarder, sink: Sink, *, path: bytes, body: bytes, head: bytes, request: Request
    ) -> None:
        self._forwarder = forwarder
        self._path = path
        self._body = body
        self._head = head
        self._request = request
        self._sink = sink
        self.carrier: Carrier | None = None
        self._endpoint: Endpoint
        self._lease: Lease | None = None
        self._others = False

    def start(self) -> None:
        """Sends it."""
        try:
            self._send()
        except Exception as fault:  # noqa: BLE001 - a request must not be left without an answer
            self._fail(fault)

    def cancel(self) -> None:
        """The client left."""
        if self.carrier is not None:
            self.carrier.abandon_for(self)
        self._release()

    def _send(self) -> None:
        forwarder = self._forwarder
        snapshot = forwarder.endpoints.snapshot()
        engines = snapshot.aggregated or snapshot.decode or snapshot.prefill
        self._others = len(engines) > 1
        any_engine = msgspec.structs.replace(snapshot, aggregated=engines)
        self._endpoint = endpoint = forwarder.choice.plan(self._request, any_engine).endpoint
        self._lease = forwarder.inflight.reserve(endpoint)
        request = request_bytes(endpoint, self._path, self._head, self._body)
        forwarder.transport.send(endpoint, Call(request, self, forwarder.connect_s, forwarder.prefill_s))

    # --- what the engine answers: `Receiver` ---------------------------------------------------------------------
    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        """See `Receiver`."""
        del now_s
        if head.status >= SERVER_ERROR:
            self.on_fault(status_fault(head.status))
        elif head.status != OK and head.status < BAD_REQUEST:
            self.on_fault(EngineMalformed("The engine's answer is not valid."))
        else:
            if head.status == OK:
                self._forwarder.health.succeeded(self._endpoint.uid)
            self._release()
            self._sink.relay_answer(head, body)
            self._sink.end()

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        """See `Receiver`."""
        del now_s
        return Whole(self, head, upstream, MAX_COLLECTED_BYTES)

    def on_too_much(self, head: Head, upstream: Upstream, first: bytes, now_s: float) -> None:
        """See `Taker`."""
        del head, first, now_s
        upstream.abandon_for(self)
        self.on_fault(EngineMalformed("The engine's answer is too long."))

    def on_fault(self, fault: Exception) -> None:
        """See `Receiver`."""
        self._release()
        if not isinstance(fault, EngineFault):
            self._fail(fault)
            return
        self._forwarder.health.failed(self._endpoint.uid, certain=isinstance(fault, ConnectFailed))
        if isinstance(fault, EngineTimedOut) or self._request.failed or not self._others:
            self._fail(fault)
            return
        self._forwarder.telemetry.retries["whole"] += 1
        self._request = without(self._request, self._endpoint)
        self.start()

    def _fail(self, fault: Exception) -> None:
        self._release()
        self._sink.fail(fault)
        self._sink.end()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
