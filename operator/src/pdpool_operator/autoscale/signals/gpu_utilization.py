"""The share of time in which anything runs on the GPU (DCGM).

Near 1 with a single request, hence no reason to grow: see the tick.
"""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.GPU_UTILIZATION
NEEDS: Final = frozenset({Measure.GPU_UTILIZATION})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Ratios from 0 to 1, summed over the replicas."""
    return over_pods(view, target, lambda pod: pod.values.get(Measure.GPU_UTILIZATION), "of GPU utilization")
