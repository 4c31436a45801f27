"""The policies, as sets of scorers.

Boundary: pure; what a scorer or a picker does stands in its own file. Load is the router's own requests in flight,
corrected by what engines report, so that a burst spreads at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pdpool_router.schedule.decide import SumPolicy
from pdpool_router.schedule.least_loaded import LeastLoaded
from pdpool_router.schedule.pickers.in_turn import InTurn
from pdpool_router.schedule.pickers.together import Together
from pdpool_router.schedule.scorers.balance import Balance
from pdpool_router.schedule.scorers.burden import Burden
from pdpool_router.schedule.scorers.compute import Compute
from pdpool_router.schedule.scorers.disturb import Disturb
from pdpool_router.schedule.scorers.inflight import Inflight
from pdpool_router.schedule.scorers.lateness import Lateness
from pdpool_router.schedule.scorers.pull import Pull
from pdpool_router.schedule.scorers.running import Running
from pdpool_router.schedule.scorers.wait import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_router.schedule.interface import Policy

_TIE_MS: Final = 0.001
"""Small beside any token: load decides only between equal prefixes."""


def kv_aware() -> Policy:
    """Least predicted time for all; conversations stay together while that costs nothing; short ways are taken."""
    prompt = (Wait(), Compute(), Burden(), Lateness(), Balance())
    return SumPolicy(
        prefill=prompt,
        decode=(Pull(), Running()),
        whole=(*prompt, Running(), Disturb()),
        picker=Together,
        reads_prefixes=True,
        skips_hops=True,
    )


def prefix() -> Policy:
    """Longest cached prefix, unless that takes longer than to compute it elsewhere; load decides between equals."""
    prompt = (Wait(), Compute(), Balance(later_turns=False), Inflight(_TIE_MS))
    return SumPolicy(
        prefill=prompt,
        decode=(Pull(), Inflight(_TIE_MS)),
        whole=prompt,
        picker=partial(Together, slack=0.0),
        reads_prefixes=True,
        skips_hops=True,
    )


def least_loaded() -> Policy:
    """Fewest requests in flight; ties by chance, whatever the order of the endpoints."""
    return LeastLoaded()


def round_robin() -> Policy:
    """Each endpoint in turn."""
    return SumPolicy(prefill=(), decode=(), whole=(), picker=InTurn, reads_prefixes=False, skips_hops=False)


POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    "KvAware": kv_aware,
    "Prefix": prefix,
    "LeastLoaded": least_loaded,
    "RoundRobin": round_robin,
}
