"""What an engine's `/metrics` says, as numbers to subtract: the proof that KV moved, from where to where.

Boundary: reads and sums series of vLLM's names; both the real engine and the stand-in publish them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

PULLED_BYTES = "vllm:nixl_bytes_transferred_sum"
PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"
EXTERNAL = "external_kv_transfer"
LOCAL_COMPUTE = "local_compute"
LOCAL_CACHE = "local_cache_hit"

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Reading:
    """Every series of one engine at one moment."""

    series: Mapping[SeriesKey, float]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series of a name that carry these labels; 0 where there is none yet."""
        wanted = set(labels.items())
        return sum(number for (found, has), number in self.series.items() if found == name and wanted <= has)

    def has(self, name: str) -> bool:
        """Whether any series of that name is published."""
        return any(found == name for found, _ in self.series)

    def grown(self, since: Reading, name: str, **labels: str) -> float:
        """By how much the sum grew since an earlier reading."""
        return self.total(name, **labels) - since.total(name, **labels)


def parsed(text: str) -> Reading:
    """A reading of Prometheus text."""
    series: dict[SeriesKey, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series[sample.name, frozenset(sample.labels.items())] = sample.value
    return Reading(series)


def read(url: str, timeout_s: float = 10.0) -> Reading:
    """Read the metrics of one engine (or router admin port) at its base URL."""
    answer = httpx.get(f"{url}/metrics", timeout=timeout_s)
    answer.raise_for_status()
    return parsed(answer.text)
