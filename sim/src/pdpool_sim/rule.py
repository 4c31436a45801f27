"""What a routing rule sees and answers in the simulator.

Boundary: `Load` is what any router can know: what it sent and what came back, and engines' metrics as old as the last
scrape. Rules for comparison see engines' prefix caches as they are (as by lossless KV events): that favours them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from pdpool_sim.clock import Clock
    from pdpool_sim.engine import Engine
    from pdpool_sim.workload import Call

SCRAPE_S: Final = 0.05


class EngineMetrics:
    """What one scrape told of an engine."""

    __slots__ = ("kv_usage", "running", "waiting")

    def __init__(self, engine: Engine) -> None:
        self.waiting = engine.queued
        self.running = engine.running
        self.kv_usage = engine.cache.usage


class Load:
    """Endpoints of one role and what is known of their load, by uid."""

    def __init__(self, engines: Sequence[Engine], clock: Clock, scrape_s: float = SCRAPE_S) -> None:
        self.engines: Final = tuple(engines)
        self.by_uid: Final = {engine.uid: engine for engine in engines}
        self.inflight: Final = dict.fromkeys(self.by_uid, 0)
        """Requests sent and not ended."""
        self.unprefilled_tokens: Final = dict.fromkeys(self.by_uid, 0)
        """Tokens that were not cached when they were sent, of prompts that are not computed yet."""
        self.inflight_tokens: Final = dict.fromkeys(self.by_uid, 0)
        """Prompt tokens of requests in flight."""
        self.clock: Final = clock
        self._scrape_s = scrape_s
        self._scraped_s = float("-inf")
        self._metrics: dict[str, EngineMetrics] = {}

    def metrics(self) -> dict[str, EngineMetrics]:
        """Engines' metrics, at most one scrape interval old."""
        if self.clock.now_s - self._scraped_s >= self._scrape_s:
            self._scraped_s = self.clock.now_s
            self._metrics = {engine.uid: EngineMetrics(engine) for engine in self.engines}
        return self._metrics

    def matches(self, call: Call) -> dict[str, int]:
        """Leading blocks of the prompt that each engine holds."""
        return {engine.uid: engine.cache.match(call.blocks) for engine in self.engines}


class Chosen:
    """The first choice: an engine, and whether it is the prefill leg of two or the only leg."""

    __slots__ = ("hop", "uid")

    def __init__(self, uid: str, *, hop: bool = True) -> None:
        self.uid = uid
        self.hop = hop


class Rule(Protocol):
    """A way to route."""

    def admit(self, call: Call, go: Callable[[], None], refuse: Callable[[], None]) -> None:
        """A request is here: it goes on, now or later, or is refused; exactly one of the two is called."""

    def plan(self, call: Call) -> Chosen:
        """Where a new request goes first."""

    def place(self, call: Call, prefill_uid: str) -> str:
        """The decode engine, once the prefill leg is done."""

    def saw_prefill(self, call: Call, uid: str, seconds: float, cached_tokens: int) -> None:
        """A prefill leg was answered."""

    def saw_first_token(self, call: Call, uid: str, seconds: float) -> None:
        """A decode leg gave its first token, so long after it was sent."""

    def saw_end(self, call: Call, uid: str, seconds: float) -> None:
        """A decode leg ended, so long after its first token."""


class Reports:
    """The part of a rule that lets everybody go on at once and learns nothing from outcomes."""

    def admit(self, call: Call, go: Callable[[], None], refuse: Callable[[], None]) -> None:
        """See `Rule.admit`."""
        del call, refuse
        go()

    def saw_prefill(self, call: Call, uid: str, seconds: float, cached_tokens: int) -> None:
        """See `Rule.saw_prefill`."""

    def saw_first_token(self, call: Call, uid: str, seconds: float) -> None:
        """See `Rule.saw_first_token`."""

    def saw_end(self, call: Call, uid: str, seconds: float) -> None:
        """See `Rule.saw_end`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rule is made for: both roles, a source of chance, sizes."""

    prefill: Load
    decode: Load
    rng: Random
    block_tokens: int
    prefill_tokens_per_second: float
    """Peak speed of a prefill engine."""
