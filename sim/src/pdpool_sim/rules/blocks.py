"""The block-cost rule, as documented by Dynamo: prefill blocks less credits for cached ones, plus decode blocks.

Boundary: credits are 1.0 a block on the device (no other tier is simulated); no softmax. With `conditional`, its
documented conditional disaggregation: the decode engine computes a prompt with few and a small share of uncached
tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.rule import Chosen, Reports
from pdpool_sim.rules.scorers import best

if TYPE_CHECKING:
    from pdpool_sim.rule import Load, Setting
    from pdpool_sim.workload import Call

LOCAL_TOKENS: Final = 2048
LOCAL_SHARE: Final = 0.7


class BlockCost(Reports):
    """The smallest sum of blocks to compute and blocks in use."""

    def __init__(self, setting: Setting, *, conditional: bool = False) -> None:
        self._setting = setting
        self._conditional = conditional

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        if self._conditional:
            uid = self._cheapest(self._setting.decode, call)
            held = self._setting.decode.by_uid[uid].cache.match(call.blocks)
            uncached = call.prompt_tokens - held * self._setting.block_tokens
            if uncached < LOCAL_TOKENS and uncached < LOCAL_SHARE * call.prompt_tokens:
                return Chosen(uid, hop=False)
        return Chosen(self._cheapest(self._setting.prefill, call))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del prefill_uid
        return self._cheapest(self._setting.decode, call)

    def _cheapest(self, load: Load, call: Call) -> str:
        size = self._setting.block_tokens
        own = -(-call.prompt_tokens // size)
        costs: dict[str, float] = {}
        for uid, held in load.matches(call).items():
            to_compute = load.unprefilled_tokens[uid] / size + own - held
            in_use = load.inflight_tokens[uid] / size + own
            costs[uid] = -(max(0.0, to_compute) + in_use)
        return best(costs, self._setting.rng)
