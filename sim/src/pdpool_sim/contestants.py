"""Who can route in the simulator, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_sim.rule import Rule, Setting

CONTESTANTS: Final[Mapping[str, Callable[[Setting], Rule]]] = RULES
LEAST_LOADED: Final = "least-in-flight"
"""Whose limit defines saturation."""
OURS: Final = "KvAware"
"""Who is judged."""
