"""The stand-in engine behind its HTTP surface: ranks, adapters, and its life (serving, draining, dead).

Boundary: chooses ranks and runs jobs; shapes of requests and answers are `request`'s and `api`'s business.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from e2e.engine.standin import metrics
from e2e.engine.standin.rank import Rank
from e2e.engine.standin.refusal import RefusedError
from e2e.engine.standin.sequence import EngineDeadError, GenerationError, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from e2e.engine.standin.clock import Clock
    from e2e.engine.standin.config import EngineConfig
    from e2e.engine.standin.request import Job
    from e2e.engine.standin.script import Pace, Rule


class Engine:
    """All ranks of one stand-in. `on_death` is called when the engine core dies."""

    def __init__(self, config: EngineConfig, clock: Clock, pace: Pace, on_death: Callable[[], None]) -> None:
        self.config = config
        self.clock = clock
        self.pace = pace
        self.dead = False
        self.draining = False
        self.adapters: dict[str, tuple[int, str]] = {
            name: (index + 1, path) for index, (name, path) in enumerate(config.adapters)
        }
        self._next_adapter = len(self.adapters) + 1
        self._on_death = on_death
        self.ranks = [
            Rank(config, number, clock, lambda: self.pace, self.die) for number in range(config.data_parallel)
        ]
        self._describe()

    def _describe(self) -> None:
        config = self.config
        for rank in self.ranks:
            rank.metrics.info["vllm:cache_config_info"] = {
                "block_size": str(config.block_tokens),
                "effective_attention_block_size": str(config.block_tokens),
                "num_gpu_blocks": str(config.blocks),
                "kv_cache_size_tokens": str(config.blocks * config.block_tokens),
                "kv_cache_max_concurrency": str(round(config.blocks * config.block_tokens / config.max_model_len, 2)),
                "kv_cache_memory_bytes": str(config.blocks * config.block_tokens * config.kv_bytes_per_token),
                "enable_prefix_caching": str(config.prefix_caching),
            }

    async def open(self) -> None:
        """Open all ranks' sockets."""
        for rank in self.ranks:
            await rank.open()

    async def close(self) -> None:
        """Abort what runs and close all ranks' sockets."""
        for rank in self.ranks:
            rank.abort_all()
            await rank.close()

    def die(self) -> None:
        """The engine core ends, as after an assertion: nothing is answered any more."""
        self.dead = True
        self._on_death()

    async def drain(self, timeout_s: float) -> None:
        """Finish what runs, then return; with a timeout of zero, or when it is over, what runs is aborted."""
        self.draining = True
        end_s = self.clock.now() + timeout_s
        while self.clock.now() < end_s and any(rank.busy for rank in self.ranks):
            await self.clock.sleep(0.05)
        for rank in self.ranks:
            rank.abort_all()
        # Aborted requests still get their answers written.
        for _ in range(10):
            await asyncio.sleep(0)

    def rank_of(self, header: str | None) -> int | None:
        """The rank that a request names.

        Raises:
            RefusedError: there is no such rank.
        """
        if header is None:
            return None
        try:
            rank = int(header)
        except ValueError:
            return None
        if not 0 <= rank < len(self.ranks):
            raise RefusedError(f"data_parallel_rank {rank} is out of range [0, {len(self.ranks)}).")
        return rank

    def _rank(self, job: Job) -> Rank:
        if job.rank is not None:
            return self.ranks[job.rank]
        return min(self.ranks, key=lambda rank: rank.load)

    async def stream(self, job: Job, outcome: Outcome, rule: Rule | None) -> AsyncGenerator[bytes, None]:
        """The tokens of one job as they are generated."""
        async with aclosing(self._run(job, outcome, rule, whole=False)) as run:
            async for piece in run:
                yield piece

    async def complete(self, job: Job, rule: Rule | None) -> Outcome:
        """The whole answer of one job."""
        outcome = Outcome()
        async with aclosing(self._run(job, outcome, rule, whole=True)) as run:
            async for _ in run:
                pass
        return outcome

    async def complete_all(self, jobs: list[Job], rule: Rule | None) -> list[Outcome]:
        """The whole answers of several jobs, side by side; the first failure ends all."""
        if len(jobs) == 1:
            return [await self.complete(jobs[0], rule)]
        tasks = [asyncio.ensure_future(self.complete(job, rule)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _run(self, job: Job, outcome: Outcome, rule: Rule | None, *, whole: bool) -> AsyncGenerator[bytes, None]:
        if self.dead:
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        if self.draining:
            outcome.finish_reason = "abort"
            return
        async with aclosing(self._rank(job).generate(job, outcome, rule, whole=whole)) as generation:
            async for piece in generation:
                yield piece

    async def release_remote(self, transfer: Any) -> None:
        """A request with these parameters was refused: tell prefill, so that it need not wait for its lease's end."""
        if isinstance(transfer, dict) and transfer.get("do_remote_prefill"):
            await self.ranks[0].handover.free(transfer)

    def load_adapter(self, name: str, path: str) -> None:
        """Add a LoRA adapter."""
        self.adapters[name] = (self._next_adapter, path)
        self._next_adapter += 1

    def exposition(self) -> bytes:
        """The text of `/metrics`."""
        for rank in self.ranks:
            rank.refresh_gauges()
        return metrics.rendered([rank.metrics for rank in self.ranks], self.config.served_names[0])

    def event_sources(self) -> dict[str, Any]:
        """The answer of `/kv_event_sources`: the resolved settings per rank."""
        return {str(rank.number): rank.event_source() for rank in self.ranks} if self.config.events.publishes else {}


__all__ = ["Engine", "EngineDeadError", "GenerationError", "Outcome"]
