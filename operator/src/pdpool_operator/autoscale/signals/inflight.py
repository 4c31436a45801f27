"""Requests in flight, for the size of the router itself; it stands in no list of `signals`."""

from __future__ import annotations

from typing import Final

from pdpool_operator.autoscale.demand import Demand, View, amount
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = "Inflight"
NEEDS: Final = frozenset({Measure.INFLIGHT, Measure.QUEUED})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Requests that the routers hold or have given to an engine."""
    inflight = view.gateway.get(Measure.INFLIGHT)
    if inflight is None:
        return None
    total = inflight + view.gateway.get(Measure.QUEUED, 0.0)
    cautious = max(total, target * view.reading.ready) if view.blind else total
    return Demand(total, cautious, f"{amount(total)} in flight / {amount(target)} per replica")
