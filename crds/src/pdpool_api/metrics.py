"""Every metric of operator and router: its whole name, kind, labels and meaning, each once.

Boundary: a catalogue; counting and exposing is the planes'. Dashboard, alerts and the reference page are made from it,
and tests hold what the planes expose against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pdpool_api.names import OPERATOR_METRICS_PREFIX, ROUTER_METRICS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(StrEnum):
    """What a metric's values mean to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of series."""

    name: str
    """As queries name it, with prefix and, on a counter, `_total`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _router(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(f"{ROUTER_METRICS_PREFIX}{name}", kind, text, labels)


def _operator(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(f"{OPERATOR_METRICS_PREFIX}{name}", kind, text, labels)


# --- the router ----------------------------------------------------------------------------------------------------
REQUESTS: Final = _router("requests_total", Kind.COUNTER, "Requests, by model and status.", "model", "code")
TTFT: Final = _router(
    "ttft_seconds", Kind.HISTOGRAM, "From the arrival of a request to the first byte of its answer's body."
)
ITL: Final = _router("itl_seconds", Kind.HISTOGRAM, "Gap between two reads of a stream.")
E2E: Final = _router("e2e_seconds", Kind.HISTOGRAM, "From the arrival of a request to the end of its answer.")
OVERHEAD: Final = _router("overhead_seconds", Kind.HISTOGRAM, "The router's own part of the time to the first byte.")
HANDOFF: Final = _router("handoff_seconds", Kind.HISTOGRAM, "The prefill leg: request written to answer whole.")
INFLIGHT: Final = _router("inflight", Kind.GAUGE, "Requests in flight, by endpoint.", "endpoint", "role")
UNSTARTED: Final = _router(
    "unstarted", Kind.GAUGE, "Requests sent to an endpoint that have not begun to answer.", "endpoint", "role"
)
UNSTARTED_PROMPT_TOKENS: Final = _router(
    "unstarted_prompt_tokens", Kind.GAUGE, "Prompt tokens not yet prefilled, an estimate.", "endpoint", "role"
)
QUEUED: Final = _router("queued", Kind.GAUGE, "Requests that wait for room, or for the pool to wake.", "model")
ENDPOINTS: Final = _router("endpoints", Kind.GAUGE, "Endpoints, by role and state.", "role", "state")
STALE_ENDPOINTS: Final = _router("stale_endpoints", Kind.GAUGE, "Endpoints whose engine metrics are old or unknown.")
RETRIES: Final = _router("retries_total", Kind.COUNTER, "Legs sent again, by what was tried again.", "leg")
LOCAL_PREFILL: Final = _router(
    "local_prefill_total",
    Kind.COUNTER,
    "Prompts computed by decode although two legs could have served them.",
    "reason",
)
TRUNCATED_STREAMS: Final = _router(
    "truncated_streams_total", Kind.COUNTER, "Streams that broke after a byte was forwarded."
)
ORPHANED_PREFILLS: Final = _router(
    "orphaned_prefills_total", Kind.COUNTER, "Prefill answers whose KV no decode engine pulled."
)
TOKENS: Final = _router("tokens_total", Kind.COUNTER, "Tokens: prompt, completion, cached.", "kind")
PREFIX_HIT_TOKENS: Final = _router(
    "prefix_hit_tokens_total", Kind.COUNTER, "Prompt tokens that the chosen prefill endpoint held already."
)
PREFIX_QUERY_TOKENS: Final = _router(
    "prefix_query_tokens_total", Kind.COUNTER, "Prompt tokens that were looked up in the index."
)
KV_INDEX_BLOCKS: Final = _router("kv_index_blocks", Kind.GAUGE, "KV blocks in the index, by endpoint.", "endpoint")
KV_INDEX_EVICTIONS: Final = _router(
    "kv_index_evictions_total", Kind.COUNTER, "Blocks that left the index because it was full."
)
KV_EVENT_GAPS: Final = _router("kv_event_gaps_total", Kind.COUNTER, "Gaps in engines' KV events that asked for replay.")
KV_EVENTS_MISSING: Final = _router(
    "kv_events_missing", Kind.GAUGE, "1 while an endpoint that should publish KV events does not."
)
INDEX_APPROXIMATE: Final = _router(
    "index_approximate", Kind.GAUGE, "1 while the index rests on the router's own decisions only."
)
PREDICTED_CACHED_TOKENS: Final = _router(
    "predicted_cached_tokens_total", Kind.COUNTER, "Cached tokens that the index expected."
)
ACTUAL_CACHED_TOKENS: Final = _router(
    "actual_cached_tokens_total", Kind.COUNTER, "Cached tokens that prefill reported for the same requests."
)
PREDICTION_ERROR: Final = _router(
    "prediction_error_seconds", Kind.HISTOGRAM, "How far the predicted time to the first token was off."
)

# --- the operator --------------------------------------------------------------------------------------------------
RECONCILE: Final = _operator("reconcile_seconds", Kind.HISTOGRAM, "Duration of one reconcile of one pool.")
RECONCILE_ERRORS: Final = _operator(
    "reconcile_errors_total", Kind.COUNTER, "Reconciles that did not do all they planned."
)
CHILD_WRITES: Final = _operator("child_writes_total", Kind.COUNTER, "Applies and deletes of children.")
WATCH_RESTARTS: Final = _operator(
    "watch_restarts_total", Kind.COUNTER, "Ends of the event loop that were followed by a new one."
)
LEADING: Final = _operator("leading", Kind.GAUGE, "1 while this replica acts.")
POOLS: Final = _operator("pools", Kind.GAUGE, "Pools known.")
DESIRED_REPLICAS: Final = _operator(
    "desired_replicas", Kind.GAUGE, "Replicas that a role should have.", "namespace", "pool", "role"
)
DEMAND: Final = _operator(
    "demand", Kind.GAUGE, "Replicas that one signal asks for.", "namespace", "pool", "role", "signal"
)
SCALING_ACTIVE: Final = _operator(
    "scaling_active", Kind.GAUGE, "1 while an autoscaled role has a signal to act on.", "namespace", "pool", "role"
)

TICK: Final = _operator(
    "tick_seconds", Kind.HISTOGRAM, "Duration of one decision about the sizes of one pool, readings aside."
)

CATALOGUE: Final[Mapping[str, Metric]] = {
    each.name: each for each in tuple(globals().values()) if isinstance(each, Metric)
}
"""Every metric by its name, in the order above."""
