"""Whether the fluid model says the same as the iteration model: one workload, fixed sizes, both.

Boundary: the first minutes of a workload at fixed sizes; attainment of both. Caching is the iteration model's: the
share of prompt tokens that its engines did not compute is taken over by the fluid, which knows no prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pdpool_sim.contestants import CONTESTANTS
from pdpool_sim.hardware import shapes
from pdpool_sim.pool import PoolShape
from pdpool_sim.run import simulate
from pdpool_sim.scaling.days import of_workload
from pdpool_sim.scaling.simulation import Site

if TYPE_CHECKING:
    from pdpool_sim.run import Slo
    from pdpool_sim.workload import Workload

FIRST_S: Final = 1200.0
BOUND: Final = 0.03
"""Of attainment."""
SIZES: Final = ((2, 2), (3, 1), (3, 2), (4, 2), (5, 2))
"""From far too few to enough, of either role."""
_ROUTING: Final = "LeastLoaded"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Attainment at one pair of sizes."""

    prefills: int
    decodes: int
    iteration: float
    fluid: float

    @property
    def apart(self) -> float:
        """Difference."""
        return abs(self.iteration - self.fluid)


def agreement(workload: Workload, slo: Slo, prefills: int, decodes: int) -> Agreement:
    """Both models on the first `FIRST_S` seconds of a workload."""
    end_s = workload.calls[0].arrival_s + FIRST_S
    first = replace(workload, calls=tuple(call for call in workload.calls if call.arrival_s < end_s))
    prefill, decode = shapes()
    told = simulate(first, PoolShape(prefill, decode, prefills, decodes), CONTESTANTS[_ROUTING], slo)
    day = of_workload(first, 1.0, 0.0, 1 - told.hit_rate)
    fluid = Site(prefill, decode, slo).follow(day, [(prefills, decodes)] * len(day.slots))
    return Agreement(prefills, decodes, told.attainment, fluid.attainment)
