"""A query of the pool's author; its scalar is the total over the replicas."""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, amount
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.PROMETHEUS_QUERY
NEEDS: Final = frozenset({Measure.QUERY})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """The scalar; one below zero counts as zero."""
    value = view.reading.query
    if value is None:
        return None
    total = max(0.0, value)
    return Demand(total, total, f"query gives {amount(total)} / {amount(target)} per replica")
