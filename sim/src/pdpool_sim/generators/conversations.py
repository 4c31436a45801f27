"""Conversations: each turn repeats all before it. Chats between people and models, and agents with tools.

Boundary: arrivals are fixed beforehand (an open loop): a turn comes a pause after the time that the answer before it
would take at 20 ms a token, whatever the pool does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.generators.text import Blocks, tokens, total
from pdpool_sim.workload import Call, Workload, in_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from pdpool_sim.generators.text import Piece

BLOCK_TOKENS: Final = 64
TOKEN_S: Final = 0.02


def chat(rng: Random, count: int) -> Workload:
    """Multi-turn chats: four system prompts, six turns on average, short questions, half a minute to think."""
    return _conversations(
        "chat",
        rng,
        count,
        opening=lambda number: (f"system {number % 4}", 600 + 200 * (number % 4)),
        turns=lambda: 1 + min(30, int(rng.expovariate(1 / 5))),
        said=lambda: tokens(rng, 150, 1.2, most=8000),
        answered=lambda: tokens(rng, 250, 0.7, most=1500),
        pause_s=lambda: 5 + rng.expovariate(1 / 25),
    )


def agents(rng: Random, count: int) -> Workload:
    """Agents: six kinds with long instructions and tools, fifteen quick steps, tool results of any length."""
    return _conversations(
        "agents",
        rng,
        count,
        opening=lambda number: (f"agent {number % 6}", 3000 + 700 * (number % 6)),
        turns=lambda: 3 + min(40, int(rng.expovariate(1 / 12))),
        said=lambda: tokens(rng, 500, 1.1, most=6000),
        answered=lambda: tokens(rng, 90, 0.8, most=800),
        pause_s=lambda: 0.5 + rng.expovariate(1 / 3),
    )


def _conversations(
    name: str,
    rng: Random,
    count: int,
    *,
    opening: Callable[[int], Piece],
    turns: Callable[[], int],
    said: Callable[[], int],
    answered: Callable[[], int],
    pause_s: Callable[[], float],
) -> Workload:
    blocks, calls = Blocks(BLOCK_TOKENS), list[Call]()
    session = 0
    while len(calls) < count:
        length = turns()
        # Sessions begin over the whole span; their turns then overlap, about one call a second in all.
        at_s = rng.random() * count
        pieces: list[Piece] = [opening(rng.randrange(1 << 16))]
        for turn in range(length):
            pieces.append((f"{session}:{turn}:said", said()))
            output = answered()
            prompt = blocks.ids(pieces)
            size = total(pieces)
            pieces.append((f"{session}:{turn}:answered", output))
            both = blocks.ids(pieces)
            calls.append(
                Call(
                    len(calls),
                    at_s,
                    size,
                    output,
                    prompt,
                    both[len(prompt) :],
                    session=str(session),
                    opening_tokens=total(pieces[:2]),
                )
            )
            at_s += output * TOKEN_S + pause_s()
        session += 1
    return in_order(name, BLOCK_TOKENS, calls)
