"""Admission by `limits.maxConcurrent`.

Boundary: it admits or refuses; whom a request goes to is the scheduler's business.
"""

from __future__ import annotations

from pdpool_router.faults import Saturated


class Admission:
    """Counts the requests in hand."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.admitted = 0

    def enter(self) -> None:
        """Admits one request; `leave` must follow.

        Raises:
            Saturated: the limit is reached.
        """
        if self.admitted >= self.max_concurrent:
            raise Saturated("The router has as many requests in hand as it may.")
        self.admitted += 1

    def leave(self) -> None:
        """One admitted request has ended."""
        self.admitted -= 1
