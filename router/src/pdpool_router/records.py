"""Frozen records: a request as the scheduler sees it, endpoints, a snapshot, a decision.

Boundary: values only; no clock, no I/O, no counting. Why msgspec structs: they are made on the path of every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    hardware: str = ""
    """Name of its hardware profile; empty: not told."""
    kv_events: str = ""
    """Where it publishes KV events; empty: it is asked, or the usual port of its host."""
    kv_replay: str = ""
    """Where it sends them again."""
    event_ports: tuple[tuple[int, int | None], ...] = ()
    """Ports of both that it declares, by rank: where an engine that cannot be asked is heard."""
    authority: str = ""
    """`host:port` as in a URL, IPv6 hosts in brackets; follows from the two."""
    host_field: bytes = b""
    """The same as bytes; kept because each leg needs it."""

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = f"{host}:{self.port}"
        msgspec.structs.force_setattr(self, "authority", authority)
        msgspec.structs.force_setattr(self, "host_field", authority.encode())


class TokenKeys(Protocol):
    """The token ids of one prompt as keys (`kv.blocks.TokenChain`)."""

    tokens: int

    def keys(self, block_tokens: int) -> Sequence[int]:
        """One chained key for each whole block of so many tokens."""
        ...


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as keys of its prefixes; no word of it is kept."""

    keys: "list[int]"
    """One chained key for each whole chunk of its text."""
    whole: int
    """The key of the whole text."""
    text_bytes: int
    conversation: int = 0
    """The same for all turns of a conversation and seldom for two conversations; 0: not known."""
    opening_bytes: int = 0
    """Text up to the end of the conversation's first message, which others may share; 0: it cannot be told."""
    adapter: str = ""
    salt: str = ""
    ids: Any = None
    """`TokenKeys` of the token ids that the client gave; None: it gave text."""


class Match(msgspec.Struct, frozen=True):
    """How much of one prompt the endpoints hold."""

    tokens: int
    """Tokens of the prompt; an estimate unless `exact`."""
    cached: Mapping[str, int]
    """uid → leading tokens that it holds, fewer than all; absent: none is known of."""
    exact: bool = False
    """Counted on token ids, not estimated from text."""
    ranks: Mapping[str, int] = {}
    """uid → the data-parallel rank that holds it, where an endpoint has several."""
    version: int = 0
    """Of the knowledge that it was found in."""
    known: bool = False
    """All of the prompt's text was seen before, so that its ids would teach nothing."""


class Knowledge(Protocol):
    """What is known of prefixes (`kv.knowledge.Prefixes`)."""

    @property
    def version(self) -> int:
        """Another number whenever a match may be another."""
        ...

    def match(self, prompt: Prompt) -> Match:
        """How much of a prompt each endpoint holds, from its text (or its own ids)."""
        ...

    def match_ids(self, prompt: Prompt, ids: TokenKeys) -> Match:
        """The same from token ids that an engine told."""
        ...


class Load(msgspec.Struct):
    """What one endpoint has to do, and how fast it is, in the units of a choice; kept by `state.loads`."""

    uid: str
    requests: int = 0
    """Legs of ours in flight."""
    unstarted: int = 0
    """Legs of ours that it has not answered yet."""
    unstarted_tokens: int = 0
    """Prompt tokens that it must compute for them, as far as we can tell."""
    others: float = 0.0
    """Requests there that are not ours, as the engine reports them; where it reports none, what its peers have."""
    reported: bool = False
    """The engine's own figures are fresh."""
    fixed_ms: float = 5.0
    """For a prompt of any length."""
    wait_ms: float = 5.0
    """Until it begins with one prompt more, its fixed time for a prompt included."""
    token_ms: float = 0.1
    """To compute one token of a prompt."""
    pull_ms: float = 0.005
    """To pull one token's KV from another engine."""
    step_ms: float = 20.0
    """One token for each running request."""
    running_ms: float = 0.0
    """What running requests cost one request more: their number times the step."""
    recent_ms: float = 0.0
    """What it was given to compute lately, forgotten by half in every minute."""


class LocalPrefill(msgspec.Struct, frozen=True):
    """When the hop to prefill may be skipped (`routing.localPrefill`)."""

    max_uncached_tokens: int = 512
    """Tokens that decode may compute itself; 0: always hop."""
    min_cached_ratio: float = 0.8
    """Or so large a share of the prompt that it holds."""


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
    prompt: Prompt | None = None
    """Keys of its prompt; None: nobody can tell prefixes of it."""
    prompt_tokens: int = 0
    """Tokens of its prompt where nothing else tells; an estimate."""
    session: int = 0
    """A hash of the client's session (`routing.sessionHeader`); 0: it tells none."""


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
    loads: Mapping[str, Load] = {}
    """uid → load; absent: an idle endpoint of average speed."""
    knowledge: Any = None
    """`Knowledge` of prefixes; None: nothing is known."""
    local_prefill: LocalPrefill = LocalPrefill(0)


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
    """What `plan` decides, the way and the first endpoint on it; or what `place` does, the decode endpoint."""

    way: Way
    endpoint: Endpoint
    """The prefill endpoint of two legs; the only endpoint of one leg."""
    reason: str = ""
    """Why the prompt is computed where it is decoded."""
    prompt_tokens: int = 0
    """Tokens of the prompt, as far as can be told; 0: not told."""
    cached_tokens: int = 0
    """Those that the endpoint holds, as predicted."""
    predicted_ms: float = 0.0
    """Predicted time of the leg until the endpoint answers; 0: not predicted."""
    rank: int | None = None
    """The data-parallel rank that holds most of the prompt; None: any."""
    match: Match | None = None
    """What is known of the prompt's prefixes; None: nothing was asked."""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the endpoint must compute or pull."""
        return max(0, self.prompt_tokens - self.cached_tokens)
