"""A steady trickle of requests through a pool's router, and what became of each.

Boundary: sends to the one address it is given, bounded in rate and count; it judges nothing. It is the witness that a
change cost no client anything.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import httpx

from e2e.scenarios.background import Background

REQUEST_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """One request: when it was sent (seconds since the trickle's start), how long it took, and how it ended."""

    sent_s: float
    took_s: float
    status: int
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether a client would call it failed."""
        return self.status != httpx.codes.OK or bool(self.error)


@dataclass
class Trickle(Background):
    """One chat every `every_s` seconds, each on its own, at most `limit` in all; use as a context manager.

    `stream` alternates: every other request is streamed and must end with `[DONE]`.
    """

    url: str
    model: str
    every_s: float = 0.2
    limit: int = 2000
    max_tokens: int = 8
    keep_alive: bool = True
    """Whether connections are used again, as most clients do; else each request opens its own."""
    outcomes: list[Outcome] = field(default_factory=list)

    def stop(self) -> list[Outcome]:
        """Send no more, wait for what is under way, and tell every outcome."""
        self._end()
        return self.outcomes

    def failures(self) -> list[Outcome]:
        """The outcomes so far that a client would call failed."""
        return [outcome for outcome in self.outcomes if outcome.failed]

    async def _run(self) -> None:
        start_s = time.monotonic()
        kept = None if self.keep_alive else 0
        limits = httpx.Limits(max_keepalive_connections=kept)
        async with (
            httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, limits=limits) as client,
            asyncio.TaskGroup() as requests,
        ):
            for number in range(self.limit):
                requests.create_task(self._one(client, number, start_s))
                due_s = start_s + (number + 1) * self.every_s
                if await asyncio.to_thread(self._ended.wait, max(0.0, due_s - time.monotonic())):
                    return

    async def _one(self, client: httpx.AsyncClient, number: int, start_s: float) -> None:
        streamed = number % 2 == 1
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"request {number}: say something about transfers of KV blocks"}],
            "max_tokens": self.max_tokens,
            "stream": streamed,
        }
        sent_s = time.monotonic()
        status, error = 0, ""
        try:
            answer = await client.post(f"{self.url}/v1/chat/completions", json=body)
            status = answer.status_code
            if status != httpx.codes.OK:
                error = answer.text[:300]
            elif streamed and not answer.text.rstrip().endswith("data: [DONE]"):
                error = f"the stream ended with {answer.text[-200:]!r}"
        except httpx.HTTPError as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.outcomes.append(Outcome(sent_s - start_s, time.monotonic() - sent_s, status, error))
