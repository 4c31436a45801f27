"""Routing rules to compare with, each as its authors document it: the rule, not the product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.rules.blocks import BlockCost
from pdpool_sim.rules.hashing import StaticHash
from pdpool_sim.rules.scorers import PairWeights, PrefixAffinity, WeightedScorers
from pdpool_sim.rules.simple import LeastInFlight, PowerOfTwo, RandomChoice, RoundRobin
from pdpool_sim.rules.tree import CacheAwareTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdpool_sim.rule import Rule, Setting

RULES: Final[Mapping[str, Callable[[Setting], Rule]]] = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "least-in-flight": LeastInFlight,
    "power-of-two": PowerOfTwo,
    "static-hash": StaticHash,
    "cache-aware-tree": CacheAwareTree,
    "weighted-scorers": WeightedScorers,
    "pd-weights": PairWeights,
    "prefix-affinity": PrefixAffinity,
    "block-cost": BlockCost,
    "block-cost-local": lambda setting: BlockCost(setting, conditional=True),
}
"""By name; `docs/simulator.md` says whose rule each is."""
