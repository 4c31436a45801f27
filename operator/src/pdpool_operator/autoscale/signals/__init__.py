"""The signals that a size can follow, one file each.

Boundary: pure. A signal declares what it needs (and exactly that is collected), says whether a role may shrink while it
is unknown, and does one sum. Bounds, steps, windows and budgets are the tick's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pdpool_operator.autoscale.signals import (
    gpu_dram_active,
    gpu_tensor_active,
    gpu_utilization,
    inflight,
    itl,
    kv_cache_usage,
    prometheus_query,
    queue_depth,
    queued_prompt_tokens,
    running_requests,
    ttft,
)

if TYPE_CHECKING:
    from pdpool_operator.autoscale.demand import Demand, View
    from pdpool_operator.autoscale.measures import Measure


class Signal(Protocol):
    """One quantity that a size can follow; modules of this package are such."""

    @property
    def TYPE(self) -> str:  # noqa: N802 - a module's constant
        """Its name in a spec."""

    @property
    def NEEDS(self) -> frozenset[Measure]:  # noqa: N802
        """What must be read for it."""

    @property
    def HOLDS(self) -> bool:  # noqa: N802
        """While it is unknown, no ready replica is given up."""

    def demand(self, view: View, target: float) -> Demand | None:
        """The total over the role's replicas, monotone in every reading; None: unknown."""


ALL: Final[tuple[Signal, ...]] = (
    queue_depth,
    queued_prompt_tokens,
    kv_cache_usage,
    running_requests,
    ttft,
    itl,
    gpu_tensor_active,
    gpu_dram_active,
    gpu_utilization,
    prometheus_query,
    inflight,
)
BY_TYPE: Final[dict[str, Signal]] = {str(each.TYPE): each for each in ALL}
