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
KV_USAGE: Final = Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))
"""Gauge, 0 to 1: KV blocks that a request or an unpulled transfer holds."""
TRANSFERS: Final = Metric(("vllm:nixl_xfer_time_seconds_count",))
"""Count of a histogram, of decode: transfers of KV that ended well."""
TRANSFER_SECONDS: Final = Metric(("vllm:nixl_xfer_time_seconds_sum",))
"""Sum of that histogram: seconds that they took."""
TRANSFER_BYTES: Final = Metric(("vllm:nixl_bytes_transferred_sum",))
"""Sum of a histogram: bytes that they moved."""
FAILED_TRANSFERS: Final = Metric(("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_transfers"))
"""Counter, of decode: transfers that failed."""
EXPIRED_TRANSFERS: Final = Metric(("vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_kv_expired_reqs"))
"""Counter, of prefill: requests whose KV was given up before decode pulled it."""
CACHE_CONFIG: Final = Metric(("vllm:cache_config_info",))
"""Information: the configuration of the KV cache as labels, among them `block_size`."""
PATH: Final = "/metrics"
