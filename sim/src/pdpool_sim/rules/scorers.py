"""Weighted scorers, weights for P/D, and prefix affinity with a break, as documented by llm-d.

Boundary: each scorer gives a number from 0 to 1; the largest weighted sum wins, ties by chance. Queue depth and KV
usage come from engines' metrics, scraped every 50 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.rule import Chosen, Load, Reports

if TYPE_CHECKING:
    from random import Random

    from pdpool_sim.rule import Setting
    from pdpool_sim.workload import Call

AFFINITY: Final = 0.80
BREAK_S: Final = 18.0


def best(scores: dict[str, float], rng: Random) -> str:
    """The largest score, ties by chance."""
    most = max(scores.values())
    return rng.choice([uid for uid, score in scores.items() if score >= most - 1e-12])


def prefix_scores(load: Load, call: Call, block_tokens: int) -> dict[str, float]:
    """Share of the prompt that each endpoint holds."""
    return {uid: count * block_tokens / call.prompt_tokens for uid, count in load.matches(call).items()}


def spare(values: dict[str, float]) -> dict[str, float]:
    """1 for the least, 0 for the most, linear between; 1 for all where they are equal."""
    most, least = max(values.values()), min(values.values())
    if most == least:
        return dict.fromkeys(values, 1.0)
    return {uid: (most - value) / (most - least) for uid, value in values.items()}


def queue_scores(load: Load) -> dict[str, float]:
    """By waiting requests at the last scrape."""
    return spare({uid: float(seen.waiting) for uid, seen in load.metrics().items()})


def kv_scores(load: Load) -> dict[str, float]:
    """By free KV at the last scrape."""
    return {uid: 1 - seen.kv_usage for uid, seen in load.metrics().items()}


def weighted(*parts: tuple[float, dict[str, float]]) -> dict[str, float]:
    """The weighted sum by endpoint."""
    return {uid: sum(weight * scores[uid] for weight, scores in parts) for uid in parts[0][1]}


class WeightedScorers(Reports):
    """2 x queue + 2 x free KV + 3 x prefix share, for either role."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        return Chosen(self._choose(self._setting.prefill, call))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del prefill_uid
        return self._choose(self._setting.decode, call)

    def _choose(self, load: Load, call: Call) -> str:
        prefix = prefix_scores(load, call, self._setting.block_tokens)
        return best(weighted((2, queue_scores(load)), (2, kv_scores(load)), (3, prefix)), self._setting.rng)


class PairWeights(Reports):
    """Prefill: prefix 3, queue 2, KV 2; decode: active requests 2, prefix 3."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        load = self._setting.prefill
        prefix = prefix_scores(load, call, self._setting.block_tokens)
        return Chosen(best(weighted((3, prefix), (2, queue_scores(load)), (2, kv_scores(load))), self._setting.rng))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del prefill_uid
        load = self._setting.decode
        active = spare({uid: float(count) for uid, count in load.inflight.items()})
        prefix = prefix_scores(load, call, self._setting.block_tokens)
        return best(weighted((2, active), (3, prefix)), self._setting.rng)


class PrefixAffinity(Reports):
    """Endpoints that hold 80 % of the prompt, unless they are far behind; of those, fewest tokens in flight."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        load, rate = self._setting.prefill, self._setting.prefill_tokens_per_second
        prefix = prefix_scores(load, call, self._setting.block_tokens)
        ttft = {uid: tokens / rate for uid, tokens in load.unprefilled_tokens.items()}
        holders = [uid for uid, share in prefix.items() if share >= AFFINITY]
        if not holders or min(ttft[uid] for uid in holders) - min(ttft.values()) > BREAK_S:
            holders = list(ttft)
        return Chosen(self._fewest(load, holders))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        load = self._setting.decode
        return self._fewest(load, list(load.by_uid))

    def _fewest(self, load: Load, uids: list[str]) -> str:
        return best({uid: -float(load.inflight_tokens[uid]) for uid in uids}, self._setting.rng)
