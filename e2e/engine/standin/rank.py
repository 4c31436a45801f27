"""One data-parallel rank of the stand-in engine: from a job to its tokens, with KV events and numbers on the way.

Boundary: prefill and decode of sequences; knows nothing of HTTP. Time comes from the clock it is given.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, cast

import msgspec

from e2e.engine.standin import kv, tokens
from e2e.engine.standin.events import Publisher, rank_endpoint
from e2e.engine.standin.handover import Handover, is_complete
from e2e.engine.standin.metrics import Metrics
from e2e.engine.standin.seats import Seats
from e2e.engine.standin.sequence import EngineDeadError, GenerationError, Outcome, Sequence
from e2e.engine.standin.transfer import TransferError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from e2e.engine.standin.clock import Clock
    from e2e.engine.standin.config import EngineConfig
    from e2e.engine.standin.request import Job
    from e2e.engine.standin.script import Pace, Rule


class Rank:
    """One rank; `open` before use."""

    def __init__(
        self, config: EngineConfig, number: int, clock: Clock, pace: Callable[[], Pace], die: Callable[[], None]
    ) -> None:
        self.number = number
        self.engine_id = config.engine_id or str(uuid.uuid4())
        if config.data_parallel > 1:
            self.engine_id += f"_dp{number}"
        self.metrics = Metrics(
            connector=config.pulls, consumer=config.kv_role in {"kv_consumer", "kv_both"}, lora=config.lora
        )
        self.pool = kv.BlockPool(config.blocks - 1, config.block_tokens, caching=config.prefix_caching)
        self.handover = Handover(config, self.engine_id, clock, self.metrics, self._release)
        self._config = config
        self._clock = clock
        self._pace = pace
        self._die = die
        self._publisher = Publisher(config.events, number)
        self._seats = Seats(config.max_seqs)
        self._active: dict[int, Sequence] = {}
        self._cleared = False
        self._block_bytes = config.block_tokens * tokens.TOKEN_BYTES

    async def open(self) -> None:
        """Open the event sockets and the side channel."""
        if self._config.events.publishes:
            self._publisher.open()
        if self._config.pulls:
            await self.handover.open(self.number)

    async def close(self) -> None:
        """Close them and the connections to peers."""
        await self.handover.close()
        self._publisher.close()

    def event_source(self) -> dict[str, Any]:
        """Where this rank's events are, in the form that the engine tells."""
        told = msgspec.to_builtins(self._config.events)
        told["publisher"] = "zmq"
        for name in ("endpoint", "replay_endpoint"):
            told[name] = rank_endpoint(told[name], self.number)
        return cast("dict[str, Any]", told)

    @property
    def load(self) -> int:
        """Requests running and waiting."""
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether there is work, unpulled blocks included."""
        self.handover.reap()
        return bool(self._active or self.handover.leases.active)

    def abort_all(self) -> None:
        """End every request with finish reason `abort`."""
        for sequence in list(self._active.values()):
            sequence.aborted = True
            if sequence.task is not None:
                sequence.task.cancel()

    def clear_cache(self) -> bool:
        """Forget cached blocks; AllBlocksCleared leads the next batch of events."""
        done = self.pool.clear()
        self._cleared = self._cleared or done
        return done

    def refresh_gauges(self) -> None:
        """Bring the gauges up to now, before they are shown."""
        self.handover.reap()
        for name, value, label in self._seats.gauges():
            self.metrics.set(name, value, label)
        self.metrics.set("kv_cache_usage_perc", self.pool.usage)

    async def generate(
        self, job: Job, outcome: Outcome, rule: Rule | None, *, whole: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answer token by token (with `whole`, only fill `outcome`, which costs less).

        Raises:
            EngineDeadError, GenerationError: see there.
        """
        self.handover.reap()
        sequence = Sequence(job, self._block_bytes, task=asyncio.current_task())
        self._active[id(sequence)] = sequence
        arrived_s = self._clock.now()
        try:
            await self._prefill(sequence, outcome)
            self.metrics.observe("time_to_first_token_seconds", self._clock.now() - arrived_s)
            async for piece in self._decode(sequence, outcome, rule, whole=whole):
                yield piece
        except asyncio.CancelledError:
            if not sequence.aborted:
                # The client left: vLLM counts no finish reason then.
                outcome.finish_reason = None
                raise
            outcome.finish_reason = "abort"
            # Aborted by the engine itself, as at shutdown: the request ends in order.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        except GenerationError:
            outcome.finish_reason = "error"
            raise
        finally:
            del self._active[id(sequence)]
            self._finish(sequence, outcome, arrived_s)

    def _finish(self, sequence: Sequence, outcome: Outcome, arrived_s: float) -> None:
        if outcome.finish_reason is not None:
            self.metrics.add("request_success_total", 1, outcome.finish_reason)
        if not sequence.blocks:
            return
        if sequence.wants_lease and outcome.finish_reason in {"stop", "length"} and self._config.pulls:
            outcome.transfer = self._lease(sequence, outcome)
        else:
            self.pool.release(sequence.blocks)
        self.metrics.observe("e2e_request_latency_seconds", self._clock.now() - arrived_s)
        self._seats.leave()

    def _release(self, blocks: list[kv.Block]) -> None:
        self.pool.release(blocks)
        self._seats.wake()

    def _lease(self, sequence: Sequence, outcome: Outcome) -> dict[str, Any]:
        request_id = f"{sequence.job.request_id}-{uuid.uuid4().hex[:8]}"
        self.handover.grant(request_id, sequence.blocks, sequence.held())
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[block.number for block in sequence.blocks]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._config.side_channel_host,
            "remote_port": self.handover.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.computed // tokens.TOKEN_BYTES,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": outcome.cached_tokens,
        }

    # Prefill
    def _cached(self, job: Job) -> tuple[kv.Chain, list[kv.Block]]:
        """The prompt's chain, and the blocks of it that are here."""
        if not self.pool.caching:
            return kv.Chain([], []), []
        lora = job.adapter[1] if job.adapter else None
        chain = kv.chain(job.prompt, self._config.block_tokens, lora=lora, salt=job.cache_salt)
        if job.bypass_cache:
            return chain, []
        # The last token is always computed, so that there is something to sample from.
        most = (job.prompt_tokens - 1) // self._config.block_tokens
        return chain, self.pool.hit(chain.keys[:most])

    async def _prefill(self, sequence: Sequence, outcome: Outcome) -> None:
        """Take a seat, get the prompt's KV by cache, pull or computing, and leave the sequence running."""
        job = sequence.job
        remote = bool(job.transfer and job.transfer.get("do_remote_prefill") and not job.bypass_cache)
        remote = remote and self._config.pulls
        needed = -(-job.prompt_tokens // self._config.block_tokens)
        await self._start(job, needed, remote=remote)
        seated = True
        try:
            events: list[kv.Event] = [{"type": "AllBlocksCleared"}] if self._cleared else []
            self._cleared = False
            chain, hits = self._cached(job)
            cached = len(hits) * self._config.block_tokens
            sequence.known = bytearray(job.prompt)
            sequence.blocks = hits + self.pool.take(hits, needed - len(hits), events)
            sequence.hits = [block.content for block in hits if block.content is not None]
            if remote:
                # Removals that made room are told when the pull starts, the stores when it is done.
                self._publisher.publish(events)
                events = []
                seated = False
                self._seats.leave()
                await self._pull(sequence, needed - len(hits))
                with self._seats.stage("completed_waiting"):
                    await self._seats.take(lambda: True)
                seated = True
            if not sequence.pulled:
                await self._compute(sequence, cached)
            self._fill(sequence, chain, len(hits), events)
            self._count_prompt(sequence, cached)
            outcome.cached_tokens = self._shown_cached(sequence, cached)
        except BaseException:
            self.pool.release(sequence.blocks)
            sequence.blocks = []
            if seated:
                self._seats.leave()
            raise

    async def _start(self, job: Job, blocks: int, *, remote: bool) -> None:
        """Wait for a seat and for room for the prompt."""

        def fits() -> bool:
            return self.pool.free >= blocks

        if not remote:
            await self._seats.take(fits)
            return
        with self._seats.stage("waiting_to_start"):
            async with self.handover.kept(job.transfer):
                await self._seats.take(fits)

    async def _compute(self, sequence: Sequence, cached: int) -> None:
        per_token_s = self._pace().prefill_s_per_token
        if per_token_s:
            await self._clock.sleep(per_token_s * (sequence.job.prompt_tokens - cached))
        sequence.compute(cached)

    async def _pull(self, sequence: Sequence, blocks: int) -> None:
        """Read the blocks that are missing from prefill; without effect where the policy is to compute them instead.

        Raises:
            EngineDeadError: the parameters name no blocks, or fewer than the prompt needs.
            GenerationError: the read failed and the policy is `fail`.
        """
        params = sequence.job.transfer or {}
        if not params.get("remote_block_ids"):
            self._die()
            raise EngineDeadError("AssertionError: num_external_tokens == 0")
        if not is_complete(params):
            await self._wait_in_vain()
        if blocks > len(params["remote_block_ids"][0]):
            self._die()
            raise EngineDeadError("AssertionError: num_decode_blocks <= len(prefill_group)")
        with self._seats.stage("in_progress"):
            try:
                if self._pace().pull_s:
                    await self._clock.sleep(self._pace().pull_s)
                sequence.adopt(await self.handover.read(params, blocks))
            except TransferError as error:
                self.metrics.add("nixl_num_failed_transfers_total")
                if self._config.on_failure == "fail":
                    raise GenerationError(str(error)) from error
            except asyncio.CancelledError:
                await asyncio.shield(self.handover.free(params))
                raise

    async def _wait_in_vain(self) -> None:
        """Parameters without an engine's id: the request waits until its client leaves, and that ends the engine."""
        try:
            await asyncio.Event().wait()
        finally:
            self._die()

    def _shown_cached(self, sequence: Sequence, cached: int) -> int:
        """What usage says: after a pull prefill's number, else what was found here."""
        if not sequence.pulled:
            return cached
        told = (sequence.job.transfer or {}).get("remote_prefill_cached_tokens")
        return sequence.job.prompt_tokens if told is None else int(told)

    def _fill(self, sequence: Sequence, chain: kv.Chain, hit_blocks: int, events: list[kv.Event]) -> None:
        """Make the prompt's full blocks findable and tell it."""
        job, full = sequence.job, len(chain.keys)
        sequence.keys = chain.keys
        if full > hit_blocks:
            self._store(sequence, hit_blocks, full, chain.keys[hit_blocks:])
        first = 0 if job.full_report else hit_blocks
        if self._config.events.publishes and full > first:
            part = kv.Chain(chain.keys[first:], chain.extra_keys[first:])
            events.append(self._stored(sequence, part, first))
        self._publisher.publish(events)

    def _store(self, sequence: Sequence, first: int, end: int, keys: list[int]) -> None:
        held = sequence.contents(first * self._block_bytes, end * self._block_bytes)
        # Fewer were pulled than the prompt has only with the parameters of another prompt.
        for block, content in zip(sequence.blocks[first:end], held, strict=False):
            block.content = content
        self.pool.store(sequence.blocks[first:end], keys)

    def _stored(self, sequence: Sequence, part: kv.Chain, first: int) -> kv.Event:
        """The event for the blocks of `part`, the first of which is the sequence's block `first`."""
        job = sequence.job
        parent = sequence.keys[first - 1] if first else None
        told = bytes(sequence.known[first * self._block_bytes : (first + len(part.keys)) * self._block_bytes])
        block_tokens = self._config.block_tokens
        return kv.stored_event(part, parent, told, block_tokens, lora=job.adapter, session_id=job.session_id)

    def _count_prompt(self, sequence: Sequence, cached: int) -> None:
        add, count = self.metrics.add, sequence.job.prompt_tokens
        external = count - cached if sequence.pulled else 0
        add("prompt_tokens_total", count)
        add("prompt_tokens_by_source_total", cached, "local_cache_hit")
        add("prompt_tokens_by_source_total", external, "external_kv_transfer")
        add("prompt_tokens_by_source_total", count - cached - external, "local_compute")
        add("prompt_tokens_cached_by_source_total", cached, "device")
        add("prompt_tokens_cached_by_source_total", external, "p2p")
        add("prompt_tokens_cached_total", cached + external)
        add("prefix_cache_queries_total", 0 if sequence.job.bypass_cache else count)
        add("prefix_cache_hits_total", cached)
        if self._config.pulls:
            add("external_prefix_cache_queries_total", count - cached)
            add("external_prefix_cache_hits_total", external)
        self.metrics.observe("request_prompt_tokens", count)

    # Decode
    async def _decode(
        self, sequence: Sequence, outcome: Outcome, rule: Rule | None, *, whole: bool
    ) -> AsyncGenerator[bytes, None]:
        answer, ended = sequence.answer(outcome, rule)
        grows = rule is None or rule.text is None
        fault = rule.fault_after_tokens if rule is not None and (rule.finish_reason or rule.error_event) else None
        for index, piece in enumerate(answer if fault is None else answer[:fault]):
            # Asked at every token: a test may let a long answer go on slowly, and then end it.
            if step_s := self._pace().step_s:
                await self._clock.sleep(step_s)
            elif not whole:
                await asyncio.sleep(0)
            outcome.answer.append(piece)
            if grows:
                self._grow(sequence, piece)
            if index == len(answer) - 1:
                outcome.finish_reason = "stop" if ended else "length"
            if not whole:
                yield piece
        if fault is not None and rule is not None:
            if rule.finish_reason != "abort":
                raise GenerationError("scripted")
            outcome.finish_reason = "abort"
        self.metrics.add("generation_tokens_total", len(outcome.answer))
        self.metrics.observe("request_generation_tokens", len(outcome.answer))
        self.metrics.observe("request_params_max_tokens", sequence.job.most_tokens)

    def _grow(self, sequence: Sequence, piece: bytes) -> None:
        """Append a generated token; a block that its KV fills becomes findable."""
        sequence.known += piece
        if len(sequence.known) > len(sequence.blocks) * self._block_bytes:
            self._add_block(sequence)
        at, full = len(sequence.keys), sequence.computed // self._block_bytes
        if not self.pool.caching or not at < full <= len(sequence.blocks):
            return
        job = sequence.job
        lora = job.adapter[1] if job.adapter else None
        told = bytes(sequence.known[at * self._block_bytes : full * self._block_bytes])
        parent = sequence.keys[-1] if at else None
        salt = job.cache_salt if parent is None else None
        part = kv.chain(told, self._config.block_tokens, lora=lora, salt=salt, parent=parent)
        self._store(sequence, at, full, part.keys)
        if self._config.events.publishes:
            self._publisher.publish([self._stored(sequence, part, at)])
        sequence.keys += part.keys

    def _add_block(self, sequence: Sequence) -> None:
        events: list[kv.Event] = []
        try:
            sequence.blocks += self.pool.take([], 1, events)
        except kv.OutOfBlocksError:
            self.metrics.add("num_preemptions_total")
        self._publisher.publish(events)
