"""The router's own choices in the simulator: what it believes, counts and learns against what engines hold and do."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pdpool_api.router_config import Limits
from pdpool_router.flow.admission import Share
from pdpool_router.records import LocalPrefill
from pdpool_router.schedule.policies import POLICIES
from pdpool_sim.clock import Clock
from pdpool_sim.generators import GENERATORS
from pdpool_sim.hardware import shapes
from pdpool_sim.oracle import lone_ttfts
from pdpool_sim.pool import Pool, PoolShape
from pdpool_sim.routed import Routed, by_policy

if TYPE_CHECKING:
    from pdpool_sim.rule import Setting
    from pdpool_sim.workload import Call


def run(policy: str, workload: str, *, blocks: int = 0, local: LocalPrefill | None = None) -> Pool:
    """A finished pool of two and two engines."""
    prefill, decode = shapes()
    made = GENERATORS[workload](Random(5), 200).scaled(25)
    shape = PoolShape(prefill, decode, 2, 2, blocks)

    def rule(setting: Setting) -> Routed:
        return by_policy(policy, setting, local)

    pool = Pool(Clock(), shape, made.block_tokens, rule, Random(1))
    pool.offer(made)
    pool.clock.run()
    return pool


@pytest.mark.parametrize("policy", ["KvAware", "LeastLoaded"])
def test_the_index_ends_with_what_engines_hold(policy: str) -> None:
    """Under eviction, the index has exactly the blocks that engines have, and nothing stays in flight."""
    pool = run(policy, "chat", blocks=300)
    rule = pool.rule
    assert isinstance(rule, Routed)
    index = rule._prefixes.blocks
    for load in (pool.prefill, pool.decode):
        for engine in load.engines:
            holder = rule._prefixes.told(engine.uid, 0)
            assert set(holder.blocks) == set(engine.cache._idle)
            assert not holder.copies
    assert index.size == sum(engine.cache.kept for load in (pool.prefill, pool.decode) for engine in load.engines)
    assert not rule._inflight.requests
    assert not rule._inflight.local_prefills
    assert all(load.requests == load.unstarted == load.unstarted_tokens == 0 for load in rule._loads.loads.values())
    assert not rule._legs
    assert not rule._prompts


def test_predicted_hits_are_actual_hits_when_nothing_is_evicted() -> None:
    """With room for all, and one call after the other, engines find exactly the tokens that the index promises."""
    prefill, decode = shapes()
    made = GENERATORS["agents"](Random(2), 60).scaled(0.01)
    seen: list[tuple[int, int]] = []

    class Watched(Routed):
        def saw_prefill(self, call: Call, uid: str, seconds: float, cached_tokens: int) -> None:
            seen.append((self._legs[call.number].moved, call.prompt_tokens - cached_tokens))
            super().saw_prefill(call, uid, seconds, cached_tokens)

    def rule(setting: Setting) -> Routed:
        made_rule = by_policy("KvAware", setting, LocalPrefill(0))
        return Watched(setting, made_rule._policy, LocalPrefill(0))

    pool = Pool(Clock(), PoolShape(prefill, decode, 2, 2), made.block_tokens, rule, Random(1))
    pool.offer(made)
    pool.clock.run()
    assert len(seen) == len(made.calls)
    assert all(predicted == actual for predicted, actual in seen)


def test_short_prompts_skip_the_hop_only_where_it_is_allowed() -> None:
    """`localPrefill.maxUncachedTokens` 0 always hops; the default computes short remainders at decode."""
    assert all(outcome.prefill_uid for outcome in run("KvAware", "bursts", local=LocalPrefill(0)).outcomes)
    assert any(not outcome.prefill_uid for outcome in run("KvAware", "chat").outcomes)


def test_nobody_is_faster_than_alone() -> None:
    """The bound of TTFT holds for every run."""
    pool = run("KvAware", "rag")
    prefill, _ = shapes()
    bound = lone_ttfts(GENERATORS["rag"](Random(5), 200), 10**9, prefill)
    seen = sorted(outcome.ttft_s for outcome in pool.outcomes)
    assert all(ttft >= least for ttft, least in zip(seen, bound, strict=True))


def overloaded(policy: str, shares: dict[str, Share] | None = None, **limits: int) -> Pool:
    """One pair of engines that gets several times what it can take, from two tenants; one of them sends little."""
    prefill, decode = shapes()
    made = GENERATORS["tenants"](Random(5), 500)
    calls = [replace(each, tenant="much" if each.number % 10 else "little") for each in made.calls]
    made = replace(made, calls=tuple(calls)).scaled(200)

    def rule(setting: Setting) -> Routed:
        told = Limits.model_validate({"queueSeconds": 3600} | limits)
        return Routed(setting, POLICIES[policy](), LocalPrefill(0), limits=told, shares=shares)

    pool = Pool(Clock(), PoolShape(prefill, decode, 1, 1), made.block_tokens, rule, Random(1))
    pool.offer(made)
    pool.clock.run()
    return pool


def waits(pool: Pool, tenant: str) -> float:
    """Mean TTFT of a tenant."""
    seen = [each.ttft_s for each in pool.outcomes if each.call.tenant == tenant]
    return sum(seen) / len(seen)


@pytest.mark.parametrize("policy", ["KvAware", "LeastLoaded"])
def test_tenants_share_what_is_short(policy: str) -> None:
    """The router's own line: who asks for little is not behind all that another asks for; a priority goes first."""
    fair = overloaded(policy)
    assert waits(fair, "little") < 0.5 * waits(fair, "much")
    first = overloaded(policy, {"much": Share(priority=1)})
    assert waits(first, "much") < waits(first, "little")
    for pool in (fair, first):
        assert not any(each.refused for each in pool.outcomes)
        rule = pool.rule
        assert isinstance(rule, Routed)
        assert (rule._admission.admitted, rule._admission.waiting, len(rule._tickets)) == (0, 0, 0)


def test_what_cannot_wait_any_longer_is_refused() -> None:
    """A full line and a deadline refuse; every request ends once, one way or the other."""
    pool = overloaded("KvAware", maxQueued=50)
    assert 0 < sum(each.refused for each in pool.outcomes) < 500
    late = overloaded("KvAware", queueSeconds=2)
    assert 0 < sum(each.refused for each in late.outcomes) < 500
    for one in (pool, late):
        assert all(each.refused != (each.end_s > 0) for each in one.outcomes)
