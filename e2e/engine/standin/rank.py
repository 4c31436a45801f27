"""One data-parallel rank of the stand-in engine: seats, prefill, pulls, decode, leases, and the numbers of all of it.

Boundary: turns jobs into tokens; knows nothing of HTTP. Time comes from the clock it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from e2e.engine.standin import kv, tokens
from e2e.engine.standin.events import Publisher, rank_endpoint
from e2e.engine.standin.metrics import Metrics
from e2e.engine.standin.transfer import Ask, Peers, SideChannel, Told, TransferError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from collections.abc import Sequence as SequenceOf

    from e2e.engine.standin.clock import Clock
    from e2e.engine.standin.config import EngineConfig
    from e2e.engine.standin.request import Job
    from e2e.engine.standin.script import Pace, Rule


class EngineDeadError(Exception):
    """The engine core has died: every request is answered 500 and the port closes."""


class GenerationError(Exception):
    """The engine ended a request with finish reason `error`."""


@dataclass(slots=True)
class Outcome:
    """What a generation says beside its tokens; complete when the iteration is over."""

    cached_tokens: int = 0
    answer: list[bytes] = field(default_factory=list)
    text_length: int | None = None  # characters of the answer, when a stop string cuts it short
    finish_reason: str | None = None
    stop_reason: str | None = None
    transfer: dict[str, Any] | None = None


@dataclass(slots=True)
class Sequence:
    """A job in the engine: its blocks and what they hold."""

    job: Job
    blocks: list[kv.Block] = field(default_factory=list)
    hits: list[kv.Content] = field(default_factory=list)  # of the leading blocks that were not computed here
    keys: list[int] = field(default_factory=list)
    known: bytearray = field(default_factory=bytearray)  # all tokens, generated ones included
    model_state: int = 0
    pulled: bool = False
    task: asyncio.Task[Any] | None = None
    aborted: bool = False


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
        self.leases = kv.Leases()
        self.side_channel_port = 0
        self._config = config
        self._clock = clock
        self._pace = pace
        self._die = die
        self._publisher = Publisher(config.events, number)
        self._side_channel = SideChannel(self._answer_peer)
        self._peers = Peers()
        self._running = 0
        self._queue: deque[asyncio.Event] = deque()
        self._active: dict[int, Sequence] = {}
        self._fetching = {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0}
        self._cleared = False
        self._reaper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the event sockets and the side channel."""
        if self._config.events.publishes:
            self._publisher.open()
        if self._config.pulls:
            base = self._config.side_channel_port
            self.side_channel_port = await self._side_channel.open(
                self._config.side_channel_host, base and base + self.number
            )

    async def close(self) -> None:
        """Close them and the connections to peers."""
        if self._reaper is not None:
            self._reaper.cancel()
        self._peers.close()
        await self._side_channel.close()
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
        self.reap()
        return bool(self._active or self.leases.active)

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

    # Leases and peers
    def reap(self) -> None:
        """Free blocks whose lease is over."""
        for lease in self.leases.expired(self._clock.now()):
            self.pool.release(lease.blocks)
            self.metrics.add("nixl_num_kv_expired_reqs_total")
            self._wake()

    async def _reap_in_time(self) -> None:
        """Free blocks when leases end, also when nobody asks: requests may be waiting for them."""
        while self.leases.active:
            next_s = min(lease.expires_s for lease in self.leases.active.values())
            await self._clock.sleep(max(0.001, next_s - self._clock.now()))
            self.reap()
        self._reaper = None

    def _answer_peer(self, ask: Ask) -> Told:
        self.reap()
        if ask.engine_id != self.engine_id:
            return Told(f"engine {ask.engine_id} is not here, this is {self.engine_id}")
        if ask.model and ask.model != self._config.model:
            return Told(f"NIXL compatibility check failed: model {ask.model!r} there, {self._config.model!r} here")
        if ask.what == "beat":
            self.leases.extend(ask.request_id, self._clock.now() + self._config.lease_s * 2 // 3)
            return Told("")
        found = self.leases.find(ask.request_id)
        held = found.held[-ask.count :] if found is not None and ask.count else []
        ended = self.leases.end(ask.request_id)
        if ended is not None:
            self.pool.release(ended.blocks)
            self._wake()
        else:
            self.metrics.add("nixl_num_notifications_after_expiry_total")
        return Told("", list(held))

    async def free_remote(self, transfer: dict[str, Any] | None) -> None:
        """Tell prefill that nobody will pull these blocks; without effect when it cannot be told."""
        if not self._config.pulls or not _complete(transfer):
            return
        assert transfer is not None
        ask = Ask("free", transfer["remote_engine_id"], transfer["remote_request_id"])
        with contextlib.suppress(TransferError):
            await self._peers.ask(transfer["remote_host"], transfer["remote_port"], ask)

    # Seats
    def _wake(self) -> None:
        if self._queue:
            self._queue[0].set()

    async def _seat(self, fits: Callable[[], bool]) -> None:
        """Wait, first come first served, until a sequence may run; then it counts as running."""
        if self._queue or self._running >= self._config.max_seqs or not fits():
            turn = asyncio.Event()
            self._queue.append(turn)
            try:
                while not (self._queue[0] is turn and self._running < self._config.max_seqs and fits()):
                    turn.clear()
                    await turn.wait()
            finally:
                self._queue.remove(turn)
                self._wake()
        self._running += 1

    def _leave(self) -> None:
        self._running -= 1
        self._wake()

    # Prefill
    def _blocks_for(self, count: int) -> int:
        return -(-count // self._config.block_tokens)

    def _plan(self, job: Job) -> tuple[kv.Chain, list[kv.Block]]:
        if not self.pool.caching:
            return kv.Chain([], []), []
        chain = kv.chain(
            job.prompt, self._config.block_tokens, lora=job.adapter[1] if job.adapter else None, salt=job.cache_salt
        )
        if job.bypass_cache:
            return chain, []
        # The last token is always computed, so that there is something to sample from.
        most = (job.prompt_tokens - 1) // self._config.block_tokens
        return chain, self.pool.hit(chain.keys[:most])

    async def _prefill(self, sequence: Sequence, outcome: Outcome) -> None:
        """Take a seat, get the prompt's KV by cache, pull or computing, and leave the sequence running."""
        job = sequence.job
        remote = bool(
            job.transfer and job.transfer.get("do_remote_prefill") and not job.bypass_cache and self._config.pulls
        )
        fresh_blocks = self._blocks_for(job.prompt_tokens)
        if remote:
            async with self._beating(job.transfer):
                await self._waiting_to_start(lambda: self.pool.free >= fresh_blocks)
        else:
            await self._seat(lambda: self.pool.free >= fresh_blocks)
        seated = True
        try:
            events: list[kv.Event] = [{"type": "AllBlocksCleared"}] if self._cleared else []
            self._cleared = False
            chain, hits = self._plan(job)
            cached = len(hits) * self._config.block_tokens
            sequence.blocks = hits + self.pool.take(hits, fresh_blocks - len(hits), events)
            sequence.hits = [block.content for block in hits if block.content is not None]
            source = "local_compute"
            if remote:
                if events:
                    self._publisher.publish(events)
                    events = []
                seated = False
                self._leave()
                if await self._pull(sequence, fresh_blocks - len(hits)):
                    source = "external_kv_transfer"
                await self._completed_waiting()
                seated = True
            if source == "local_compute":
                await self._compute(sequence, cached)
            self._fill(sequence, chain, len(hits), events)
            self._count_prompt(job, cached, source)
            outcome.cached_tokens = cached
            if source == "external_kv_transfer":
                told = (job.transfer or {}).get("remote_prefill_cached_tokens")
                outcome.cached_tokens = job.prompt_tokens if told is None else told
        except BaseException:
            self.pool.release(sequence.blocks)
            sequence.blocks = []
            if seated:
                self._leave()
            raise

    async def _waiting_to_start(self, fits: Callable[[], bool]) -> None:
        self._fetching["waiting_to_start"] += 1
        try:
            await self._seat(fits)
        finally:
            self._fetching["waiting_to_start"] -= 1

    @contextlib.asynccontextmanager
    async def _beating(self, transfer: dict[str, Any] | None) -> AsyncGenerator[None, None]:
        """Extend prefill's lease while a second leg is here but has not pulled."""
        if not self._config.pulls or not _complete(transfer):
            yield
            return
        task = asyncio.ensure_future(self._beat(transfer or {}))
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self, transfer: dict[str, Any]) -> None:
        ask = Ask("beat", transfer["remote_engine_id"], transfer["remote_request_id"])
        while True:
            await self._clock.sleep(self._config.lease_s / 6)
            with contextlib.suppress(TransferError):
                await self._peers.ask(transfer["remote_host"], transfer["remote_port"], ask)

    async def _completed_waiting(self) -> None:
        self._fetching["completed_waiting"] += 1
        try:
            await self._seat(lambda: True)
        finally:
            self._fetching["completed_waiting"] -= 1

    async def _compute(self, sequence: Sequence, cached: int) -> None:
        per_token_s = self._pace().prefill_s_per_token
        if per_token_s:
            await self._clock.sleep(per_token_s * (sequence.job.prompt_tokens - cached))
        sequence.model_state = zlib.crc32(
            sequence.job.prompt[cached * tokens.TOKEN_BYTES :], self._state_before(sequence)
        )

    def _state_before(self, sequence: Sequence) -> int:
        """The state after the hits; an adapter is another model, so it starts from another one."""
        if sequence.hits:
            return sequence.hits[-1].after
        return zlib.crc32(sequence.job.adapter[1].encode()) if sequence.job.adapter else 0

    async def _pull(self, sequence: Sequence, needed: int) -> bool:
        """Read the blocks that are missing from prefill; False when the policy is to compute them instead.

        Raises:
            EngineDeadError: the parameters name no blocks, or fewer than the prompt needs.
            GenerationError: the read failed and the policy is `fail`.
        """
        transfer = sequence.job.transfer or {}
        if not transfer.get("remote_block_ids"):
            self._die()
            raise EngineDeadError("AssertionError: num_external_tokens == 0")
        if not _complete(transfer):
            # vLLM says that it will not transfer, and yet waits for what never comes, until the client leaves.
            await asyncio.Event().wait()
        if needed > len(transfer["remote_block_ids"][0]):
            self._die()
            raise EngineDeadError("AssertionError: num_local_blocks <= num_remote_blocks")
        self._fetching["in_progress"] += 1
        try:
            if self._pace().pull_s:
                await self._clock.sleep(self._pace().pull_s)
            ask = Ask("read", transfer["remote_engine_id"], transfer["remote_request_id"], self._config.model, needed)
            held = await self._peers.ask(transfer["remote_host"], transfer["remote_port"], ask)
        except TransferError as error:
            self.metrics.add("nixl_num_failed_transfers_total")
            if self._config.on_failure == "recompute":
                return False
            raise GenerationError(str(error)) from error
        except asyncio.CancelledError:
            await asyncio.shield(self.free_remote(transfer))
            raise
        finally:
            self._fetching["in_progress"] -= 1
        self._count_pull(needed)
        self._adopt(sequence, held)
        return True

    def _adopt(self, sequence: Sequence, held: list[kv.Content]) -> None:
        """Take pulled contents as the prompt's KV; only the last token is computed here, as on a real engine."""
        sequence.pulled = True
        sequence.hits += held
        job = sequence.job
        before_last = (job.prompt_tokens - 1) % self._config.block_tokens * tokens.TOKEN_BYTES
        last = held[-1] if held else kv.Content(0, b"")
        sequence.model_state = zlib.crc32(last.tokens[:before_last] + job.prompt[-tokens.TOKEN_BYTES :], last.before)

    def _count_pull(self, blocks: int) -> None:
        size = blocks * self._config.block_tokens * self._config.kv_bytes_per_token
        for name, value in (
            ("bytes_transferred", size),
            ("num_descriptors", blocks),
            ("xfer_time_seconds", 0.001),
            ("post_time_seconds", 0.001),
        ):
            self.metrics.observe(f"nixl_{name}", value)

    def _fill(self, sequence: Sequence, chain: kv.Chain, hit_blocks: int, events: list[kv.Event]) -> None:
        """Make the prompt's full blocks findable and tell it."""
        job = sequence.job
        sequence.known = bytearray(job.prompt)
        sequence.keys = chain.keys
        size = self._config.block_tokens * tokens.TOKEN_BYTES
        full = len(chain.keys)
        if self.pool.caching and full > hit_blocks:
            if sequence.pulled:
                filled = sequence.hits[hit_blocks:full]
            else:
                filled = kv.contents(
                    job.prompt[hit_blocks * size : full * size], self._config.block_tokens, self._state_before(sequence)
                )
            for block, content in zip(sequence.blocks[hit_blocks:full], filled, strict=False):
                block.content = content
            self.pool.store(sequence.blocks[hit_blocks:full], chain.keys[hit_blocks:])
        first = 0 if job.full_report else hit_blocks
        if self._config.events.publishes and full > first:
            part = kv.Chain(chain.keys[first:], chain.extra_keys[first:])
            parent = chain.keys[first - 1] if first else None
            told = job.prompt[first * size : full * size]
            events.append(self._stored(job, part, parent, told))
        self._publisher.publish(events)

    def _stored(self, job: Job, part: kv.Chain, parent: int | None, told: bytes) -> kv.Event:
        return kv.stored_event(
            part, parent, told, self._config.block_tokens, lora=job.adapter, session_id=job.session_id
        )

    def _count_prompt(self, job: Job, cached: int, source: str) -> None:
        add, count = self.metrics.add, job.prompt_tokens
        external = count - cached if source == "external_kv_transfer" else 0
        add("prompt_tokens_total", count)
        add("prompt_tokens_by_source_total", cached, "local_cache_hit")
        add("prompt_tokens_by_source_total", count - cached, source)
        add("prompt_tokens_cached_by_source_total", cached, "device")
        add("prompt_tokens_cached_by_source_total", external, "p2p")
        add("prompt_tokens_cached_total", cached + external)
        add("prefix_cache_queries_total", 0 if job.bypass_cache else count)
        add("prefix_cache_hits_total", cached)
        if self._config.pulls:
            add("external_prefix_cache_queries_total", count - cached)
            add("external_prefix_cache_hits_total", external)

    # Decode
    def _grow(self, sequence: Sequence, piece: bytes) -> None:
        """Append a generated token; a block that its KV fills becomes findable.

        The newest token's KV is computed in the next step, so it is not counted.
        """
        sequence.known += piece
        size = self._config.block_tokens * tokens.TOKEN_BYTES
        computed = len(sequence.known) - tokens.TOKEN_BYTES
        if computed > len(sequence.blocks) * size or len(sequence.known) > len(sequence.blocks) * size:
            events: list[kv.Event] = []
            try:
                sequence.blocks += self.pool.take([], 1, events)
            except kv.OutOfBlocksError:
                self.metrics.add("num_preemptions_total")
            self._publisher.publish(events)
        full = computed // size
        if not self.pool.caching or full <= len(sequence.keys) or full > len(sequence.blocks):
            return
        job, at = sequence.job, len(sequence.keys)
        told = bytes(sequence.known[at * size : full * size])
        parent = sequence.keys[-1] if at else None
        lora = job.adapter[1] if job.adapter else None
        salt = job.cache_salt if parent is None else None
        part = kv.chain(told, self._config.block_tokens, lora=lora, salt=salt, parent=parent)
        before = self._state_at(sequence, at * size)
        for block, content in zip(
            sequence.blocks[at:full], kv.contents(told, self._config.block_tokens, before), strict=True
        ):
            block.content = content
        self.pool.store(sequence.blocks[at:full], part.keys)
        sequence.keys += part.keys
        if self._config.events.publishes:
            self._publisher.publish([self._stored(job, part, parent, told)])

    def _state_at(self, sequence: Sequence, at: int) -> int:
        """The state of the tokens before byte `at`, which lies on a block border."""
        prompt_bytes = len(sequence.job.prompt)
        if at >= prompt_bytes:
            return zlib.crc32(bytes(sequence.known[prompt_bytes:at]), sequence.model_state)
        size = self._config.block_tokens * tokens.TOKEN_BYTES
        held = len(sequence.hits) * size
        if at < held:
            return sequence.hits[at // size].before
        return zlib.crc32(bytes(sequence.known[held:at]), self._state_before(sequence))

    async def generate(
        self, job: Job, outcome: Outcome, rule: Rule | None, *, whole: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the answer token by token (with `whole`, only fill `outcome`, which costs less).

        Raises:
            EngineDeadError, GenerationError: see there.
        """
        self.reap()
        sequence = Sequence(job, task=asyncio.current_task())
        self._active[id(sequence)] = sequence
        arrived_s = self._clock.now()
        try:
            await self._prefill(sequence, outcome)
            first_s = self._clock.now()
            self.metrics.observe("time_to_first_token_seconds", first_s - arrived_s)
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

    async def _decode(
        self, sequence: Sequence, outcome: Outcome, rule: Rule | None, *, whole: bool
    ) -> AsyncGenerator[bytes, None]:
        job, step_s = sequence.job, self._pace().step_s
        answer, ended = self._answer(sequence, outcome, rule)
        grows = rule is None or rule.text is None
        fault = rule.fault_after_tokens if rule is not None and (rule.finish_reason or rule.error_event) else None
        for index, piece in enumerate(answer):
            if fault is not None and index >= fault:
                break
            if step_s:
                await self._clock.sleep(step_s)
            elif not whole:
                await asyncio.sleep(0)
            outcome.answer.append(piece)
            if grows:
                self._grow(sequence, piece)
            is_last = index == len(answer) - 1
            if is_last:
                outcome.finish_reason = "stop" if ended else "length"
            if not whole:
                yield piece
        if fault is not None and rule is not None:
            if rule.finish_reason != "abort":
                raise GenerationError("scripted")
            outcome.finish_reason = "abort"
        self.metrics.add("generation_tokens_total", len(outcome.answer))
        self.metrics.observe("request_generation_tokens", len(outcome.answer))
        self.metrics.observe("request_prompt_tokens", job.prompt_tokens)
        self.metrics.observe("request_params_max_tokens", job.most_tokens)

    def _answer(self, sequence: Sequence, outcome: Outcome, rule: Rule | None) -> tuple[list[bytes], bool]:
        """The answer's tokens, and whether it ends by itself."""
        job = sequence.job
        if rule is not None and rule.text is not None:
            return [text.encode() for text in rule.text], True
        most = job.most_tokens if rule is None or rule.tokens is None else rule.tokens
        answer, ended = tokens.continuation(
            sequence.model_state, most, ignore_eos=job.ignore_eos, salt=job.salt, least_tokens=job.least_tokens
        )
        return _stopped(answer, job.stop, outcome, ended=ended) if job.stop else (answer, ended)

    def _finish(self, sequence: Sequence, outcome: Outcome, arrived_s: float) -> None:
        if not sequence.blocks:
            if outcome.finish_reason:
                self.metrics.add("request_success_total", 1, outcome.finish_reason)
            return
        reason = outcome.finish_reason
        if job_wants_lease(sequence.job) and reason in {"stop", "length"} and self._config.pulls:
            outcome.transfer = self._lease(sequence, outcome)
        else:
            self.pool.release(sequence.blocks)
        if reason is not None:
            self.metrics.add("request_success_total", 1, reason)
        self.metrics.observe("e2e_request_latency_seconds", self._clock.now() - arrived_s)
        self._leave()

    def _lease(self, sequence: Sequence, outcome: Outcome) -> dict[str, Any]:
        request_id = f"{sequence.job.request_id}-{uuid.uuid4().hex[:8]}"
        computed = len(sequence.known) - tokens.TOKEN_BYTES
        size = self._config.block_tokens * tokens.TOKEN_BYTES
        hit_bytes = len(sequence.hits) * size
        held = sequence.hits + kv.contents(
            bytes(sequence.known[hit_bytes:computed]), self._config.block_tokens, self._state_before(sequence)
        )
        if self._reaper is None:
            self._reaper = asyncio.ensure_future(self._reap_in_time())
        self.leases.grant(kv.Lease(request_id, sequence.blocks, held, self._clock.now() + self._config.lease_s))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[block.number for block in sequence.blocks]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._config.side_channel_host,
            "remote_port": self.side_channel_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": computed // tokens.TOKEN_BYTES,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": outcome.cached_tokens,
        }

    def refresh_gauges(self) -> None:
        """Bring the gauges up to now, before they are shown."""
        self.reap()
        deferred = self._fetching["in_progress"]
        gauges: Iterator[tuple[str, float, str]] = iter(
            [
                ("num_requests_running", self._running, ""),
                ("num_requests_waiting", len(self._queue) + deferred, ""),
                ("num_requests_waiting_by_reason", len(self._queue), "capacity"),
                ("num_requests_waiting_by_reason", deferred, "deferred"),
                ("kv_cache_usage_perc", self.pool.usage, ""),
                *(("num_requests_kv_fetch_by_stage", count, stage) for stage, count in self._fetching.items()),
            ]
        )
        for name, value, label in gauges:
            self.metrics.set(name, value, label)


def _stopped(answer: list[bytes], stops: SequenceOf[str], outcome: Outcome, *, ended: bool) -> tuple[list[bytes], bool]:
    """Cut an answer after the first stop string in it; the string itself is not shown."""
    text = b"".join(answer).decode("utf-8", "replace")
    found = [(text.index(stop) + len(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return answer, ended
    end, outcome.stop_reason = min(found)
    outcome.text_length = end - len(outcome.stop_reason)
    return answer[: -(-end // tokens.TOKEN_BYTES)], True


def job_wants_lease(job: Job) -> bool:
    """Whether this is a first leg, whose blocks another engine will read."""
    return bool(job.transfer and job.transfer.get("do_remote_decode"))


def _complete(transfer: dict[str, Any] | None) -> bool:
    return transfer is not None and all(
        transfer.get(name) for name in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
    )
