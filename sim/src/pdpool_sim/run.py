"""One run: a workload through a rule on a pool; and what it comes to.

Boundary: from workload, rule and seed to figures. Equal arguments give equal figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from pdpool_sim.clock import Clock
from pdpool_sim.gaps import Gaps
from pdpool_sim.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdpool_sim.pool import Outcome, PoolShape
    from pdpool_sim.rule import Rule, Setting
    from pdpool_sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count, as `spec.slo` of a pool."""

    ttft_s: float
    itl_s: float
    """For the mean of the request's own gaps."""

    def met(self, outcome: Outcome) -> bool:
        """Whether a finished request met it."""
        return outcome.ttft_s <= self.ttft_s and outcome.tpot_s <= self.itl_s


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run comes to."""

    requests: int
    hit_rate: float
    """Prompt tokens that no engine computed, as a share of all prompt tokens."""
    work_spread: float
    """Busiest prefill engine's seconds at work over the mean engine's."""
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p99_s: float
    attainment: float
    """Share of requests inside the SLO."""
    goodput_rps: float
    """Requests inside the SLO per second of arrivals."""
    local_share: float
    """Share of requests whose prompt was computed where it was decoded."""
    preemptions: int


def simulate(
    workload: Workload,
    shape: PoolShape,
    make_rule: Callable[[Setting], Rule],
    slo: Slo,
    *,
    seed: int = 0,
) -> Figures:
    """Runs a workload to its end."""
    return figures(workload, finished_pool(workload, shape, make_rule, seed=seed), slo)


def finished_pool(workload: Workload, shape: PoolShape, make_rule: Callable[[Setting], Rule], *, seed: int = 0) -> Pool:
    """The pool after a workload has run to its end."""
    clock = Clock()
    pool = Pool(clock, shape, workload.block_tokens, make_rule, Random(seed))  # noqa: S311 - reproducible by its seed
    pool.offer(workload)
    clock.run()
    return pool


def figures(workload: Workload, pool: Pool, slo: Slo) -> Figures:
    """What a pool that has run to its end comes to."""
    outcomes = pool.outcomes
    ttfts = sorted(outcome.ttft_s for outcome in outcomes)
    work = [engine.busy_s for engine in pool.prefill.engines]
    gaps = Gaps()
    for engine in pool.decode.engines:
        gaps.merge(engine.gaps)
    met = sum(1 for outcome in outcomes if slo.met(outcome))
    mean_work = sum(work) / len(work)
    return Figures(
        requests=len(outcomes),
        hit_rate=sum(each.cached_tokens for each in outcomes) / sum(each.call.prompt_tokens for each in outcomes),
        work_spread=max(work) / mean_work if mean_work else 1.0,
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p99_s=quantile(ttfts, 0.99),
        itl_p99_s=gaps.quantile(0.99),
        attainment=met / len(outcomes),
        goodput_rps=met / workload.span_s if workload.span_s else 0.0,
        local_share=sum(1 for each in outcomes if not each.prefill_uid) / len(outcomes),
        preemptions=sum(engine.preemptions for engine in (*pool.prefill.engines, *pool.decode.engines)),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that so large a share of ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
