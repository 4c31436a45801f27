"""Time to the first token at the percentile of the SLO, as the routers measure it.

Without traffic there is no latency, and no opinion: it holds nothing up that other signals allow.
"""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, from_latency
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.TTFT
NEEDS: Final = frozenset({Measure.TTFT_MS})
HOLDS: Final = False


def demand(view: View, target: float) -> Demand | None:
    """Milliseconds, times the replicas that produced them."""
    return from_latency(view, target, view.gateway.get(Measure.TTFT_MS), "TTFT")
