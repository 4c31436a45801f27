"""What the routers of a pool say, from the pages of their admin ports.

Boundary: no I/O. Each router knows its own requests only, so counts are summed over the routers that answered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from pdpool_api.names import ROUTER_METRICS_PREFIX
from pdpool_operator.autoscale import Measure
from pdpool_operator.observe.latency import Buckets, Latency

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pdpool_operator.observe.attribution import Owners
    from pdpool_operator.observe.exposition import Page, Sample
    from pdpool_operator.observe.readings import Readings

NAMES: Final = {
    Measure.UNSTARTED: f"{ROUTER_METRICS_PREFIX}unstarted",
    Measure.UNSTARTED_PROMPT_TOKENS: f"{ROUTER_METRICS_PREFIX}unstarted_prompt_tokens",
    Measure.QUEUED: f"{ROUTER_METRICS_PREFIX}queued",
    Measure.INFLIGHT: f"{ROUTER_METRICS_PREFIX}inflight",
    Measure.SERVED_TOKENS: f"{ROUTER_METRICS_PREFIX}tokens_total",
    Measure.TTFT_MS: f"{ROUTER_METRICS_PREFIX}ttft_seconds_bucket",
    Measure.ITL_MS: f"{ROUTER_METRICS_PREFIX}itl_seconds_bucket",
}
PER_ENDPOINT: Final = (Measure.UNSTARTED, Measure.UNSTARTED_PROMPT_TOKENS)
POOLED: Final = (Measure.QUEUED, Measure.INFLIGHT, Measure.SERVED_TOKENS)
LATENCIES: Final = (Measure.TTFT_MS, Measure.ITL_MS)


class Gateway:
    """Remembers of the routers what only differences tell."""

    def __init__(self) -> None:
        self._latencies = {measure: Latency() for measure in LATENCIES}

    def read(
        self,
        pages: Mapping[str, Page],
        wanted: Collection[Measure],
        owners: Owners,
        readings: Readings,
        *,
        now: float,
        percentile: float,
    ) -> None:
        """Takes the pages of the routers that answered, by incarnation, into the readings."""
        for measure in POOLED:
            if measure not in wanted:
                continue
            told = {router: page.total(NAMES[measure]) for router, page in pages.items()}
            totals = [each for each in told.values() if each is not None]
            readings.tell_of_routers(measure, math.fsum(totals) if totals else None)
            readings.unheard |= {router for router, each in told.items() if each is None}
        for measure in PER_ENDPOINT:
            if measure in wanted:
                samples = [each for page in pages.values() for each in page.samples(NAMES[measure])]
                for pod, value in per_endpoint(owners, ((each.labels, each.value) for each in samples)).items():
                    readings.tell(pod, measure, value)
        for measure in LATENCIES:
            if measure in wanted:
                histograms = {router: _buckets(page.samples(NAMES[measure])) for router, page in pages.items()}
                latency_ms = self._latencies[measure].percentile_ms(now, histograms, percentile)
                readings.tell_of_routers(measure, latency_ms)


def per_endpoint(owners: Owners, told: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """By pod, the sum of what routers say of it; endpoints that are no pod of the pool are left out.

    A scraper that has a label `endpoint` of its own calls ours `exported_endpoint`.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for labels, value in told:
        name = labels.get("exported_endpoint") or labels.get("endpoint", "")
        if (pod := owners.endpoint(name)) is not None:
            found[pod] += value
    return dict(found)


def _buckets(samples: Iterable[Sample]) -> Buckets:
    found: Buckets = {}
    for each in samples:
        try:
            bound = float(each.labels.get("le", ""))
        except ValueError:
            continue
        if not math.isnan(each.value):
            found[bound] = found.get(bound, 0.0) + each.value
    return found
