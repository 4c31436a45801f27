"""A workload on the iteration model while a scaling rule sizes the pool: every request, every step, every start.

Boundary: which engines serve, and what a rule reads of them. Requests are admitted and routed by the router's own code
(`KvAware`), whatever the rule; what is compared is sizing. An engine that leaves gets no new request and ends those
that it has; one that starts has an empty cache.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from pdpool_sim.clock import Clock
from pdpool_sim.pool import Pool, PoolShape
from pdpool_sim.routed import Routed, by_policy
from pdpool_sim.run import quantile
from pdpool_sim.scaling.fluid import Flows
from pdpool_sim.scaling.scaler import Seen
from pdpool_sim.scaling.simulation import MOST, Account

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_sim.engine import Engine
    from pdpool_sim.pool import Outcome
    from pdpool_sim.rule import Load
    from pdpool_sim.scaling.days import Day
    from pdpool_sim.scaling.replicas import Replicas
    from pdpool_sim.scaling.scaler import Bounds, Scaler
    from pdpool_sim.scaling.simulation import DayFigures, Site
    from pdpool_sim.workload import Workload

LATE_S: Final = 60.0
"""Rates and latencies are those of so long."""
_SPARE: Final = 20
"""Engines that may still end what they have while as many as are allowed serve."""
_POLICY: Final = "KvAware"


class Group:
    """The engines of one role, by the replica that each is."""

    def __init__(self, replicas: Replicas, load: Load) -> None:
        self.replicas: Final = replicas
        self.load: Final = load
        self.serving: dict[str, str] = {}
        """Uid by name of the ready replica."""

    def second(self, now: float) -> bool:
        """Lets a second pass; whether other engines serve than before."""
        self.replicas.second(now)
        names = [name for name, _ in self.replicas.ready]
        after = {name: self.serving[name] for name in names if name in self.serving}
        taken = set(self.serving.values())
        for name in names:
            if name not in after:
                uid = next(each for each in self.load.by_uid if each not in taken and self._is_free(each))
                after[name] = uid
                taken.add(uid)
        changed = after != self.serving
        self.serving = after
        return changed

    def _is_free(self, uid: str) -> bool:
        engine = self.load.by_uid[uid]
        return engine.idle and not engine.cache.in_use and not self.load.inflight[uid]


class _Replay:
    """One run."""

    def __init__(self, site: Site, workload: Workload, day: Day, make: Callable[[Bounds], Scaler], seed: int) -> None:
        bounds = site.bounds(day)
        self._bounds = bounds
        self._scaler = make(bounds)
        self._end_s = workload.calls[-1].arrival_s
        self.most = 0
        shape = PoolShape(site.prefill, site.decode, MOST + _SPARE, MOST + _SPARE)
        rng = Random(seed)  # noqa: S311 - reproducible by its seed
        self.pool = Pool(Clock(), shape, workload.block_tokens, partial(by_policy, _POLICY), rng)
        prefill, decode = site.begin(day, bounds)
        self.prefill, self.decode = Group(prefill, self.pool.prefill), Group(decode, self.pool.decode)
        self._worked_s: dict[str, float] = {}
        """Seconds at work of each prefill engine, at the tick before."""

    def second(self) -> None:
        """Starts that are over, and the rule's tick when it is due."""
        clock = self.pool.clock
        now = clock.now_s
        changed = [group.second(now) for group in (self.prefill, self.decode)]
        if any(changed):
            self._rule.serve({*self.prefill.serving.values(), *self.decode.serving.values()})
        if now and now % self._scaler.interval_s == 0:
            roles = self.prefill.replicas, self.decode.replicas
            for replicas, size in zip(roles, self._scaler.sizes(self._seen(now)), strict=True):
                replicas.resize(min(max(size, self._bounds.least), self._bounds.most), now)
            self.most = max(self.most, sum(each.wanted for each in roles))
        if now + 1 <= self._end_s:
            clock.at(now + 1, self.second)

    @property
    def _rule(self) -> Routed:
        rule = self.pool.rule
        assert isinstance(rule, Routed)
        return rule

    def _seen(self, now: float) -> Seen:
        outcomes = self.pool.outcomes
        came = [each for each in outcomes if each.call.arrival_s > now - LATE_S]
        begun = [each for each in outcomes if each.first_token_s > now - LATE_S]
        ended = [each for each in outcomes if each.end_s > now - LATE_S]
        window_s = min(now, LATE_S)
        computed = 1 - _share(sum(each.cached_tokens for each in begun), sum(each.call.prompt_tokens for each in begun))
        prompt_tokens = _share(sum(each.call.prompt_tokens for each in came), len(came)) * computed
        prefills = [self.pool.prefill.by_uid[uid] for uid in self.prefill.serving.values()]
        decodes = [self.pool.decode.by_uid[uid] for uid in self.decode.serving.values()]
        flows = Flows(
            arrived=len(came) / window_s,
            ttft_s=_late([each.ttft_s for each in begun]),
            itl_s=_late([each.tpot_s for each in ended]),
            prefill_waiting=float(self._rule.waiting + sum(engine.queued for engine in prefills)),
            prefill_busy=min(1.0, self._worked(prefills) / len(prefills) / self._scaler.interval_s),
            decode_running=float(sum(engine.running for engine in decodes)),
            decode_waiting=float(sum(engine.queued for engine in decodes)),
            kv_usage=sum(engine.cache.usage for engine in decodes) / len(decodes),
            prompt_rate=len(came) * prompt_tokens / window_s,
            output_rate=sum(each.call.output_tokens for each in ended) / window_s,
        )
        outputs = _share(sum(each.call.output_tokens for each in came), len(came))
        return Seen(now, self.prefill.replicas, self.decode.replicas, flows, prompt_tokens, outputs)

    def _worked(self, engines: list[Engine]) -> float:
        """Seconds that they have been at work since the tick before; of one that is new, none."""
        before = self._worked_s
        self._worked_s = {engine.uid: engine.busy_s for engine in engines}
        return sum(engine.busy_s - before.get(engine.uid, engine.busy_s) for engine in engines)


def replay(site: Site, workload: Workload, day: Day, make: Callable[[Bounds], Scaler], seed: int = 0) -> DayFigures:
    """A workload under one rule; `day` is its load slot by slot, of which speeds and the first sizes are known."""
    run = _Replay(site, workload, day, make, seed)
    run.second()
    run.pool.offer(workload)
    run.pool.clock.run()
    account = Account()
    for flows in _by_second(run.pool.outcomes, site):
        account.add(flows)
    return account.figures(run.prefill.replicas, run.decode.replicas, run.most)


def _by_second(outcomes: list[Outcome], site: Site) -> list[Flows]:
    """How many requests came in each second, and how many of them were inside the SLO in the end."""
    seconds = [Flows() for _ in range(int(outcomes[-1].call.arrival_s) + 1)]
    for each in outcomes:
        flows = seconds[int(each.call.arrival_s)]
        flows.arrived += 1
        flows.met += site.slo.met(each)
    return seconds


def _late(values: list[float]) -> float:
    return quantile(sorted(values), 0.95) if values else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
