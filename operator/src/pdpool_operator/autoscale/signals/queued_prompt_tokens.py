"""Prompt tokens that are not yet prefilled, as the routers estimate them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

if TYPE_CHECKING:
    from pdpool_operator.autoscale.measures import PodReading

TYPE: Final = SignalType.QUEUED_PROMPT_TOKENS
NEEDS: Final = frozenset({Measure.UNSTARTED_PROMPT_TOKENS})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Tokens, summed over the replicas."""
    return over_pods(view, target, _tokens, "prompt tokens queued", is_needed=lambda _: view.partial)


def _tokens(pod: PodReading) -> float | None:
    return pod.values.get(Measure.UNSTARTED_PROMPT_TOKENS)
