"""Rivals' rules against choices worked out by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pdpool_sim.clock import Clock
from pdpool_sim.engine import Engine
from pdpool_sim.hardware import EngineShape, StepCosts
from pdpool_sim.leg import Leg
from pdpool_sim.rule import Load, Setting
from pdpool_sim.rules import RULES
from pdpool_sim.rules.blocks import BlockCost
from pdpool_sim.rules.tree import SentTree
from pdpool_sim.workload import Call

SHAPE = EngineShape(StepCosts(1e-4, 0, 0, 0, 0), 0, 1000, 8, 1, 1)
SIZE = 100


@pytest.fixture
def setting() -> Setting:
    clock = Clock()

    def load(role: str) -> Load:
        return Load([Engine(f"{role}{number}", SHAPE, SIZE, clock, capacity=100) for number in range(3)], clock)

    return Setting(load("p"), load("d"), Random(1), SIZE, 10_000)


def call(blocks: tuple[int, ...], tokens: int | None = None) -> Call:
    """A prompt of these blocks."""
    return Call(0, 0.0, tokens or len(blocks) * SIZE, 10, blocks)


def hold(load: Load, uid: str, blocks: tuple[int, ...]) -> None:
    """Lets an engine compute a prompt, so that it holds its blocks."""

    class Nobody:
        def admitted(self, leg: Leg) -> None: ...

        def started(self, leg: Leg) -> None: ...

        def finished(self, leg: Leg) -> None: ...

    engine = load.by_uid[uid]
    engine.submit(Leg(Nobody(), len(blocks) * SIZE + 1, 1, blocks))
    engine._clock.run()


def test_round_robin_takes_each_in_turn(setting: Setting) -> None:
    """Each engine once in three choices, for both roles."""
    rule = RULES["round-robin"](setting)
    assert sorted(rule.plan(call((1,))).uid for _ in range(3)) == ["p0", "p1", "p2"]
    assert sorted(rule.place(call((1,)), "p0") for _ in range(3)) == ["d0", "d1", "d2"]


def test_random_takes_all(setting: Setting) -> None:
    """Every engine gets its share."""
    rule = RULES["random"](setting)
    seen = Counter(rule.plan(call((1,))).uid for _ in range(300))
    assert set(seen) == {"p0", "p1", "p2"}
    assert min(seen.values()) > 60


@pytest.mark.parametrize("name", ["least-in-flight", "static-hash", "prefix-affinity"])
def test_the_idle_decode_engine_is_chosen(setting: Setting, name: str) -> None:
    """One idle engine among busy ones is chosen by rules that place by load."""
    setting.decode.inflight.update(d0=3, d1=0, d2=1)
    setting.decode.inflight_tokens.update(d0=300, d1=0, d2=100)
    assert RULES[name](setting).place(call((1,)), "p0") == "d1"


def test_power_of_two_never_takes_the_most_loaded(setting: Setting) -> None:
    """The most loaded of three loses every pair."""
    setting.prefill.inflight.update(p0=9, p1=1, p2=0)
    rule = RULES["power-of-two"](setting)
    assert {rule.plan(call((1,))).uid for _ in range(60)} == {"p1", "p2"}


def test_static_hash_depends_on_the_first_blocks_only(setting: Setting) -> None:
    """Equal beginnings meet, whatever follows and whatever the load; different ones spread."""
    rule = RULES["static-hash"](setting)
    first = rule.plan(call((1, 2, 3, 4, 5))).uid
    setting.prefill.inflight[first] = 100
    assert rule.plan(call((1, 2, 3, 4, 9, 10))).uid == first
    assert len({rule.plan(call((n, n + 1, n + 2, n + 3))).uid for n in range(0, 200, 4)}) == 3


def test_tree_follows_what_was_sent_then_the_smallest_tree(setting: Setting) -> None:
    """Half a prompt known: the same engine; unknown: the smallest tree; loads far apart: the least loaded."""
    rule = RULES["cache-aware-tree"](setting)
    first = rule.plan(call((1, 2, 3, 4))).uid
    assert rule.plan(call((1, 2, 3, 4, 5, 6))).uid == first
    assert rule.plan(call((7, 8))).uid != first
    setting.prefill.inflight.update(dict.fromkeys(setting.prefill.inflight, 0), **{first: 65})
    assert rule.plan(call((1, 2, 3, 4))).uid != first


def test_tree_keeps_what_was_used_last() -> None:
    """The bound evicts the least recently sent."""
    tree = SentTree(3)
    tree.insert((1, 2))
    tree.insert((3,))
    tree.insert((1,))
    tree.insert((4,))
    assert len(tree) == 3
    assert tree.match((1, 2)) == 1


def test_weighted_scorers_add_up(setting: Setting) -> None:
    """p0 holds the whole prompt: 2 + 2 + 3; the others 2 + 2; with p0's queue the longest, it still leads by one."""
    hold(setting.prefill, "p0", (1, 2, 3))
    rule = RULES["weighted-scorers"](setting)
    assert rule.plan(call((1, 2, 3))).uid == "p0"
    # A third of the prompt is worth 1, an empty queue 2.
    for number in range(9):
        setting.prefill.by_uid["p0"].submit(Leg(_Silent(), 100, 1, (900 + number,)))
    setting.prefill._scraped_s = float("-inf")
    assert rule.plan(call((1, 70, 71, 72, 73, 74))).uid != "p0"


class _Silent:
    def admitted(self, leg: Leg) -> None: ...

    def started(self, leg: Leg) -> None: ...

    def finished(self, leg: Leg) -> None: ...


def test_pair_weights_place_by_activity_and_prefix(setting: Setting) -> None:
    """Decode: active requests count 2, the prefix 3."""
    hold(setting.decode, "d2", (1, 2))
    setting.decode.inflight.update(d0=0, d1=1, d2=2)
    rule = RULES["pd-weights"](setting)
    assert rule.place(call((1, 2)), "p0") == "d2"  # 0 + 3 against 2 + 0
    assert rule.place(call((1, 5, 6, 7)), "p0") == "d0"  # 0 + 0.75 against 2 + 0


def test_prefix_affinity_breaks_at_eighteen_seconds(setting: Setting) -> None:
    """The holder is kept until its estimated TTFT is more than 18 s worse: 10,000 tokens are a second here."""
    hold(setting.prefill, "p1", (1, 2, 3, 4))
    rule = RULES["prefix-affinity"](setting)
    setting.prefill.unprefilled_tokens["p1"] = 170_000
    setting.prefill.inflight_tokens["p1"] = 170_000
    assert rule.plan(call((1, 2, 3, 4))).uid == "p1"
    setting.prefill.unprefilled_tokens["p1"] = 190_000
    assert rule.plan(call((1, 2, 3, 4))).uid != "p1"
    assert rule.plan(call((1, 2, 3, 4, 5, 6))).uid != "p1"  # 67 % held is no affinity


def test_block_cost_weighs_work_against_blocks_in_use(setting: Setting) -> None:
    """p0 holds 4 of 4 blocks and has 3 in use: 0 + 7; p1 is idle: 4 + 4; then 2 more in use turn it: 0 + 9."""
    hold(setting.prefill, "p0", (1, 2, 3, 4))
    setting.prefill.inflight_tokens.update(p0=300, p2=2000)
    rule = BlockCost(setting)
    assert rule.plan(call((1, 2, 3, 4))).uid == "p0"
    setting.prefill.inflight_tokens["p0"] = 500
    assert rule.plan(call((1, 2, 3, 4))).uid == "p1"


def test_conditional_block_cost_stays_local_for_few_uncached_tokens(setting: Setting) -> None:
    """Below 2,048 uncached tokens and 0.7 of the prompt the decode engine computes it; the plain rule always hops."""
    hold(setting.decode, "d1", (1, 2, 3, 4))
    chosen = BlockCost(setting, conditional=True).plan(call((1, 2, 3, 4, 5)))
    assert (chosen.uid, chosen.hop) == ("d1", False)
    assert BlockCost(setting).plan(call((1, 2, 3, 4, 5))).hop
    assert BlockCost(setting, conditional=True).plan(call((7, 8, 9))).hop  # all of it is uncached
