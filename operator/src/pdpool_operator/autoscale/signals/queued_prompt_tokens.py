"""Prompt tokens that are not yet prefilled, as the routers estimate them."""

from __future__ import annotations

from typing import Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

TYPE: Final = SignalType.QUEUED_PROMPT_TOKENS
NEEDS: Final = frozenset({Measure.UNSTARTED_PROMPT_TOKENS})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Tokens, summed over the replicas."""
    return over_pods(view, target, lambda pod: pod.values.get(Measure.UNSTARTED_PROMPT_TOKENS), "prompt tokens queued")
