"""One engine, step by step: continuous batching with chunked prefill, KV in blocks, pre-emption when they run out.

Boundary: the scheduler of a vLLM engine as far as time depends on it (`vllm/v1/core/sched/scheduler.py`): running legs
first, then waiting ones in order of arrival while token budget, seats and blocks last; a step ends as a whole. Steps in
which nothing but decoding happens are taken together up to the next change, because their costs follow from the first:
an hour of decoding costs one event per change and not one per token.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from pdpool_sim.cache import PrefixCache
from pdpool_sim.gaps import Gaps

if TYPE_CHECKING:
    from pdpool_sim.cache import CacheListener
    from pdpool_sim.clock import Clock, Event
    from pdpool_sim.hardware import EngineShape
    from pdpool_sim.leg import Leg


class _Due(IntEnum):
    """What a decoding leg needs after a step, in the order in which it is looked after."""

    FIRST = 0
    LAST = 1
    BLOCK = 2


class Engine:
    """A replica of any role: what it does with a leg depends on the leg only."""

    def __init__(self, uid: str, shape: EngineShape, block_tokens: int, clock: Clock, *, capacity: int = 0) -> None:
        self.uid: Final = uid
        self.shape: Final = shape
        self.block_tokens: Final = block_tokens
        self.cache = PrefixCache(capacity or shape.kv_tokens // block_tokens)
        self.waiting: deque[Leg] = deque()
        self.gaps: Final = Gaps()
        self.busy_s = 0.0
        self.computed_tokens = 0
        """Prompt tokens that it computed itself, those of pre-empted legs again."""
        self.preemptions = 0
        self._clock = clock
        self._prefilling: list[Leg] = []
        self._decoding: dict[Leg, None] = {}
        self._pulling = 0
        self._arrived: list[Leg] = []
        self._kv_tokens = 0
        """Tokens of KV that the next step's decoding reads."""
        self._step = 0
        """Steps that have ended."""
        self._due: list[tuple[int, _Due, int, Leg]] = []
        """What decoding legs need after which step; entries of legs that were pre-empted are out of date."""
        self._noted = 0
        self._event: Event | None = None
        """The end of what runs now; None: idle."""
        self._began_s = 0.0
        self._steps = 0
        """Steps that run now, one after the other."""
        self._first_step_s = 0.0
        self._growth_s = 0.0
        """By how much each of them takes longer than the one before."""
        self._chunks: list[tuple[Leg, int]] = []

    # --- from outside

    def listen(self, listener: CacheListener) -> None:
        """Begins with an empty cache, of whose blocks a listener is told; only while nobody holds any."""
        self.cache = PrefixCache(self.cache.capacity, listener)

    @property
    def running(self) -> int:
        """Legs in the batch (as `vllm:num_requests_running`)."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def queued(self) -> int:
        """Legs that wait for a seat, for blocks or for their KV (as `vllm:num_requests_waiting`)."""
        return len(self.waiting) + self._pulling + len(self._arrived)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return self._event is None and not self.queued

    def submit(self, leg: Leg) -> None:
        """A new request.

        Raises:
            ValueError: it could never be served, because its tokens do not fit.
        """
        if -(-(leg.target_tokens + leg.left_tokens) // self.block_tokens) > self.cache.capacity:
            raise ValueError(f"{leg.target_tokens} + {leg.left_tokens} tokens do not fit into {self.uid}")
        self.waiting.append(leg)
        self._wake()

    def arrived(self, leg: Leg) -> None:
        """The KV of a leg that pulls is there."""
        self._pulling -= 1
        self._arrived.append(leg)
        self._wake()

    def pulled(self, leg: Leg) -> None:
        """Somebody has taken the KV of a finished leg that kept its blocks."""
        self.cache.release(leg.holding)
        self._wake()

    # --- which steps, and how long

    def _wake(self) -> None:
        """Looks at what is new: at once when idle, else when the step that runs now has ended."""
        if self._event is None:
            self._begin()
        elif self._steps > 1:
            steps = self._steps_within(self._clock.now_s - self._began_s)
            if steps < self._steps:
                self._event.cancel()
                self._steps = steps
                self._event = self._clock.at(max(self._clock.now_s, self._began_s + self._run_s(steps)), self._end)

    def _steps_within(self, passed_s: float) -> int:
        """Steps of this run that have begun by then: the positive root of `_run_s(steps) = passed_s`, rounded up."""
        first, growth = self._first_step_s, self._growth_s
        if growth <= 0:
            root = passed_s / first
        else:
            half = first - growth / 2
            root = (math.sqrt(half * half + 2 * growth * passed_s) - half) / growth
        return max(1, math.ceil(root - 1e-9))

    def _run_s(self, steps: int) -> float:
        return self._first_step_s * steps + self._growth_s * steps * (steps - 1) / 2

    def _begin(self) -> None:
        """Begins a step, or a run of decoding steps; none where there is nothing to do."""
        for leg in self._arrived:
            leg.computed_tokens = leg.target_tokens
            self._publish(leg, leg.target_tokens)
            self._join(leg, leg.target_tokens)
        self._arrived.clear()
        self._give_blocks()
        self._chunks = self._choose_chunks()
        if self._chunks:
            self._plan_mixed()
        elif self._decoding:
            self._plan_decoding()
        else:
            return
        self._began_s = self._clock.now_s
        self._event = self._clock.at(self._began_s + self._run_s(self._steps), self._end)

    def _choose_chunks(self) -> list[tuple[Leg, int]]:
        """What is computed of which prompt in this step: running legs first, then those that can be admitted."""
        budget = self.shape.max_batched_tokens - len(self._decoding)
        chunks: list[tuple[Leg, int]] = []
        for leg in self._prefilling:
            size = min(budget, leg.target_tokens - leg.computed_tokens)
            if size > 0:
                budget -= size
                chunks.append((leg, size))
        while self.waiting and budget > 0 and self.running + self._pulling < self.shape.max_seqs:
            leg = self.waiting[0]
            if not self._admit(leg):
                break
            self.waiting.popleft()
            if leg.pulls:
                self._pulling += 1
            else:
                size = min(budget, leg.target_tokens - leg.computed_tokens)
                budget -= size
                self._prefilling.append(leg)
                chunks.append((leg, size))
            if leg.paused_s < 0:
                leg.owner.admitted(leg)
        return chunks

    def _admit(self, leg: Leg) -> bool:
        """Gives a leg blocks for its prompt; at least its last token is always computed, or pulled."""
        holding, size = leg.holding, self.block_tokens
        matched = self.cache.match(holding.chain[: (leg.target_tokens - 1) // size])
        if not self.cache.take(holding, matched, -(-leg.target_tokens // size) - matched):
            return False
        leg.computed_tokens = matched * size
        if leg.paused_s < 0:
            leg.cached_tokens = leg.computed_tokens
        return True

    def _plan_mixed(self) -> None:
        tokens, pairs, kv_tokens = len(self._decoding), float(self._kv_tokens), self._kv_tokens
        for leg, size in self._chunks:
            tokens += size
            pairs += size * (leg.computed_tokens + size / 2)
            kv_tokens += leg.computed_tokens + size
        sequences = len(self._decoding) + len(self._chunks)
        self._first_step_s = self.shape.costs.step_s(tokens, pairs, kv_tokens, sequences)
        self._growth_s = 0.0
        self._steps = 1

    def _plan_decoding(self) -> None:
        """All steps up to the first after which a leg must be looked after."""
        steps = self._steps = self._next_due() - self._step
        costs, count, kv_tokens = self.shape.costs, len(self._decoding), self._kv_tokens
        self._first_step_s = costs.step_s(count, float(kv_tokens), kv_tokens, count)
        self._growth_s = 0.0
        if steps > 1:
            grown = kv_tokens + count * (steps - 1)
            self._growth_s = (costs.step_s(count, float(grown), grown, count) - self._first_step_s) / (steps - 1)

    # --- what a step leaves

    def _end(self) -> None:
        """The step, or the run of steps, that ran is over."""
        took_s, steps, chunks = self._clock.now_s - self._began_s, self._steps, self._chunks
        self._event = None
        self.busy_s += took_s
        self._step += steps
        gaps = len(self._decoding) * steps
        self._kv_tokens += gaps
        for leg in self._take_due(_Due.FIRST):
            leg.has_token = True
            gaps -= 1  # a first token has none before it
            leg.owner.started(leg)
        self.gaps.add(took_s / steps, gaps)
        for leg in self._take_due(_Due.LAST):
            self._finish(leg, leaves_batch=True)
        for leg, size in chunks:
            self.computed_tokens += size
            leg.computed_tokens += size
            self._publish(leg, leg.computed_tokens)
            if leg.computed_tokens >= leg.target_tokens:
                self._prefilling.remove(leg)
                self._prompt_done(leg)
        self._begin()

    def _prompt_done(self, leg: Leg) -> None:
        """The step that ends a prompt also makes a token."""
        leg.left_tokens -= 1
        if leg.has_token:
            self.gaps.add(self._clock.now_s - leg.paused_s, 1)
        else:
            leg.has_token = True
            leg.owner.started(leg)
        if leg.left_tokens > 0:
            self._join(leg, leg.target_tokens + 1)
        else:
            self._finish(leg, leaves_batch=False)

    def _finish(self, leg: Leg, *, leaves_batch: bool) -> None:
        if leaves_batch:
            self._publish(leg, self._leave_batch(leg))
        if not leg.keeps_blocks:
            self.cache.release(leg.holding)
        leg.owner.finished(leg)

    def _publish(self, leg: Leg, tokens: int) -> None:
        """Gives handles to the blocks that so many tokens fill."""
        full = min(len(leg.holding.chain), tokens // self.block_tokens)
        if full > leg.holding.pinned:
            self.cache.publish(leg.holding, full)

    # --- the decoding batch

    def _join(self, leg: Leg, base_tokens: int) -> None:
        """Into the batch; its first step needs places for so many tokens, each further one for one more."""
        self._decoding[leg] = None
        self._kv_tokens += base_tokens
        leg.base_tokens = base_tokens
        leg.joined_step = self._step
        leg.last_step = self._step + leg.left_tokens
        held = leg.holding.pinned + leg.holding.anonymous
        leg.growth_step = self._step + held * self.block_tokens - base_tokens + 1
        if not leg.has_token:
            self._note(self._step + 1, _Due.FIRST, leg)
        self._note(leg.last_step, _Due.LAST, leg)
        self._note(leg.growth_step, _Due.BLOCK, leg)

    def _leave_batch(self, leg: Leg) -> int:
        """Out of the batch; returns the tokens that have KV."""
        del self._decoding[leg]
        tokens = leg.base_tokens + self._step - leg.joined_step
        self._kv_tokens -= tokens
        return tokens

    def _note(self, step: int, need: _Due, leg: Leg) -> None:
        self._noted += 1
        heapq.heappush(self._due, (step, need, self._noted, leg))

    def _valid(self, step: int, need: _Due, leg: Leg) -> bool:
        if leg not in self._decoding:
            return False
        if need is _Due.FIRST:
            return not leg.has_token
        return step == (leg.last_step if need is _Due.LAST else leg.growth_step)

    def _next_due(self) -> int:
        """The next step after which a leg must be looked after; there is one, because every leg ends."""
        while True:
            step, need, _, leg = self._due[0]
            if self._valid(step, need, leg):
                return step
            heapq.heappop(self._due)

    def _take_due(self, need: _Due) -> list[Leg]:
        """Legs that need this after the step that has just ended, taken off the list."""
        due, found = self._due, []
        while due and due[0][0] <= self._step and due[0][1] <= need:
            step, kind, _, leg = heapq.heappop(due)
            if kind is need and self._valid(step, kind, leg):
                found.append(leg)
        return found

    def _give_blocks(self) -> None:
        """A block for every leg that needs one, taken from the leg that came last where there is none."""
        for leg in self._take_due(_Due.BLOCK):
            while leg in self._decoding and not self.cache.grow(leg.holding):
                self._preempt(next(reversed(self._decoding)))
            if leg in self._decoding:
                leg.growth_step += self.block_tokens
                self._note(leg.growth_step, _Due.BLOCK, leg)

    def _preempt(self, leg: Leg) -> None:
        """Takes a leg's blocks: it is computed again, its tokens so far included, when there is room."""
        self.preemptions += 1
        leg.target_tokens = self._leave_batch(leg)
        leg.left_tokens -= self._step - leg.joined_step
        leg.pulls = False
        leg.paused_s = self._clock.now_s
        self.cache.release(leg.holding)
        self.waiting.appendleft(leg)
