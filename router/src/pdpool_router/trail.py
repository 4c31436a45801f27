"""What became of one request, step by step: kept only for requests that are logged or traced.

Boundary: times and names, written by the forwarder where things happen, read once at the end; no content of a request.
Why a record of its own: a request that nobody asks about pays for one comparison per step.
"""

from __future__ import annotations

import msgspec


class Leg(msgspec.Struct):
    """One request to an engine."""

    kind: str
    """`prefill` or `decode`; the only leg of a request is `decode`."""
    endpoint: str
    """Name of the endpoint, as metrics have it."""
    sent_s: float
    """`monotonic()`, as all times here."""
    ended_s: float = 0.0
    """The answer was whole, or the leg was given up; 0: neither yet."""
    fault: str = ""
    """Kind of the fault that ended it; empty: none."""


class Trail(msgspec.Struct):
    """The steps of one request."""

    legs: list[Leg] = msgspec.field(default_factory=list)
    """In order; a leg that was sent again is a further one."""
    first_byte_s: float = 0.0
    """The first byte of the answer's body went to the client."""
    prompt_tokens: int = -1
    """-1: nobody told."""
    completion_tokens: int = -1
    cached_tokens: int = -1

    def sent(self, kind: str, endpoint: str, now_s: float) -> None:
        """A leg begins."""
        self.legs.append(Leg(kind, endpoint, now_s))

    def ended(self, now_s: float, fault: str = "") -> None:
        """The present leg has ended, if there is one."""
        if self.legs and not self.legs[-1].ended_s:
            self.legs[-1].ended_s = now_s
            self.legs[-1].fault = fault

    def counted(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """Counts of tokens as the engine told them, or as they were estimated where it did not."""
        self.prompt_tokens, self.completion_tokens, self.cached_tokens = prompt_tokens, completion_tokens, cached_tokens

    def tokens(self) -> dict[str, int]:
        """Counts of tokens that are known."""
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }
        return {name: count for name, count in counts.items() if count >= 0}

    def last(self, kind: str) -> Leg | None:
        """The last leg of a kind."""
        return next((leg for leg in reversed(self.legs) if leg.kind == kind), None)
