"""A number of streams through a pool's router that only ever grows, until all clients leave at once.

Boundary: sends to the one address it is given, bounded in number; it judges nothing but whether a stream broke while
its client was there. Unlike a crowd it makes a load that rises steadily.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx

from e2e.scenarios.background import Background

READ_S = 120.0


@dataclass
class Streams(Background):
    """One stream more every `every_s` seconds, `limit` at most; use as a context manager."""

    url: str
    model: str
    every_s: float = 0.2
    limit: int = 100
    tokens: int = 2000
    """Of each: more than it will get."""
    opened: int = 0
    failures: list[str] = field(default_factory=list)

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=READ_S, limits=limits) as client:
            streams: list[asyncio.Task[None]] = []
            while not await asyncio.to_thread(self._ended.wait, self.every_s):
                if len(streams) < self.limit:
                    streams.append(asyncio.create_task(self._one(client, len(streams))))
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        prompt = f"stream {number}: tell a long story about blocks of KV"
        body = {"model": self.model, "prompt": prompt, "max_tokens": self.tokens, "ignore_eos": True, "stream": True}
        try:
            async with client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    self.failures.append(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
                    return
                self.opened += 1
                async for _ in answer.aiter_bytes():
                    pass
                self.failures.append("a stream ended before its client left")
        except httpx.HTTPError as fault:
            self.failures.append(f"{type(fault).__name__}: {fault}")
