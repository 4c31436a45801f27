"""Who can route in the simulator, by name: the router's policies, and rules to compare them with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pdpool_router.schedule.policies import POLICIES
from pdpool_sim.routed import by_policy
from pdpool_sim.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_sim.rule import Rule, Setting

CONTESTANTS: Final[Mapping[str, Callable[[Setting], Rule]]] = {
    **{name: partial(by_policy, name) for name in POLICIES},
    **RULES,
}
LEAST_LOADED: Final = "LeastLoaded"
"""Whose limit defines saturation."""
OWN: Final = frozenset(POLICIES)
"""The router's own policies; all others are rivals."""
OURS: Final = "KvAware"
"""Who is judged."""
