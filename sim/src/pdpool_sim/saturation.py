"""The load that a pool can take: the arrival scale at which a rule first leaves too many requests outside the SLO.

Boundary: a search over runs. Attainment falls with the scale but for chance, so the search doubles until it fails and
then halves the interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_sim.pool import PoolShape
    from pdpool_sim.rule import Rule, Setting
    from pdpool_sim.run import Slo
    from pdpool_sim.workload import Workload

ATTAINMENT: Final = 0.95
PRECISION: Final = 0.02


def saturation(
    workload: Workload,
    shape: PoolShape,
    make_rule: Callable[[Setting], Rule],
    slo: Slo,
    *,
    start: float,
    seed: int = 0,
    precision: float = PRECISION,
) -> float:
    """The largest scale of arrivals, to a share of `precision`, at which 95 % of requests are inside the SLO.

    Args:
        workload: calls at scale 1.
        shape: the pool.
        make_rule: who routes.
        slo: what counts.
        start: a first guess.
        seed: of the runs.
        precision: by how much the answer may be too small.
    """

    def holds(scale: float) -> bool:
        return simulate(workload.scaled(scale), shape, make_rule, slo, seed=seed).attainment >= ATTAINMENT

    low, high = 0.0, start
    if holds(start):
        while holds(high):
            low, high = high, high * 1.3
    else:
        low = start / 1.3
        while not holds(low):
            low, high = low / 1.3, low
    while high / low > 1 + precision:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
