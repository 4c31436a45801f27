"""The sizes of the roles: what demand asks for, within what the spec allows.

Boundary: pure; it never calls the API and knows no clock. `tick` is the whole of it: an `Observation` (`measures`), a
`Memory` and `Limits` in, a `Decision` out. A new signal is one file in `signals`.
"""

from pdpool_operator.autoscale.limits import Limits, RoleLimits, Target, limits
from pdpool_operator.autoscale.measures import Measure, Observation, PodReading, RoleReading, Source, source_of
from pdpool_operator.autoscale.memory import Memory, RoleMemory
from pdpool_operator.autoscale.tick import Decision, interval_s, tick

__all__ = [
    "Decision",
    "Limits",
    "Measure",
    "Memory",
    "Observation",
    "PodReading",
    "RoleLimits",
    "RoleMemory",
    "RoleReading",
    "Source",
    "Target",
    "interval_s",
    "limits",
    "source_of",
    "tick",
]
