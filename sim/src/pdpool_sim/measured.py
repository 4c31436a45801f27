"""An engine's costs from what its clients measured, and the simulated engine at the same arrivals.

Boundary: pure. Whoever plays requests to a real engine is given as a function (`e2e.bench.engine_model`), so that the
same measurements can be taken of the simulated engine itself. A prompt is its token ids: what both engines find cached
follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, fsum
from operator import mul
from statistics import median
from typing import TYPE_CHECKING, Final

from pdpool_sim.clock import Clock
from pdpool_sim.engine import Engine
from pdpool_sim.hardware import EngineShape, StepCosts
from pdpool_sim.leg import Leg
from pdpool_sim.run import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from pdpool_sim.gaps import Gaps

LONGEST_TOKENS: Final = 1500
"""Of prompts that are played; the engine's `--max-model-len` must be larger by the longest answer."""
_VOCABULARY: Final = range(300, 4000)
_BATCHES: Final = (1, 2, 4, 8)
_CONTEXTS: Final = (64, 1024)
_ANSWER_TOKENS: Final = 48
_PROMPTS: Final = (32, 128, 256, 384, 512, 1024, 1500)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    at_s: float
    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What its client saw."""

    ttft_s: float
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Played:
    """What came of some requests."""

    answers: tuple[Answer, ...]
    """In the order of the requests."""
    gaps: Gaps
    """Between two tokens of one request."""

    def ttft_s(self, share: float) -> float:
        """The time to the first token that so large a share of requests do not exceed."""
        return quantile(sorted(each.ttft_s for each in self.answers), share)


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine was started with."""

    block_tokens: int
    blocks: int
    max_seqs: int
    max_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine as its clients see it."""

    costs: StepCosts
    front_s: float
    """From a client to the scheduler and back: HTTP, checking, the first token's way."""
    worst: float
    """The largest relative error of what was fitted."""

    def play(self, asks: Sequence[Ask], settings: Settings) -> Played:
        """What the simulated engine makes of the requests."""
        clock = Clock()
        shape = EngineShape(self.costs, 0, settings.max_batched_tokens, settings.max_seqs, 1, 1)
        engine = Engine("measured", shape, settings.block_tokens, clock, capacity=settings.blocks)
        handles: dict[tuple[int, tuple[int, ...]], int] = {}
        clients = [_Client(clock, ask) for ask in asks]
        for client in clients:
            ask = client.ask
            chain = _chain(ask.prompt, settings.block_tokens, handles)
            client.leg = Leg(client, len(ask.prompt), ask.output_tokens, chain)
            clock.at(ask.at_s + self.front_s, lambda leg=client.leg: engine.submit(leg))  # type: ignore[misc]
        clock.run()
        answers = tuple(Answer(each.first_s - each.ask.at_s, each.leg.cached_tokens) for each in clients)
        return Played(answers, engine.gaps)


class _Client:
    """Notes the first token of one request."""

    leg: Leg

    def __init__(self, clock: Clock, ask: Ask) -> None:
        self._clock = clock
        self.ask: Final = ask
        self.first_s = 0.0

    def admitted(self, leg: Leg) -> None:
        """See `Owner.admitted`."""

    def started(self, leg: Leg) -> None:
        """See `Owner.started`."""
        del leg
        self.first_s = self._clock.now_s

    def finished(self, leg: Leg) -> None:
        """See `Owner.finished`."""


def _chain(prompt: Sequence[int], size: int, handles: dict[tuple[int, tuple[int, ...]], int]) -> tuple[int, ...]:
    """Handles of the prompt's full blocks: equal exactly where everything up to their end is equal."""
    chain: list[int] = []
    before = -1
    for start in range(0, len(prompt) - size + 1, size):
        before = handles.setdefault((before, tuple(prompt[start : start + size])), len(handles))
        chain.append(before)
    return tuple(chain)


# --- from measurements to costs


def measure(play: Callable[[Sequence[Ask]], Played], settings: Settings, rng: Random, *, rounds: int = 5) -> Measured:
    """An engine's costs: gaps of full batches and times of lone prompts, each the median of some rounds.

    A step's time is a sum over steps, sequences, tokens and pairs of token and context; a lone prompt's has what
    surrounds the engine too. All five are fitted at once, errors counted in relation to what was measured.
    """
    rows: list[tuple[float, ...]] = []
    times_s: list[float] = []
    for context in _CONTEXTS:
        for batch in (each for each in _BATCHES if each <= settings.max_seqs):
            found = [play([Ask(0.0, _ids(rng, context), _ANSWER_TOKENS) for _ in range(batch)]) for _ in range(rounds)]
            kv_tokens = batch * (context + _ANSWER_TOKENS / 2)
            rows.append((1.0, batch, batch, kv_tokens, 0.0))
            times_s.append(median(each.gaps.quantile(0.5) for each in found))
    for tokens in _PROMPTS:
        found = [play([Ask(0.0, _ids(rng, tokens), 1)]) for _ in range(rounds)]
        steps = ceil(tokens / settings.max_batched_tokens)
        rows.append((steps, steps, tokens, tokens * tokens / 2, 1.0))
        times_s.append(median(each.ttft_s(0.5) for each in found))
    step_s, sequence_s, token_s, pair_s, front_s = fitted(rows, times_s)
    worst = max(
        abs(fsum(map(mul, row, (step_s, sequence_s, token_s, pair_s, front_s))) / seen - 1)
        for row, seen in zip(rows, times_s, strict=True)
    )
    return Measured(
        StepCosts(
            seconds_per_token=token_s,
            seconds_per_pair=pair_s,
            weights_s=0.0,
            seconds_per_kv_token=0.0,
            overhead_s=step_s,
            seconds_per_sequence=sequence_s,
        ),
        front_s,
        worst,
    )


def fitted(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Factors of the columns, none below 0, by the least squares of relative errors."""
    columns = list(range(len(rows[0])))
    while True:
        scaled = [[row[column] / value for column in columns] for row, value in zip(rows, values, strict=True)]
        squares = [[fsum(row[a] * row[b] for row in scaled) for b in range(len(columns))] for a in range(len(columns))]
        found = _solved(squares, [fsum(row[a] for row in scaled) for a in range(len(columns))])
        if min(found) >= 0:
            told = dict(zip(columns, found, strict=True))
            return [told.get(column, 0.0) for column in range(len(rows[0]))]
        del columns[found.index(min(found))]


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a regular system of equations, by elimination with pivots."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[best] = rows[best], rows[at]
        for row in range(size):
            if row != at:
                factor = rows[row][at] / rows[at][at]
                rows[row] = [own - factor * other for own, other in zip(rows[row], rows[at], strict=True)]
    return [rows[at][size] / rows[at][at] for at in range(size)]


# --- what is played


def conversations(rng: Random, count: int, rate: float) -> list[Ask]:
    """Requests at random moments, so many a second: new prompts, and longer turns of some of those before."""
    asks: list[Ask] = []
    at_s = 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate)
        earlier = rng.choice(asks).prompt if asks and rng.random() < 0.4 else ()  # noqa: PLR2004 - two of five
        fresh = _ids(rng, min(1000, max(16, round(rng.lognormvariate(5.3, 0.8)))))
        asks.append(Ask(at_s, (*earlier, *fresh)[:LONGEST_TOKENS], rng.randint(8, 64)))
    return asks


def at_once(asks: Sequence[Ask]) -> list[Ask]:
    """The same requests, all in the first moment."""
    return [Ask(0.0, each.prompt, each.output_tokens) for each in asks]


def _ids(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(_VOCABULARY, k=count))
