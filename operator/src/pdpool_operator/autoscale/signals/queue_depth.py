"""Requests that wait: the engine's own count, or what the routers know to be sent and unstarted, whichever is larger.

A decode engine counts no request that waits for KV, and a prefill engine none that is still on the wire: only the
router sees these. What no engine has yet waits for the role that is asked first.

Whoever of the two is not heard may know of more, so that nothing is given up on the other's word alone: the pod of an
engine that told nothing, and, while a router is not heard, that of an engine that runs something. One that runs nothing
has been sent nothing.

A prefill role that just keeps up has no queue, and has one as soon as it is smaller: what its busy engines compute, the
others would find waiting. So a prefill engine that runs something is on target when it is asked who may go. Decode runs
something always; that it is full is told by its KV.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role
from pdpool_api.scaling_spec import SignalType
from pdpool_operator.autoscale.demand import Demand, View, over_pods
from pdpool_operator.autoscale.measures import Measure

if TYPE_CHECKING:
    from pdpool_operator.autoscale.measures import PodReading

TYPE: Final = SignalType.QUEUE_DEPTH
NEEDS: Final = frozenset({Measure.WAITING, Measure.RUNNING, Measure.UNSTARTED, Measure.QUEUED})
HOLDS: Final = True


def demand(view: View, target: float) -> Demand | None:
    """Requests, summed over the replicas."""
    queued = None if view.role is Role.DECODE else view.gateway.get(Measure.QUEUED)
    running_counts = view.blind or view.role is Role.PREFILL
    is_needed = partial(_is_needed, running_counts=running_counts)
    return over_pods(view, target, _waiting, "waiting", extra=queued, is_needed=is_needed)


def _waiting(pod: PodReading) -> float | None:
    told = [pod.values[each] for each in (Measure.WAITING, Measure.UNSTARTED) if each in pod.values]
    return max(told, default=None)


def _is_needed(pod: PodReading, *, running_counts: bool) -> bool:
    return Measure.WAITING not in pod.values or (running_counts and pod.values.get(Measure.RUNNING, 0.0) > 0)
