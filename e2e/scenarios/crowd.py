"""A crowd of clients on a pool's router: each sends its next request when the one before has ended.

Boundary: sends to the one address it is given, bounded in clients; it judges nothing. Unlike a trickle it builds a
queue: its number of clients is what waits and runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx

from e2e.scenarios.background import Background

REQUEST_TIMEOUT_S = 180.0


@dataclass
class Crowd(Background):
    """`clients` of them, until `clients` is lowered or the block ends; use as a context manager."""

    url: str
    model: str
    clients: int
    max_tokens: int = 200
    question: str = "tell a long story about blocks of KV"
    turns: int = 1
    """Requests of one conversation: each repeats the questions before it, so that their KV can be found again."""
    pause_s: float = 0.0
    """Between a client's answer and its next request; may be changed meanwhile."""
    succeeded: int = 0
    failures: list[str] = field(default_factory=list)

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S) as client, asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._one(client, number))

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        count = 0
        while not self._ended.is_set() and number < self.clients:
            count += 1
            began = count - (count - 1) % self.turns
            asked = [f"client {number}, request {each}: {self.question}" for each in range(began, count + 1)]
            body = {
                "model": self.model,
                "messages": [{"role": "user", "content": words} for words in asked],
                "max_tokens": self.max_tokens,
                "ignore_eos": True,
                "stream": True,
            }
            try:
                answer = await client.post(f"{self.url}/v1/chat/completions", json=body)
            except httpx.HTTPError as fault:
                self.failures.append(f"{type(fault).__name__}: {fault}")
                continue
            if answer.status_code == httpx.codes.OK and answer.text.rstrip().endswith("data: [DONE]"):
                self.succeeded += 1
            else:
                self.failures.append(f"{answer.status_code}: {answer.text[-300:]}")
            await asyncio.sleep(self.pause_s)
