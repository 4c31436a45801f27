"""The fraction of KV blocks that sequences hold; cached blocks that nobody holds count as free."""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.KV_CACHE_USAGE
NEEDS: Final = frozenset({Measure.KV_USAGE})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Fractions from 0 to 1, summed over the replicas."""
    return over_pods(view, target, lambda pod: pod.values.get(Measure.KV_USAGE), "of KV in use")
