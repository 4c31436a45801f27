"""The share of time in which the GPU's memory moves data (DCGM); it never asks for growth by itself, see the tick."""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.GPU_DRAM_ACTIVE
NEEDS: Final = frozenset({Measure.GPU_DRAM})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Ratios from 0 to 1, summed over the replicas."""
    return over_pods(view, target, lambda pod: pod.values.get(Measure.GPU_DRAM), "of GPU memory bandwidth active")
