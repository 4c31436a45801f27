"""Handing KV over on one rank: leases for what was prefilled here, and reading what was prefilled elsewhere.

Boundary: leases, the side channel and the peers on it; whose blocks they are is `rank`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from e2e.engine.standin import kv
from e2e.engine.standin.transfer import Ask, Peers, SideChannel, Told, TransferError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from e2e.engine.standin.clock import Clock
    from e2e.engine.standin.config import EngineConfig
    from e2e.engine.standin.metrics import Metrics

Params = dict[str, Any]


def is_complete(params: Params | None) -> bool:
    """Whether parameters name an engine and a request there."""
    names = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
    return params is not None and all(params.get(name) for name in names)


class Handover:
    """Both ends of the side channel. `release` gives blocks back to the pool."""

    def __init__(
        self,
        config: EngineConfig,
        engine_id: str,
        clock: Clock,
        metrics: Metrics,
        release: Callable[[list[kv.Block]], None],
    ) -> None:
        self.leases = kv.Leases()
        self.port = 0
        self._config = config
        self._engine_id = engine_id
        self._clock = clock
        self._metrics = metrics
        self._release = release
        self._side_channel = SideChannel(self._answer)
        self._peers = Peers()
        self._reaper: asyncio.Task[None] | None = None

    async def open(self, rank: int) -> None:
        """Listen; ports grow by the rank."""
        base = self._config.side_channel_port
        self.port = await self._side_channel.open(self._config.side_channel_host, base and base + rank)

    async def close(self) -> None:
        """Stop listening and end connections."""
        if self._reaper is not None:
            self._reaper.cancel()
        self._peers.close()
        await self._side_channel.close()

    # Prefill's end
    def grant(self, request_id: str, blocks: list[kv.Block], held: list[kv.Content]) -> None:
        """Keep blocks until they are read or the lease is over."""
        self.leases.grant(kv.Lease(request_id, blocks, held, self._clock.now() + self._config.lease_s))
        if self._reaper is None:
            self._reaper = asyncio.ensure_future(self._reap_in_time())

    def reap(self) -> None:
        """Free blocks whose lease is over."""
        for lease in self.leases.expired(self._clock.now()):
            self._metrics.add("nixl_num_kv_expired_reqs_total")
            self._release(lease.blocks)

    async def _reap_in_time(self) -> None:
        """Free blocks when leases end, also when nobody asks: requests may be waiting for them."""
        while self.leases.active:
            next_s = min(lease.expires_s for lease in self.leases.active.values())
            await self._clock.sleep(max(0.001, next_s - self._clock.now()))
            self.reap()
        self._reaper = None

    def _answer(self, ask: Ask) -> Told:
        self.reap()
        if ask.engine_id != self._engine_id:
            return Told(f"engine {ask.engine_id} is not here, this is {self._engine_id}")
        if ask.model and ask.model != self._config.model:
            return Told(f"NIXL compatibility check failed: model {ask.model!r} there, {self._config.model!r} here")
        if ask.what == "beat":
            self.leases.extend(ask.request_id, self._clock.now() + self._config.lease_s * 2 // 3)
            return Told("")
        found = self.leases.find(ask.request_id)
        held = found.held[-ask.count :] if found is not None and ask.count else []
        ended = self.leases.end(ask.request_id)
        if ended is not None:
            self._release(ended.blocks)
        else:
            self._metrics.add("nixl_num_notifications_after_expiry_total")
        return Told("", list(held))

    # Decode's end
    async def read(self, params: Params, blocks: int) -> list[kv.Content]:
        """The contents of the last `blocks` blocks of a request elsewhere, which frees them there.

        Raises:
            TransferError: see `transfer.Peers.ask`.
        """
        ask = Ask("read", params["remote_engine_id"], params["remote_request_id"], self._config.model, blocks)
        held = await self._peers.ask(params["remote_host"], params["remote_port"], ask)
        self._count_read(blocks)
        return held

    async def free(self, params: Params | None) -> None:
        """Tell prefill that nobody will read these blocks; without effect when it cannot be told."""
        if params is None or not is_complete(params):
            return
        ask = Ask("free", params["remote_engine_id"], params["remote_request_id"])
        with contextlib.suppress(TransferError):
            await self._peers.ask(params["remote_host"], params["remote_port"], ask)

    @contextlib.asynccontextmanager
    async def kept(self, params: Params | None) -> AsyncGenerator[None, None]:
        """Extend prefill's lease while a second leg is here but has not read yet."""
        if params is None or not is_complete(params):
            yield
            return
        task = asyncio.ensure_future(self._beat(params))
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self, params: Params) -> None:
        ask = Ask("beat", params["remote_engine_id"], params["remote_request_id"])
        while True:
            await self._clock.sleep(self._config.lease_s / 6)
            with contextlib.suppress(TransferError):
                await self._peers.ask(params["remote_host"], params["remote_port"], ask)

    def _count_read(self, blocks: int) -> None:
        size = blocks * self._config.block_tokens * self._config.kv_bytes_per_token
        self._metrics.observe("nixl_bytes_transferred", size)
        self._metrics.observe("nixl_num_descriptors", blocks)
        # Loopback takes about this long; only that it is counted matters.
        self._metrics.observe("nixl_xfer_time_seconds", 0.001)
        self._metrics.observe("nixl_post_time_seconds", 0.001)
