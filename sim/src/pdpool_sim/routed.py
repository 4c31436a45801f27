"""The router's own choices in the simulator: admission, policies, prefix index and learned speeds, unchanged.

Boundary: what stands between them in the router (the forwarder, the feeds) is imitated here: reservations, KV events
as engines would send them, and a report of every engine once a second. Prompts are given as token ids, as a client
may: keys of blocks are the workload's ids, so that nothing is hashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import msgspec

from pdpool_api.names import Role
from pdpool_api.router_config import Limits
from pdpool_router.faults import Saturated
from pdpool_router.flow.admission import Admission
from pdpool_router.flow.saturation import spare_tokens
from pdpool_router.kv.blocks import CHUNK_BYTES, text_root
from pdpool_router.kv.knowledge import Prefixes
from pdpool_router.records import (
    Decision,
    Endpoint,
    LocalPrefill,
    Prompt,
    Request,
    Snapshot,
    Way,
)
from pdpool_router.schedule.policies import POLICIES
from pdpool_router.state.inflight import Inflight
from pdpool_router.state.loads import Guess, Loads, Report
from pdpool_sim.rule import Chosen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pdpool_router.flow.admission import Share, Ticket
    from pdpool_router.kv.index import Holder
    from pdpool_router.schedule.interface import Policy
    from pdpool_router.state.inflight import Lease
    from pdpool_router.state.loads import Work
    from pdpool_sim.clock import Clock
    from pdpool_sim.rule import Load, Setting
    from pdpool_sim.workload import Call

MODEL: Final = "simulated"
MAX_BLOCKS: Final = 2_000_000
"""`routing.index.maxBlocks` as it is by default."""
REPORT_S: Final = 1.0
"""How often engines' metrics are read."""
MAX_LOCAL_PREFILLS: Final = 4
"""`limits.maxLocalPrefills` as it is by default."""
TICK_S: Final = 0.25
"""How often whoever waits in line is looked after."""
BYTES_PER_TOKEN: Final = 4


class BlockIds:
    """A prompt's token ids as the keys of their blocks (see `records.TokenKeys`)."""

    __slots__ = ("_blocks", "tokens")

    def __init__(self, call: Call) -> None:
        self.tokens = call.prompt_tokens
        self._blocks = call.blocks

    def keys(self, block_tokens: int) -> Sequence[int]:
        """One key for each whole block; there is one block size in a simulated pool."""
        del block_tokens
        return self._blocks


class Events:
    """One engine's KV events on their way into the index."""

    def __init__(self, prefixes: Prefixes, holder: Holder) -> None:
        self._index = prefixes.blocks
        self._holder = holder

    def stored(self, chain: Sequence[int], start: int, end: int) -> None:
        """See `CacheListener.stored`."""
        blocks = chain[start:end]
        self._index.store(self._holder, blocks, blocks)

    def removed(self, block: int) -> None:
        """See `CacheListener.removed`."""
        self._index.remove(self._holder, (block,))


class _Leg:
    """What the router holds for one leg."""

    __slots__ = ("lease", "local", "moved", "work")

    def __init__(self, lease: Lease, work: Work, moved: int, local: Lease | None = None) -> None:
        self.lease = lease
        self.work = work
        self.moved = moved
        """Tokens that the engine must compute, or pull."""
        self.local = local


class _Turn:
    """What a request in line waits for: the part of a future that admission uses, on the virtual clock."""

    def __init__(self, clock: Clock, go: Callable[[], None], refuse: Callable[[], None]) -> None:
        self._clock = clock
        self._go = go
        self._refuse = refuse
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: None) -> None:
        del result
        self._end(self._go)

    def set_exception(self, fault: BaseException) -> None:
        del fault
        self._end(self._refuse)

    def _end(self, then: Callable[[], None]) -> None:
        # Later in the same moment, as a future's callbacks on an event loop.
        self._done = True
        self._clock.at(self._clock.now_s, then)


class Routed:
    """A policy of the router before a simulated pool."""

    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        local_prefill: LocalPrefill,
        *,
        limits: Limits | None = None,
        shares: Mapping[str, Share] | None = None,
    ) -> None:
        """`limits`: those of the configuration; None: its defaults. `shares`: of tenants."""
        self._setting = setting
        self._policy = policy
        self._clock = setting.prefill.clock
        self._reported_s = float("-inf")
        self._inflight = Inflight()
        self._loads = Loads()
        self._prefixes = Prefixes(MAX_BLOCKS)
        self._holders: dict[str, Holder] = {}
        self._legs: dict[int, _Leg] = {}
        self._prompts: dict[int, Prompt] = {}
        self._endpoints: dict[str, Endpoint] = {}
        prefill, decode = self._know(Role.PREFILL, setting.prefill), self._know(Role.DECODE, setting.decode)
        self._loads.configure({Role.PREFILL: _guess(setting.prefill), Role.DECODE: _guess(setting.decode)})
        self._loads.keep((*prefill, *decode))
        self._snapshot = Snapshot(
            prefill=prefill,
            decode=decode,
            aggregated=(),
            inflight=self._inflight.requests,
            local_prefills=self._inflight.local_prefills,
            max_local_prefills=MAX_LOCAL_PREFILLS,
            local_allowed=True,
            one_revision=True,
            loads=self._loads.loads,
            knowledge=self._prefixes,
            local_prefill=local_prefill,
        )
        self._admission = Admission(
            limits or Limits(),
            shares or {},
            clock=lambda: self._clock.now_s,
            queued={MODEL: 0},
            new_turn=lambda: cast("asyncio.Future[None]", _Turn(self._clock, *self._entering)),
        )
        self._admission.spare_tokens = lambda: spare_tokens(self._snapshot)
        self._entering: tuple[Callable[[], None], Callable[[], None]] = (_nothing, _nothing)
        """What becomes of the request that asks for admission now."""
        self._tickets: dict[int, Ticket] = {}
        self._ticking = False

    def _know(self, role: Role, load: Load) -> tuple[Endpoint, ...]:
        for engine in load.engines:
            self._endpoints[engine.uid] = Endpoint(engine.uid, engine.uid, role, engine.uid, 8000)
            holder = self._prefixes.told(engine.uid, 0)
            self._prefixes.sees_block_size(holder, self._setting.block_tokens)
            self._holders[engine.uid] = holder
            engine.listen(Events(self._prefixes, holder))
        return tuple(self._endpoints[engine.uid] for engine in load.engines)

    def serve(self, uids: Collection[str]) -> None:
        """Only these engines are chosen from now on; those that were not before begin with nothing in their cache."""
        before = {endpoint.uid for endpoint in (*self._snapshot.prefill, *self._snapshot.decode)}
        for load in (self._setting.prefill, self._setting.decode):
            for engine in load.engines:
                if engine.uid in uids and engine.uid not in before:
                    holder = self._holders[engine.uid]
                    self._prefixes.blocks.clear(holder)
                    engine.listen(Events(self._prefixes, holder))
        prefill, decode = (
            tuple(self._endpoints[engine.uid] for engine in load.engines if engine.uid in uids)
            for load in (self._setting.prefill, self._setting.decode)
        )
        self._loads.keep((*prefill, *decode))
        self._snapshot = msgspec.structs.replace(self._snapshot, prefill=prefill, decode=decode)

    @property
    def waiting(self) -> int:
        """Requests that no engine has yet."""
        return self._admission.waiting

    # --- admission

    def admit(self, call: Call, go: Callable[[], None], refuse: Callable[[], None]) -> None:
        """See `Rule.admit`."""

        def end() -> None:
            self._leave(call)
            refuse()

        self._entering = (go, end)
        try:
            ticket = self._admission.enter(
                model=MODEL, size_bytes=call.prompt_tokens * BYTES_PER_TOKEN, tenant=call.tenant
            )
        except Saturated:
            refuse()
            return
        self._tickets[call.number] = ticket
        if ticket.turn is None:
            go()
        elif not self._ticking:
            self._ticking = True
            self._clock.at(self._clock.now_s + TICK_S, self._tick)

    def _leave(self, call: Call) -> None:
        self._admission.leave(self._tickets.pop(call.number))

    def _tick(self) -> None:
        self._admission.tick()
        self._ticking = self._admission.waiting > 0
        if self._ticking:
            self._clock.at(self._clock.now_s + TICK_S, self._tick)

    # --- choices

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        self._report()
        prompt = self._prompts[call.number] = _prompt(call, self._setting.block_tokens)
        found = self._policy.plan(self._request(call), self._snapshot, self._clock.now_s, self._setting.rng)
        assert isinstance(found, Decision), "every engine of a simulated pool serves"
        endpoint = found.endpoint
        tokens = call.prompt_tokens - self._held(endpoint.uid, found)
        local = self._inflight.reserve_local_prefill(endpoint) if found.way is Way.LOCAL else None
        self._legs[call.number] = _Leg(
            self._inflight.reserve(endpoint), self._loads.begin(endpoint, tokens), tokens, local
        )
        self._prefixes.begin(prompt, endpoint.uid)
        return Chosen(endpoint.uid, hop=found.way is Way.REMOTE)

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del prefill_uid
        prompt = self._prompts[call.number]
        found = self._policy.place(
            self._request(call), prompt.ids, self._snapshot, self._clock.now_s, self._setting.rng
        )
        assert found is not None, "every engine of a simulated pool serves"
        endpoint = found.endpoint
        tokens = call.prompt_tokens - self._held(endpoint.uid, found)
        # As the forwarder does: what is pulled is not computed.
        self._legs[call.number] = _Leg(self._inflight.reserve(endpoint), self._loads.begin(endpoint, 0), tokens)
        self._prefixes.begin(prompt, endpoint.uid)
        return endpoint.uid

    @staticmethod
    def _held(uid: str, found: Decision) -> int:
        return found.match.cached.get(uid, 0) if found.match is not None else 0

    def _request(self, call: Call) -> Request:
        return Request(
            model=MODEL,
            prompt_bytes=call.prompt_tokens * BYTES_PER_TOKEN,
            prompt=self._prompts[call.number],
            prompt_tokens=call.prompt_tokens,
        )

    # --- what comes back

    def saw_prefill(self, call: Call, uid: str, seconds: float, cached_tokens: int) -> None:
        """See `Rule.saw_prefill`."""
        leg = self._legs.pop(call.number)
        self._loads.computed(self._endpoints[uid], leg.work, call.prompt_tokens - cached_tokens, seconds * 1000)
        self._end(call, uid, leg)

    def saw_first_token(self, call: Call, uid: str, seconds: float) -> None:
        """See `Rule.saw_first_token`."""
        leg = self._legs[call.number]
        leg.work.started()
        if leg.local is not None:
            leg.local.release()
        else:
            self._loads.pulled(self._endpoints[uid], leg.moved, seconds * 1000)

    def saw_end(self, call: Call, uid: str, seconds: float) -> None:
        """See `Rule.saw_end`."""
        if call.output_tokens > 1:
            self._loads.stepped(self._endpoints[uid], seconds * 1000 / (call.output_tokens - 1))
        self._end(call, uid, self._legs.pop(call.number))
        del self._prompts[call.number]
        self._leave(call)

    def _end(self, call: Call, uid: str, leg: _Leg) -> None:
        leg.work.end()
        leg.lease.release()
        self._prefixes.end(self._prompts[call.number], uid)

    def _report(self) -> None:
        """Engines' metrics, once a second."""
        now_s = self._clock.now_s
        if now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        inflight = self._inflight.requests
        for engine in (*self._setting.prefill.engines, *self._setting.decode.engines):
            report = Report(float(engine.running), float(engine.queued), engine.cache.usage)
            self._loads.report(engine.uid, report, now_s, inflight.get(engine.uid, 0))
        self._loads.settle(now_s, REPORT_S)


def by_policy(name: str, setting: Setting, local_prefill: LocalPrefill | None = None) -> Routed:
    """A policy of the router by its name."""
    return Routed(setting, POLICIES[name](), local_prefill or LocalPrefill())


def _nothing() -> None:
    """Nobody asks."""


def _prompt(call: Call, block_tokens: int) -> Prompt:
    """A prompt whose text has one chunk for each block."""
    blocks = list(call.blocks)
    text_bytes = max(1, call.prompt_tokens * CHUNK_BYTES // block_tokens)
    opening = f"session {call.session}" if call.session else f"call {call.number}"
    return Prompt(
        keys=blocks,
        whole=-1 - call.number,
        text_bytes=text_bytes,
        opening_bytes=text_bytes * min(call.opening_tokens, call.prompt_tokens) // call.prompt_tokens,
        conversation=text_root(opening.encode()),
        ids=BlockIds(call),
    )


def _guess(load: Load) -> Guess:
    """What the operator would write for this hardware."""
    shape = load.engines[0].shape
    costs = shape.costs
    return Guess(
        token_ms=costs.seconds_per_token * 1000,
        pull_ms=shape.kv_bytes_per_token / shape.link_bytes_per_second * 1000,
        step_ms=(costs.weights_s + costs.overhead_s) * 1000,
    )
