"""Metric names of vLLM, once, with the names that older engines used.

Boundary: names only; reading is the planes' work. A metric that is absent under every name is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity and the names it is exposed under, newest first. Where several are present the first one counts."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The present name."""
        return self.names[0]


RUNNING: Final = Metric(("vllm:num_requests_running",))
"""Gauge: requests in the running batch."""
WAITING: Final = Metric(("vllm:num_requests_waiting",))
"""Gauge: requests that wait, for whatever reason."""
WAITING_BY_REASON: Final = Metric(("vllm:num_requests_waiting_by_reason",))
"""Gauge by `reason`: `capacity` waits for room, `deferred` for KV on its way."""
KV_FETCH_BY_STAGE: Final = Metric(("vllm:num_requests_kv_fetch_by_stage",))
"""Gauge by `stage` (waiting_to_start, in_progress, completed_waiting): requests with KV to pull; decode only."""
KV_USAGE: Final = Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))
"""Gauge, 0 to 1: KV blocks that a request or an unpulled transfer holds."""
PROMPT_TOKENS_BY_SOURCE: Final = Metric(("vllm:prompt_tokens_by_source_total",))
"""Counter by `source`: local_compute, local_cache_hit, external_kv_transfer."""
PREFIX_CACHE_QUERIES: Final = Metric(("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"))
"""Counter, tokens looked up in the prefix cache."""
PREFIX_CACHE_HITS: Final = Metric(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"))
"""Counter, tokens found in the prefix cache."""
INTER_TOKEN_LATENCY: Final = Metric(("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"))
"""Histogram, seconds between two tokens."""
QUEUE_TIME: Final = Metric(("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"))
"""Histogram, seconds a request waited before its first step."""
NIXL_BYTES: Final = Metric(("vllm:nixl_bytes_transferred",))
"""Histogram, bytes of one transfer; its sum is what decode has pulled."""
NIXL_SECONDS: Final = Metric(("vllm:nixl_xfer_time_seconds",))
"""Histogram, seconds of one transfer."""
NIXL_FAILED: Final = Metric(("vllm:nixl_num_failed_transfers_total",))
"""Counter, on decode: transfers that failed."""
NIXL_EXPIRED: Final = Metric(("vllm:nixl_num_kv_expired_reqs_total",))
"""Counter, on prefill: requests whose KV nobody pulled within the lease."""
NIXL_AFTER_EXPIRY: Final = Metric(("vllm:nixl_num_notifications_after_expiry_total",))
"""Counter, on prefill: pulls that ended after their lease did."""
CACHE_CONFIG: Final = Metric(("vllm:cache_config_info",))
"""Gauge whose labels hold block_size, num_gpu_blocks and the like."""
