"""Frozen records: a request as the scheduler sees it, endpoints, a snapshot, a decision.

Boundary: values only; no clock, no I/O, no counting. Why msgspec structs: they are made on the path of every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from pdpool_api.names import Role


class Endpoint(msgspec.Struct, frozen=True):
    """The address of one incarnation of a replica that the router may pick."""

    uid: str
    """Identity of this life of the replica: a pod's uid; load accounting belongs to it."""
    name: str
    """What metrics call it: the pod's name, or host:port."""
    role: Role
    host: str
    """Host name or IP address; an IPv6 address without brackets."""
    port: int
    revision: str = ""
    """What prefill and decode must share; only endpoints of one revision are paired."""
    draining: bool = False
    """It finishes what it has and gets nothing new."""
    authority: str = ""
    """`host:port` as in a URL, IPv6 hosts in brackets; follows from the two."""
    host_field: bytes = b""
    """The same as bytes; kept because each leg needs it."""

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = f"{host}:{self.port}"
        msgspec.structs.force_setattr(self, "authority", authority)
        msgspec.structs.force_setattr(self, "host_field", authority.encode())


class Request(msgspec.Struct, frozen=True):
    """What a choice may depend on."""

    model: str
    prompt_bytes: int
    """Size of the body."""
    whole_reason: str = ""
    """The body's field that two legs cannot serve; empty: two legs can."""
    revision: str | None = None
    """What the prefill endpoint was of, once there was one: decode must be of the same."""
    failed: frozenset[str] = frozenset()
    """uids of endpoints that failed this very request."""


class Snapshot(msgspec.Struct, frozen=True):
    """A view of endpoints and load at one moment; valid until the code that took it awaits."""

    prefill: tuple[Endpoint, ...]
    decode: tuple[Endpoint, ...]
    aggregated: tuple[Endpoint, ...]
    inflight: Mapping[str, int]
    """uid → requests in flight; absent: none."""
    local_prefills: Mapping[str, int]
    """uid of a decode endpoint → prompts that it computes itself because no prefill could be had; absent: none."""
    max_local_prefills: int
    local_allowed: bool
    """`routing.onPrefillUnavailable` is `Local`."""
    one_revision: bool = False
    """All endpoints are known to be of one revision, so that any pair fits."""


class Life(StrEnum):
    """What the pods of a pool's engines say of it, whether they serve or not."""

    ABSENT = "absent"
    """There is none that stays: the pool is at zero."""
    STARTING = "starting"
    """One of them starts for the first time."""
    STARTED = "started"
    """All have started once."""


class Way(StrEnum):
    """How a request is served; the value is that of the answer's header `x-pdpool-prefill`."""

    REMOTE = "remote"
    """Two legs: prefill computes the prompt, decode pulls its KV."""
    LOCAL = "local"
    """One leg: decode computes the prompt although two legs could have served it."""
    NONE = "none"
    """One leg by nature: an aggregated engine, or a request that two legs cannot serve."""


class Unplaced(StrEnum):
    """Why nothing was chosen."""

    NO_ENDPOINT = "no_endpoint"
    NO_PREFILL = "no_prefill"
    LOCAL_PREFILLS_FULL = "local_prefills_full"


class Decision(msgspec.Struct, frozen=True):
    """What `plan` decides: the way, and the first endpoint on it."""

    way: Way
    endpoint: Endpoint
    """The prefill endpoint of two legs; the only endpoint of one leg."""
    reason: str = ""
    """Why the prompt is computed where it is decoded."""
