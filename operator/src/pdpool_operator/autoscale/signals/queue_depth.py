"""Requests that wait: the engine's own count, or what the routers know to be sent and unstarted, whichever is larger.

A decode engine counts no request that waits for KV, and a prefill engine none that is still on the wire: only the
router sees these. What no engine has yet waits for the role that is asked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

if TYPE_CHECKING:
    from pdpool_operator.autoscale.measures import PodReading

TYPE: Final = SignalType.QUEUE_DEPTH
NEEDS: Final = frozenset({Measure.WAITING, Measure.UNSTARTED, Measure.QUEUED})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Requests, summed over the replicas."""
    queued = None if view.role is Role.DECODE else view.gateway.get(Measure.QUEUED)
    counted = over_pods(view, target, _waiting, "waiting", extra=queued)
    if counted is None or not any(_is_guessed(pod) for pod in view.reading.staying):
        return counted
    # The engine of such a pod told nothing: what it hides is at least a pod on target, less what the routers know.
    hidden = sum(max(0.0, target - (_waiting(pod) or 0.0)) for pod in view.reading.staying if _is_guessed(pod))
    return Demand(counted.known, counted.cautious + hidden, counted.words)


def _waiting(pod: PodReading) -> float | None:
    told = [pod.values[each] for each in (Measure.WAITING, Measure.UNSTARTED) if each in pod.values]
    return max(told, default=None)


def _is_guessed(pod: PodReading) -> bool:
    return pod.ready and Measure.UNSTARTED in pod.values and Measure.WAITING not in pod.values
