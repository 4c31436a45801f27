"""Requests that do not continue one another: retrieval, one long shared prompt, bursts, tenants."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from pdpool_sim.generators.text import Blocks, tokens, total
from pdpool_sim.workload import Call, Workload, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from pdpool_sim.generators.text import Piece

BLOCK_TOKENS: Final = 64
DOCUMENTS: Final = 800
RELATED: Final = 0.7
"""How often the next document is the one that usually follows."""


def rag(rng: Random, count: int) -> Workload:
    """Retrieval: a short instruction, one to three of 800 documents (popularity by Zipf's law), a short question."""
    sizes = [tokens(rng, 1800, 0.6, most=12_000) for _ in range(DOCUMENTS)]
    popular = _zipf(DOCUMENTS, 0.9)

    def pieces(number: int) -> list[Piece]:
        found: list[Piece] = [("instruction", 300)]
        document = bisect(popular, rng.random())
        for _ in range(rng.choice((1, 2, 2, 3))):
            found.append((f"document {document}", sizes[document]))
            document = (document * 7 + 3) % DOCUMENTS if rng.random() < RELATED else bisect(popular, rng.random())
        found.append((f"question {number}", tokens(rng, 40, 0.6)))
        return found

    return _single("rag", count, pieces=pieces, output=lambda: tokens(rng, 180, 0.6, most=1000), arrivals=_poisson(rng))


def shared_prompt(rng: Random, count: int) -> Workload:
    """Everybody's prompt begins with the same 6,000 tokens, then differs."""
    return _single(
        "shared-prompt",
        count,
        pieces=lambda number: [("system", 6000), (f"text {number}", tokens(rng, 500, 0.9, most=8000))],
        output=lambda: tokens(rng, 200, 0.7, most=1500),
        arrivals=_poisson(rng),
    )


def bursts(rng: Random, count: int) -> Workload:
    """Unrelated prompts; every half minute on average, four seconds at eight times the usual rate."""
    return _single(
        "bursts",
        count,
        pieces=lambda number: [("system", 400), (f"text {number}", tokens(rng, 1500, 1.0, most=30_000))],
        output=lambda: tokens(rng, 200, 0.7, most=1500),
        arrivals=_bursty(rng),
    )


def tenants(rng: Random, count: int) -> Workload:
    """Eight tenants with a prompt of their own each: one sends half of all requests, another few but huge ones."""
    shares = list(accumulate((0.5, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02)))
    names: list[str] = []

    def pieces(number: int) -> list[Piece]:
        tenant = min(bisect(shares, rng.random()), len(shares) - 1)
        names.append(f"tenant-{tenant}")
        median = 20_000 if tenant == len(shares) - 1 else 900
        return [(f"system of {tenant}", 800 + 300 * tenant), (f"text {number}", tokens(rng, median, 0.9))]

    return _single(
        "tenants",
        count,
        pieces=pieces,
        output=lambda: tokens(rng, 220, 0.7, most=1500),
        arrivals=_poisson(rng),
        tenant=lambda: names[-1],
    )


def _single(
    name: str,
    count: int,
    *,
    pieces: Callable[[int], list[Piece]],
    output: Callable[[], int],
    arrivals: Iterator[float],
    tenant: Callable[[], str] = lambda: "",
) -> Workload:
    blocks, calls = Blocks(BLOCK_TOKENS), list[Call]()
    for number in range(count):
        prompt = pieces(number)
        size = total(prompt)
        calls.append(Call(number, next(arrivals), size, output(), blocks.ids(prompt), tenant=tenant()))
    return in_order(name, BLOCK_TOKENS, calls)


def _poisson(rng: Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1)
        yield at_s


def _bursty(rng: Random) -> Iterator[float]:
    """One a second on average: the usual rate is half of it, a burst's eight times the usual."""
    usual, quiet_s, burst_s, factor = 0.5, 28.0, 4.0, 8.0
    at_s = 0.0
    while True:
        for length_s, rate in ((rng.expovariate(1 / quiet_s), usual), (burst_s, usual * factor)):
            end_s = at_s + length_s
            while (at_s := at_s + rng.expovariate(rate)) < end_s:
                yield at_s
            at_s = end_s


def _zipf(count: int, exponent: float) -> list[float]:
    weights = list(accumulate(1 / rank**exponent for rank in range(1, count + 1)))
    return [weight / weights[-1] for weight in weights]
