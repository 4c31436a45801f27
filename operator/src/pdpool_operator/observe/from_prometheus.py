"""The measures of a pool as Prometheus tells them.

Boundary: which questions are asked, and what the answers mean for this pool; `prometheus` asks, `attribution` knows
whose a series is. An answer without a series of the pool is unknown, never zero.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from pdpool_api.engines.vllm import metrics as engine_metrics
from pdpool_api.names import Role
from pdpool_operator.autoscale import Measure
from pdpool_operator.observe import workload
from pdpool_operator.observe.attribution import Owners, distinct
from pdpool_operator.observe.gateway import LATENCIES, NAMES, PER_ENDPOINT, POOLED, per_endpoint
from pdpool_operator.observe.prometheus import Prometheus, Series, UnreadError, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from pdpool_operator.autoscale import Limits
    from pdpool_operator.observe.readings import Readings
    from pdpool_operator.records import Observed

GPU: Final = {
    Measure.GPU_TENSOR: ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0),
    Measure.GPU_DRAM: ("DCGM_FI_PROF_DRAM_ACTIVE", 1.0),
    Measure.GPU_UTILIZATION: ("DCGM_FI_DEV_GPU_UTIL", 100.0),
}
"""Names of NVIDIA's DCGM exporter, and what stands for all of a GPU."""
ENGINE: Final = {
    Measure.WAITING: (engine_metrics.WAITING.names, Owners.total),
    Measure.RUNNING: (engine_metrics.RUNNING.names, Owners.total),
    Measure.KV_USAGE: (engine_metrics.KV_USAGE.names, Owners.largest),
}
RATE_WINDOW: Final = "2m"


class FromPrometheus:
    """One reading of one pool."""

    def __init__(self, prometheus: Prometheus, observed: Observed, limits: Limits, percentile: float) -> None:
        self._prometheus = prometheus
        self._observed = observed
        self._limits = limits
        self._percentile = percentile
        namespace = observed.ref.namespace
        self._namespace = quoted(namespace)
        engines = [pod for role in limits.engines for pod in workload.pods(observed, role)]
        self._engines = Owners(namespace, engines)
        self._named = Owners(namespace, engines, by_address=False)
        self._routers = Owners(namespace, workload.pods(observed, Role.ROUTER))

    async def read(self, needs: Collection[Measure], readings: Readings) -> None:
        """Takes what Prometheus tells into the readings; faults too, none is raised."""
        asked: list[Coroutine[None, None, None]] = []
        if {*PER_ENDPOINT, *POOLED, *LATENCIES}.intersection(needs):
            asked.append(self._unheard(readings))
        for measure in sorted(needs):
            if measure in ENGINE:
                asked.append(self._of_engines(measure, readings))
            elif measure in GPU:
                asked.append(self._of_gpus(measure, readings))
            elif measure in LATENCIES:
                asked.append(self._latency(measure, readings))
            elif measure in (*PER_ENDPOINT, *POOLED):
                asked.append(self._of_routers(measure, readings))
            else:
                asked += [self._query(role, readings) for role in self._limits.engines]
        await asyncio.gather(*asked)

    async def _of_engines(self, measure: Measure, readings: Readings) -> None:
        of_engine, combined = ENGINE[measure]
        missing = {
            pod["metadata"]["name"]
            for role in self._limits.engines
            for pod in workload.pods(self._observed, role)
            if workload.is_ready(pod)
        }
        found: dict[str, float] = {}
        try:
            for name in of_engine:  # the newest name first; older ones only for pods that do not have it
                series = await self._prometheus.vector(f"{name}{{namespace={self._namespace}}}")
                older = combined(self._engines, [each for each in series if _is_named(each, name)])
                found = {**older, **found}
                if missing <= found.keys():
                    break
        except UnreadError as fault:
            readings.fault([measure], str(fault))
        for pod, value in found.items():
            readings.tell(pod, measure, value)
        if all(map(math.isnan, found.values())):
            self._nothing(measure, of_engine[0], readings)

    async def _of_gpus(self, measure: Measure, readings: Readings) -> None:
        name, whole = GPU[measure]
        query = f"{name}{{exported_namespace={self._namespace}}} or {name}{{namespace={self._namespace}}}"
        try:
            series = await self._prometheus.vector(query)
            # An exporter's address is that of its node, and of no pod.
            found = self._named.largest(series)
            exist = bool(series) or bool(found) or bool(await self._prometheus.vector(f"count({name})"))
        except UnreadError as fault:
            readings.fault([measure], str(fault))
            return
        for pod, value in found.items():
            readings.tell(pod, measure, value / whole)
        for role in self._limits.engines:
            of_role = {pod["metadata"]["name"] for pod in workload.pods(self._observed, role)}
            if exist and of_role and not of_role & found.keys():
                readings.unattributed.add(role)
        if not exist:
            self._nothing(measure, name, readings)

    async def _of_routers(self, measure: Measure, readings: Readings) -> None:
        name = NAMES[measure]
        try:
            series = await self._prometheus.vector(f"{name}{{namespace={self._namespace}}}")
        except UnreadError as fault:
            readings.fault([measure], str(fault))
            return
        ours = distinct((each for each in series if self._routers.of(each.labels) is not None), own="endpoint")
        if measure in PER_ENDPOINT:
            for pod, value in per_endpoint(self._engines, ((each.labels, each.value) for each in ours)).items():
                readings.tell(pod, measure, value)
        elif ours:
            readings.tell_of_routers(measure, sum(each.value for each in ours))
        if not ours:
            self._nothing(measure, name, readings)

    async def _unheard(self, readings: Readings) -> None:
        """Which routers it does not know: each of those that it does tells its queue."""
        serving = {str(pod["metadata"]["name"]) for pod in workload.serving(self._observed, Role.ROUTER)}
        try:
            series = await self._prometheus.vector(f"{NAMES[Measure.QUEUED]}{{namespace={self._namespace}}}")
        except UnreadError:
            series = []
        readings.unheard |= serving - {self._routers.of(each.labels) for each in series}

    async def _latency(self, measure: Measure, readings: Readings) -> None:
        pods = "|".join(sorted(pod["metadata"]["name"] for pod in workload.pods(self._observed, Role.ROUTER)))
        selector = f"namespace={self._namespace},pod=~{quoted(pods)}"
        rate = f"sum by (le) (rate({NAMES[measure]}{{{selector}}}[{RATE_WINDOW}]))"
        try:
            series = await self._prometheus.vector(f"histogram_quantile({self._percentile / 100:g}, {rate})")
        except UnreadError as fault:
            readings.fault([measure], str(fault))
            return
        if len(series) == 1:
            readings.tell_of_routers(measure, series[0].value * 1000)

    async def _query(self, role: Role, readings: Readings) -> None:
        queries = [each.query for each in self._limits.roles[role].targets if each.query]
        for query in queries:
            filled = query
            for key, value in (
                ("{namespace}", self._observed.ref.namespace),
                ("{pool}", self._observed.ref.name),
                ("{role}", role.value),
            ):
                filled = filled.replace(key, value)
            try:
                series = await self._prometheus.vector(filled)
            except UnreadError as fault:
                readings.query_faults[role] = str(fault)
                continue
            if len(series) == 1 and not math.isnan(series[0].value):
                readings.queries[role] = series[0].value
            else:
                what = "no number" if len(series) <= 1 else f"{len(series)} series instead of one"
                readings.query_faults[role] = f"{self._prometheus.url}: the query gives {what}"

    def _nothing(self, measure: Measure, name: str, readings: Readings) -> None:
        readings.fault([measure], f"{self._prometheus.url}: no series {name} of this pool")


def _is_named(series: Series, name: str) -> bool:
    """True unless a series says that it has another name: some answer more than was asked."""
    return series.labels.get("__name__", name) == name
