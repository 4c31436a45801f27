"""A pool on the virtual clock: arrivals, a rule's choices, both legs of each request, and what became of it.

Boundary: the straight line of a request (prefill leg, transfer, decode leg; or one local leg) and its record. How long
an engine takes is `engine`'s business, where a request goes the rule's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pdpool_sim.engine import Engine
from pdpool_sim.hardware import TRANSFER_LATENCY_S
from pdpool_sim.leg import Leg
from pdpool_sim.rule import Load, Setting

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from pdpool_sim.clock import Clock
    from pdpool_sim.hardware import EngineShape
    from pdpool_sim.rule import Rule
    from pdpool_sim.workload import Call, Workload


@dataclass(frozen=True, slots=True)
class PoolShape:
    """How large a pool is."""

    prefill: EngineShape
    decode: EngineShape
    prefills: int = 8
    decodes: int = 8
    prefill_blocks: int = 0
    """KV blocks of a prefill engine; 0: what its memory gives."""


@dataclass(slots=True)
class Outcome:
    """What became of a request; times are seconds since the start, negative: not yet."""

    call: Call
    prefill_uid: str = ""
    """Empty: its prompt was computed where it was decoded."""
    decode_uid: str = ""
    cached_tokens: int = 0
    """Of its prompt, not computed by the engine that computed the rest."""
    moved_tokens: int = 0
    refused: bool = False
    """The router did not take it."""
    first_token_s: float = -1.0
    end_s: float = -1.0

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; infinite where it was refused."""
        return float("inf") if self.refused else self.first_token_s - self.call.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean gap between its tokens; 0 with a single one."""
        gaps = self.call.output_tokens - 1
        return (self.end_s - self.first_token_s) / gaps if gaps > 0 else 0.0


class Links:
    """Network ports: one for each engine, a transfer at a time in order of asking, at the slower port's rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_s: dict[str, float] = {}

    def move(self, source: Engine, target: Engine, tokens: int, then: Callable[[], None]) -> None:
        """Moves the KV of so many tokens, then acts."""
        rate = min(source.shape.link_bytes_per_second, target.shape.link_bytes_per_second)
        start = max(self._clock.now_s, self._free_s.get(source.uid, 0.0), self._free_s.get(target.uid, 0.0))
        end = start + TRANSFER_LATENCY_S + tokens * source.shape.kv_bytes_per_token / rate
        self._free_s[source.uid] = self._free_s[target.uid] = end
        self._clock.at(end, then)


@dataclass(slots=True)
class Pool:
    """Engines of both roles, one rule before them."""

    clock: Clock
    shape: PoolShape
    block_tokens: int
    make_rule: Callable[[Setting], Rule]
    rng: Random
    outcomes: list[Outcome] = field(default_factory=list)
    prefill: Load = field(init=False)
    decode: Load = field(init=False)
    rule: Rule = field(init=False)
    links: Links = field(init=False)

    def __post_init__(self) -> None:
        shape, size, clock = self.shape, self.block_tokens, self.clock
        self.prefill = Load(
            [
                Engine(f"prefill-{number}", shape.prefill, size, clock, capacity=shape.prefill_blocks)
                for number in range(shape.prefills)
            ],
            clock,
        )
        self.decode = Load(
            [Engine(f"decode-{number}", shape.decode, size, clock) for number in range(shape.decodes)], clock
        )
        self.links = Links(clock)
        peak = 1 / shape.prefill.costs.seconds_per_token
        self.rule = self.make_rule(Setting(self.prefill, self.decode, self.rng, size, peak))

    def offer(self, workload: Workload) -> None:
        """Asks for every arrival."""
        for call in workload.calls:
            exchange = Exchange(self, call)
            self.clock.at(call.arrival_s, exchange.arrive)


class Exchange:
    """One request on its way; the owner of its legs."""

    __slots__ = ("_pool", "_sent_s", "_source", "outcome")

    def __init__(self, pool: Pool, call: Call) -> None:
        self._pool: Final = pool
        self.outcome: Final = Outcome(call)
        self._source: Leg | None = None
        """The prefill leg, until its blocks have been pulled."""
        self._sent_s = 0.0

    def arrive(self) -> None:
        """The request is here."""
        pool = self._pool
        pool.outcomes.append(self.outcome)
        pool.rule.admit(self.outcome.call, self._go, self._refuse)

    def _refuse(self) -> None:
        self.outcome.refused = True

    def _go(self) -> None:
        pool, call = self._pool, self.outcome.call
        chosen = pool.rule.plan(call)
        self._sent_s = pool.clock.now_s
        if chosen.hop:
            self.outcome.prefill_uid = chosen.uid
            self._send(pool.prefill, chosen.uid, Leg(self, call.prompt_tokens, 1, call.blocks, keeps_blocks=True))
        else:
            self.outcome.decode_uid = chosen.uid
            self._send(pool.decode, chosen.uid, self._decode_leg(pulls=False))

    def _decode_leg(self, *, pulls: bool) -> Leg:
        call = self.outcome.call
        chain = call.blocks + call.answer_blocks
        return Leg(self, call.prompt_tokens, call.output_tokens, chain, pulls=pulls)

    def _send(self, load: Load, uid: str, leg: Leg) -> None:
        call, engine = self.outcome.call, load.by_uid[uid]
        load.inflight[uid] += 1
        load.inflight_tokens[uid] += call.prompt_tokens
        if not leg.pulls:
            leg.expected_tokens = call.prompt_tokens - engine.cache.match(call.blocks) * engine.block_tokens
            load.unprefilled_tokens[uid] += leg.expected_tokens
        engine.submit(leg)

    def admitted(self, leg: Leg) -> None:
        """See `Owner.admitted`."""
        if not leg.pulls:
            self.outcome.cached_tokens = leg.cached_tokens
            return
        pool, outcome, source = self._pool, self.outcome, self._source
        assert source is not None, "a leg that pulls has one to pull from"
        engine = pool.decode.by_uid[outcome.decode_uid]
        origin = pool.prefill.by_uid[outcome.prefill_uid]
        blocks = -(-leg.prompt_tokens // pool.block_tokens) - leg.cached_tokens // pool.block_tokens
        outcome.moved_tokens = blocks * pool.block_tokens

        def done() -> None:
            origin.pulled(source)
            engine.arrived(leg)

        self._source = None
        pool.links.move(origin, engine, outcome.moved_tokens, done)

    def started(self, leg: Leg) -> None:
        """See `Owner.started`."""
        pool, outcome, now = self._pool, self.outcome, self._pool.clock.now_s
        if not leg.pulls and leg.expected_tokens:
            role = pool.prefill if leg.keeps_blocks else pool.decode
            uid = outcome.prefill_uid if leg.keeps_blocks else outcome.decode_uid
            role.unprefilled_tokens[uid] -= leg.expected_tokens
            leg.expected_tokens = 0
        if not leg.keeps_blocks:
            outcome.first_token_s = now
            pool.rule.saw_first_token(outcome.call, outcome.decode_uid, now - self._sent_s)

    def finished(self, leg: Leg) -> None:
        """See `Owner.finished`."""
        pool, outcome, now = self._pool, self.outcome, self._pool.clock.now_s
        call = outcome.call
        if not leg.keeps_blocks:
            outcome.end_s = now
            self._ended(pool.decode, outcome.decode_uid)
            pool.rule.saw_end(call, outcome.decode_uid, now - outcome.first_token_s)
            return
        self._ended(pool.prefill, outcome.prefill_uid)
        pool.rule.saw_prefill(call, outcome.prefill_uid, now - self._sent_s, leg.cached_tokens)
        self._source = leg
        outcome.decode_uid = pool.rule.place(call, outcome.prefill_uid)
        self._sent_s = now
        self._send(pool.decode, outcome.decode_uid, self._decode_leg(pulls=True))

    def _ended(self, load: Load, uid: str) -> None:
        load.inflight[uid] -= 1
        load.inflight_tokens[uid] -= self.outcome.call.prompt_tokens
