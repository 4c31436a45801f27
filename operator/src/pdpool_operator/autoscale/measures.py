"""What can be measured of a pool, by whom it is told, and how the readings of one moment look.

Boundary: pure; shapes only. Absent is unknown, never zero: a mapping holds what was read, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.names import Role


class Source(StrEnum):
    """Who tells a measure."""

    ENGINE = "engines"
    GATEWAY = "routers"
    GPU = "GPU metrics"
    QUERY = "query"


class Measure(StrEnum):
    """A quantity."""

    # of one pod, told by its engine
    WAITING = "waiting"
    """Requests that wait."""
    RUNNING = "running"
    """Requests in the running batch."""
    KV_USAGE = "kv_usage"
    """KV blocks in use, 0 to 1."""
    # of one pod, told by the routers
    UNSTARTED = "unstarted"
    """Requests that were sent to the pod and have not answered a byte."""
    UNSTARTED_PROMPT_TOKENS = "unstarted_prompt_tokens"
    """Prompt tokens of these requests, as the routers estimate them."""
    # of one pod, told by an exporter of GPU metrics: ratios from 0 to 1
    GPU_TENSOR = "gpu_tensor"
    GPU_DRAM = "gpu_dram"
    GPU_UTILIZATION = "gpu_utilization"
    # of the pool, told by the routers
    QUEUED = "queued"
    """Requests that no engine has yet."""
    INFLIGHT = "inflight"
    """Requests that an engine has, over all endpoints."""
    SERVED_TOKENS = "served_tokens"
    """Tokens served since the routers began; only its changes mean something."""
    TTFT_MS = "ttft_ms"
    """Time to the first token, at the percentile of the SLO."""
    ITL_MS = "itl_ms"
    """Gap between two tokens, at the percentile of the SLO."""
    # of one role, told by Prometheus
    QUERY = "query"
    """The scalar of the role's query."""


_SOURCES: Final = {
    Source.ENGINE: (Measure.WAITING, Measure.RUNNING, Measure.KV_USAGE),
    Source.GPU: (Measure.GPU_TENSOR, Measure.GPU_DRAM, Measure.GPU_UTILIZATION),
    Source.QUERY: (Measure.QUERY,),
}
_BY_MEASURE: Final = {measure: source for source, each in _SOURCES.items() for measure in each}


def source_of(measure: Measure) -> Source:
    """Who tells a measure."""
    return _BY_MEASURE.get(measure, Source.GATEWAY)


@dataclass(frozen=True, slots=True)
class PodReading:
    """One engine or router pod that exists."""

    name: str
    ready: bool = True
    leaving: bool = False
    """It is being deleted, or drains before that."""
    unschedulable: bool = False
    """No node can take it."""
    start_s: float | None = None
    """Seconds from its creation until it was ready; None: it is not, or not for the first time."""
    values: Mapping[Measure, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleReading:
    """One role of the pool."""

    size: int | None = None
    """Replicas that its live workload is set to; None: there is no workload."""
    pods: tuple[PodReading, ...] = ()
    query: float | None = None
    """The scalar of its query."""
    faults: Mapping[Measure, str] = field(default_factory=dict)
    """Why a measure, or some of it, was not told; the source without credentials."""
    unattributed: bool = False
    """Series of GPUs exist, and none of them names a pod of the pool."""

    @property
    def staying(self) -> tuple[PodReading, ...]:
        """Pods that are not leaving, in an order that does not depend on that of the reading."""
        return tuple(sorted((pod for pod in self.pods if not pod.leaving), key=lambda pod: pod.name))

    @property
    def ready(self) -> int:
        """Pods that are ready and stay."""
        return sum(1 for pod in self.pods if pod.ready and not pod.leaving)


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that was read of a pool at one moment."""

    roles: Mapping[Role, RoleReading] = field(default_factory=dict)
    gateway: Mapping[Measure, float] = field(default_factory=dict)
    """Measures of the pool, told by its routers."""
    partial: bool = False
    """A router that serves told nothing: what its fellows tell is the least that there is."""

    @property
    def blind(self) -> bool:
        """What the routers know is not known, or not all of it."""
        return self.partial or Measure.QUEUED not in self.gateway

    def of(self, role: Role) -> RoleReading:
        """The reading of a role; an empty one when there is none."""
        return self.roles.get(role) or RoleReading()
