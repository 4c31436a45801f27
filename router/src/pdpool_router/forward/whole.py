"""Takes an answer whole, up to a bound.

Boundary: collecting; what the answer means is for the leg to judge. Only answers that did not come in one read come
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.upstream import Upstream

MAX_COLLECTED_BYTES: Final = 67_108_864
MAX_HELD_BYTES: Final = 4_194_304
"""An answer to the client above this is forwarded as it comes."""


class Taker(Protocol):
    """The leg that waits for the whole answer."""

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        """It is whole."""

    def on_too_much(self, head: Head, upstream: Upstream, first: bytes, now_s: float) -> None:
        """It is longer than the bound; `first` is what came of it."""

    def on_fault(self, fault: Exception) -> None:
        """It will not be whole."""


class Whole:
    """Collects an answer. A `Body`."""

    __slots__ = ("_bytes", "_head", "_limit_bytes", "_pieces", "_taker", "_upstream")

    def __init__(self, taker: Taker, head: Head, upstream: Upstream, limit_bytes: int) -> None:
        self._taker = taker
        self._head = head
        self._upstream = upstream
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._bytes = 0

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        """See `Body`."""
        del wire, last
        self._pieces.append(payload)
        self._bytes += len(payload)
        if self._bytes > self._limit_bytes:
            first, self._pieces = b"".join(self._pieces), []
            self._taker.on_too_much(self._head, self._upstream, first, now_s)

    def on_end(self, now_s: float) -> None:
        """See `Body`."""
        self._taker.on_answer(self._head, b"".join(self._pieces), now_s)

    def on_fault(self, fault: Exception) -> None:
        """See `Body`."""
        self._taker.on_fault(fault)
