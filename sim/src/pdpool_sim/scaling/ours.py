"""The operator's real tick before a simulated pool.

Boundary: from `Seen` to an `Observation` as `observe` would make it, from a `Decision` to sizes. Each replica tells
its share of the pool's sums; whether a prefill engine computes at the moment of a reading is chance, by its load.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_operator.autoscale import (
    Limits,
    Measure,
    Memory,
    Observation,
    PodReading,
    RoleLimits,
    RoleReading,
    Target,
    tick,
)
from pdpool_operator.autoscale.signals import BY_TYPE

if TYPE_CHECKING:
    from pdpool_sim.scaling.replicas import Replicas
    from pdpool_sim.scaling.scaler import Bounds, Seen

_HEADROOM: Final = 0.9
"""Share of what a replica can do that is planned for."""
_BACKLOG_S: Final = 120.0
"""Prompts of so many seconds may stand before a replica: a line that pods on their way will take need not buy more."""


class Signals(StrEnum):
    """What sizes follow."""

    DEFAULT = "defaults"
    """What a role has that names none: queues, and on decode KV in use."""
    SLO = "queues and SLO"
    """The same, and the latencies of the SLO."""
    RATES = "token rates"
    """Rates of tokens (PrometheusQuery), and queues only as a second opinion."""


class Tick:
    """`autoscale.tick` with one of three sets of signals."""

    interval_s = 15

    def __init__(self, bounds: Bounds, *, signals: Signals) -> None:
        """`signals`: see `Signals`."""
        self._memory = Memory()
        self._chance = Random(0)  # noqa: S311 - reproducible
        slo, can = bounds.slo, bounds.rates
        queue = Target(BY_TYPE["QueueDepth"], 4.0)
        ttft = Target(BY_TYPE["Ttft"], slo.ttft_s * 1000)
        backlog = Target(BY_TYPE["QueuedPromptTokens"], can.prefill_tokens_s * _BACKLOG_S)
        usage = Target(BY_TYPE["KvCacheUsage"], 0.8)
        itl = Target(BY_TYPE["Itl"], slo.itl_s * 1000)

        def by_rate(tokens_s: float) -> Target:
            return Target(BY_TYPE["PrometheusQuery"], tokens_s * _HEADROOM, "sum(rate(pdpool_router_tokens_total[1m]))")

        targets_of = {
            Signals.DEFAULT: ((queue,), (queue, usage)),
            Signals.SLO: ((queue, ttft), (queue, usage, itl)),
            Signals.RATES: ((backlog, by_rate(can.prefill_tokens_s)), (usage, by_rate(can.decode_tokens_s))),
        }
        self._limits = Limits(
            roles={
                role: RoleLimits(
                    bounds.least,
                    bounds.most,
                    targets=targets,
                    down_window_s=300,
                    gpus=1,
                )
                for role, targets in zip((Role.PREFILL, Role.DECODE), targets_of[signals], strict=True)
            },
            interval_s=self.interval_s,
        )

    def sizes(self, seen: Seen) -> tuple[int, int]:
        """See `Scaler.sizes`."""
        decision = tick(self._observed(seen), self._memory, self._limits, seen.now)
        self._memory = decision.memory
        return decision.roles[Role.PREFILL].size, decision.roles[Role.DECODE].size

    def _observed(self, seen: Seen) -> Observation:
        flows = seen.flows
        if flows is None:
            return Observation({Role.PREFILL: _reading(seen.prefill), Role.DECODE: _reading(seen.decode)})
        prefill = _reading(
            seen.prefill,
            {
                Measure.WAITING: flows.prefill_waiting,
                Measure.UNSTARTED: flows.prefill_waiting,
                Measure.UNSTARTED_PROMPT_TOKENS: flows.prefill_waiting * seen.prompt_tokens,
            },
            query=flows.prompt_rate,
        )
        prefill = replace(prefill, pods=tuple(self._at_work(pod, flows.prefill_busy) for pod in prefill.pods))
        decode = _reading(
            seen.decode,
            {
                Measure.WAITING: flows.decode_waiting,
                Measure.UNSTARTED: flows.decode_waiting,
                Measure.RUNNING: flows.decode_running,
            },
            shares={Measure.KV_USAGE: flows.kv_usage},
            # Every request makes its answer in the end: the rate that comes, not the one that is got through.
            query=flows.arrived * seen.output_tokens,
        )
        gateway = {
            Measure.QUEUED: 0.0,
            Measure.INFLIGHT: flows.prefill_waiting + flows.decode_running + flows.decode_waiting,
            Measure.TTFT_MS: flows.ttft_s * 1000,
            Measure.ITL_MS: flows.itl_s * 1000,
        }
        return Observation({Role.PREFILL: prefill, Role.DECODE: decode}, gateway)

    def _at_work(self, pod: PodReading, busy: float) -> PodReading:
        if not pod.ready:
            return pod
        return replace(pod, values={**pod.values, Measure.RUNNING: float(self._chance.random() < busy)})


def _reading(
    replicas: Replicas,
    sums: dict[Measure, float] | None = None,
    *,
    shares: dict[Measure, float] | None = None,
    query: float | None = None,
) -> RoleReading:
    count = max(1, len(replicas.ready))
    values = {measure: total / count for measure, total in (sums or {}).items()} | (shares or {})
    pods = [
        PodReading(name, start_s=replicas.start_s if started else None, values=values)
        for name, started in replicas.ready
    ]
    pods += [PodReading(name, ready=False) for name, _ in replicas.starting]
    pods += [PodReading(f"pending-{n}", ready=False, unschedulable=True) for n in range(replicas.pending)]
    return RoleReading(replicas.wanted, tuple(pods), query)
