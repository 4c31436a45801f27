"""Why a role has its size, in words that change with a decision or a reason and not with every reading.

Boundary: pure; decides nothing but whether a size is held (`paused`, `dryRun`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.conditions import SizeReason
from pdpool_operator.autoscale.demand import amount
from pdpool_operator.autoscale.measures import Measure
from pdpool_operator.autoscale.need import unheard
from pdpool_operator.sizes import Sizing

if TYPE_CHECKING:
    from pdpool_operator.autoscale.course import Course
    from pdpool_operator.autoscale.measures import Observation

_TRANSIENT: Final = (SizeReason.SIGNALS_UNKNOWN, SizeReason.GPU_METRICS_UNATTRIBUTED, SizeReason.PAUSED)


def sizing(course: Course, observation: Observation, now: float) -> Sizing:
    """What is said of one role, and done with it."""
    seen, memory = course.seen, course.memory
    holds = seen.limits.paused or seen.limits.dry_run
    size = seen.current if holds else course.size
    reason, message = _words(course, observation)
    return Sizing(
        size=size,
        before=seen.current,
        reason=reason,
        message=message,
        scaled_at=now if size != seen.current else memory.scaled_at,
        unknown="" if seen.need.known or not seen.limits.scaled else seen.need.unknown,
        missing=seen.need.unknown if seen.need.known else "",
        unattributed=seen.need.unattributed,
        demands=seen.need.demands,
    )


def _words(course: Course, observation: Observation) -> tuple[str, str]:
    seen, memory = course.seen, course.memory
    if seen.limits.paused:
        return SizeReason.PAUSED.value, f"held at {seen.current}"
    if course.size == seen.current and not seen.need.known:
        held = SizeReason.GPU_METRICS_UNATTRIBUTED if seen.need.unattributed else SizeReason.SIGNALS_UNKNOWN
        return held.value, f"held at {seen.current}: {seen.need.unknown}"
    if _stands(course):
        return memory.reason, memory.message
    reason, message = _cause(course, observation)
    if seen.limits.dry_run:
        does = f"would be {course.size} instead of {seen.current}" if course.size != seen.current else "would stay"
        message = f"dry run, {does}: {message}"
    return reason, message


def _stands(course: Course) -> bool:
    """True while what was said last holds: the same decision, kept from more by the same limit."""
    seen, memory = course.seen, course.memory
    if not memory.reason or memory.reason in _TRANSIENT or course.limit != memory.limit:
        return False
    if unheard(memory.reason) in memory.message and seen.need.leading_down.words != unheard(memory.reason):
        return False
    if seen.limits.dry_run:
        return course.size == memory.wanted and seen.current == memory.size and memory.message.startswith("dry run")
    return course.size == seen.current and not memory.message.startswith("dry run")


def _cause(course: Course, observation: Observation) -> tuple[str, str]:
    seen = course.seen
    if course.size == 0:
        return SizeReason.SCALED_TO_ZERO.value, "nothing is asked for"
    if seen.current == 0 and (queued := observation.gateway.get(Measure.QUEUED, 0.0)):
        return SizeReason.WAKING.value, f"{amount(queued)} held at the router"
    if course.size > seen.current and course.proposed <= seen.current:
        return _raised(course)
    if seen.current > course.size == seen.limits.most or course.proposed >= seen.current > course.size:
        return _lowered(course)
    leading = seen.need.leading_up if course.proposed > seen.current else seen.need.leading_down
    if not leading.type:
        return SizeReason.MIN_REPLICAS.value, f"minReplicas is {seen.limits.least}"
    return leading.type, leading.words + (f", limited by {course.limit}" if course.limit else "")


def _raised(course: Course) -> tuple[str, str]:
    """Larger without demand."""
    if course.bounded < course.in_ratio:
        return SizeReason.RATIO.value, "minPrefillPerDecode, or maxPrefillPerDecode with a given prefill"
    return SizeReason.MIN_REPLICAS.value, f"minReplicas is {max(1, course.seen.limits.least)}"


def _lowered(course: Course) -> tuple[str, str]:
    """Smaller against demand."""
    if course.seen.current > course.seen.limits.most:
        return SizeReason.MAX_REPLICAS.value, f"maxReplicas is {course.seen.limits.most}"
    if course.in_ratio < course.bounded:
        return SizeReason.RATIO.value, "maxPrefillPerDecode, or minPrefillPerDecode with a given prefill"
    return SizeReason.MAX_GPUS.value, f"the other role lacks more under maxGpus {course.max_gpus}"
