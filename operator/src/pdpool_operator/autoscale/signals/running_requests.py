"""Sequences in the running batch."""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.RUNNING_REQUESTS
NEEDS: Final = frozenset({Measure.RUNNING})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Sequences, summed over the replicas."""
    return over_pods(view, target, lambda pod: pod.values.get(Measure.RUNNING), "running")
