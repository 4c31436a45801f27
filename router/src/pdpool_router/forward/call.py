"""What a leg and the connection that carries it know of each other: the request, and who takes the answer.

Boundary: shapes only; `upstream` fills them, legs stand behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.upstream import Upstream


class Carrier(Protocol):
    """What carries a request: a connection, or the making of one."""

    def abandon_for(self, receiver: Receiver) -> None:
        """Nobody wants the answer any more; without effect once the carrier serves another receiver."""


class Body(Protocol):
    """Takes the body of one answer."""

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """Some of the body: the bytes as they were read, and the same without chunked coding.

        `last`: the body is whole with them (unknown, hence False, where the connection's end is the body's).
        """

    def on_end(self, now_s: float) -> None:
        """The body is whole."""

    def on_fault(self, fault: Exception) -> None:
        """The body will not be whole: an `EngineFault`, or a defect of the router's own."""


class Receiver(Protocol):
    """Takes one answer; callbacks run inside the read, so they must be short."""

    carrier: Carrier | None
    """What carries the request; set by whoever does."""

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        """The whole answer, when it came in one read with its length: nothing else is told of it.

        A stream of events is told by its head, however it comes.
        """

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        """Status and headers are there; who takes the body."""

    def on_fault(self, fault: Exception) -> None:
        """There will be no answer: an `EngineFault`, or a defect of the router's own."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request to be sent."""

    request: bytes
    receiver: Receiver
    connect_s: float
    total_s: float = 0
    """Within which the answer must be whole; 0: any time."""
    idle_s: float = 0
    """The longest silence; 0: any."""
