"""Requests in flight per incarnation of an endpoint.

Boundary: counting; who is chosen is the scheduler's business. Why per uid: names and addresses are used again, and a
new life of a replica must start at 0. A count is never negative and ends at 0, because the only way to change it is a
`Lease` that is released once.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_router.records import Endpoint


class Lease(msgspec.Struct, eq=False):
    """One request's place at an endpoint; `release` any number of times counts once."""

    _counts: dict[str, int]
    _uid: str
    _held: bool = True

    def release(self) -> None:
        """Gives the place back."""
        if not self._held:
            return
        self._held = False
        left = self._counts[self._uid] - 1
        if left:
            self._counts[self._uid] = left
        else:
            del self._counts[self._uid]


class Inflight:
    """Counts of requests, and of prompts that decode engines compute for want of a prefill."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._local_prefills: dict[str, int] = {}
        self.requests: Mapping[str, int] = MappingProxyType(self._requests)
        self.local_prefills: Mapping[str, int] = MappingProxyType(self._local_prefills)

    def reserve(self, endpoint: Endpoint) -> Lease:
        """One request more at an endpoint."""
        counts, uid = self._requests, endpoint.uid
        counts[uid] = counts.get(uid, 0) + 1
        return Lease(counts, uid)

    def reserve_local_prefill(self, endpoint: Endpoint) -> Lease:
        """One prompt more that a decode endpoint computes itself."""
        counts, uid = self._local_prefills, endpoint.uid
        counts[uid] = counts.get(uid, 0) + 1
        return Lease(counts, uid)
