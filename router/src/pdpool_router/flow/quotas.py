"""PURE: what one tenant may ask for: requests a second, and requests at once.

Boundary: counting against `tenants[].requestsPerSecond` and `.concurrent`; the order of those who may is `fairness`.
The rate is a token bucket that holds one second's worth, so that a tenant may use its second at once.
"""

from __future__ import annotations


class Quota:
    """One tenant's account."""

    __slots__ = ("_at_s", "_tokens", "concurrent", "inflight", "rate_per_s")

    def __init__(self, *, rate_per_s: float, concurrent: int) -> None:
        self.inflight = 0
        self._tokens = 0.0
        self._at_s: float | None = None
        self.limit(rate_per_s=rate_per_s, concurrent=concurrent)

    def limit(self, *, rate_per_s: float, concurrent: int) -> None:
        """Sets the limits, 0: none; what is in flight goes on counting."""
        self.rate_per_s = rate_per_s
        self.concurrent = concurrent

    def enter(self, now_s: float) -> float:
        """Counts a request in; or the seconds until it may be asked again. 0: it is in, and `leave` must follow."""
        if self.concurrent and self.inflight >= self.concurrent:
            return 1.0
        if self.rate_per_s:
            burst = max(1.0, self.rate_per_s)
            # A bucket that nobody used yet is full.
            gained = burst if self._at_s is None else (now_s - self._at_s) * self.rate_per_s
            self._tokens = min(burst, self._tokens + gained)
            self._at_s = now_s
            if self._tokens < 1.0:
                return (1.0 - self._tokens) / self.rate_per_s
            self._tokens -= 1.0
        self.inflight += 1
        return 0.0

    def leave(self) -> None:
        """One request that was counted in has ended."""
        self.inflight -= 1
