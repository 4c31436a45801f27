"""The operator's real tick before a simulated pool.

Boundary: from `Seen` to an `Observation` as `observe` would make it, from a `Decision` to sizes. Each replica tells
its share of the pool's sums.
"""

from __future__ import annotations

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


class Tick:
    """`autoscale.tick` with one of two sets of signals."""

    interval_s = 15

    def __init__(self, bounds: Bounds, *, rates: bool) -> None:
        """`rates`: sizes follow the rates of tokens (PrometheusQuery), and queues only as a second opinion."""
        self._memory = Memory()
        self._rates = rates
        slo, can = bounds.slo, bounds.rates
        queue = Target(BY_TYPE["QueueDepth"], 4.0)
        ttft = Target(BY_TYPE["Ttft"], slo.ttft_s * 1000)
        backlog = Target(BY_TYPE["QueuedPromptTokens"], can.prefill_tokens_s * _BACKLOG_S)
        usage = Target(BY_TYPE["KvCacheUsage"], 0.8)
        itl = Target(BY_TYPE["Itl"], slo.itl_s * 1000)

        def by_rate(tokens_s: float) -> Target:
            return Target(BY_TYPE["PrometheusQuery"], tokens_s * _HEADROOM, "sum(rate(pdpool_router_tokens_total[1m]))")

        signals = {
            Role.PREFILL: (backlog, by_rate(can.prefill_tokens_s)) if rates else (queue, ttft),
            Role.DECODE: (usage, by_rate(can.decode_tokens_s)) if rates else (queue, usage, itl),
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
                for role, targets in signals.items()
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
