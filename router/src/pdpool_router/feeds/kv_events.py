"""KV events of engines over ZeroMQ: one subscription per endpoint and data-parallel rank.

Boundary: sockets, addresses and timers; what a number or a batch means is `kv.follow` and `kv.events`. Sockets hang on
the loop by their file descriptors and are read until nothing is left, some messages a turn, so that a burst of events
delays no stream. A subscription ends with its endpoint: what its engine still says afterwards is heard by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from pdpool_api.engines.vllm import kv_events as engine
from pdpool_api.names import KV_EVENTS_PORT, KV_REPLAY_PORT
from pdpool_router.faults import EngineFault
from pdpool_router.kv.events import apply
from pdpool_router.kv.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_api.engines.vllm.kv_events import Batch
    from pdpool_router.kv.index import Holder
    from pdpool_router.kv.knowledge import Prefixes
    from pdpool_router.records import Endpoint
    from pdpool_router.telemetry import Telemetry

MISSING_AFTER_S: Final = 10.0
"""An endpoint whose events have not come, or no longer come, for so long is said to miss them."""
REPLAY_S: Final = 10.0
"""Longest silence within a replay."""
ASK_AGAIN_S: Final = 5.0
UNMATCHED_AFTER: Final = 100
"""So many repeated prompts in a row of which no engine has told a block are told of."""
_ASK_TIMEOUT_S: Final = 3.0
_OK: Final = 200
_SERVER_ERROR: Final = 500
_MESSAGES_A_TURN: Final = 32
_HIGH_WATER_MARK: Final = 100_000
_MAX_MESSAGE_BYTES: Final = 64 << 20
_RECONNECT_MS: Final = 200
_RECONNECT_MAX_MS: Final = 5_000
_HEARTBEAT_MS: Final = 10_000
_HEARTBEAT_TIMEOUT_MS: Final = 30_000
_MAX_SOCKETS: Final = 65_535
_log = structlog.get_logger("pdpool_router")


class Fetcher(Protocol):
    """Asks an engine something by HTTP."""

    async def fetch(self, endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            EngineFault: it is not answered.
        """
        ...


class _Socket:
    """A ZeroMQ socket whose messages go to a callback."""

    def __init__(self, socket: zmq.Socket[bytes], heard: Callable[[list[bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._heard = heard
        self._open = True
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        # The descriptor tells changes only: what happened before it was watched is seen by looking.
        self._loop.call_soon(self._drain)

    def send(self, frames: list[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _drain(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            if not self._open:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard(frames)
        self._loop.call_soon(self._drain)


class Subscription:
    """One publisher's events, into one holder, until closed."""

    def __init__(
        self, context: zmq.Context[Any], feed: KvEvents, endpoint: Endpoint, *, rank: int, events: str, replay: str
    ) -> None:
        self._context = context
        self._feed = feed
        self.endpoint: Final = endpoint
        self.rank: Final = rank
        self.events: Final = events
        self._replay_address = replay
        self._follower = Follower(self, replays=bool(replay))
        self._holder: Holder | None = None
        self._replay: _Socket | None = None
        self._replay_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.connected = False
        self.unheard_since_s = monotonic()
        """Since when nothing connects."""
        socket = context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, _HIGH_WATER_MARK),
            (zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
            (zmq.IPV6, 1),
        ):
            socket.setsockopt(option, value)
        socket.subscribe(b"")
        self._socket_itself = socket
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = _Socket(monitor, self._on_connection)
        self._live = _Socket(socket, self._on_live)
        socket.connect(events)

    def close(self) -> None:
        """Ends it; nothing that arrives later has an effect."""
        if self._closed:
            return
        self._closed = True
        self._end_replay()
        self._socket_itself.disable_monitor()
        self._monitor.close()
        self._live.close()
        self._feed.prefixes.untold(self.endpoint.uid, self.rank)

    @property
    def replaying(self) -> bool:
        """A replay is under way."""
        return self._follower.replaying

    # --- sockets -----------------------------------------------------------------------------------------------------
    def _on_connection(self, frames: list[bytes]) -> None:
        if self._closed:
            return
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected = True
            self._follower.connected()
        elif self.connected:
            self.connected = False
            self.unheard_since_s = monotonic()

    def _on_live(self, frames: list[bytes]) -> None:
        told = None if self._closed else self._read(frames)
        if told is not None:
            self._follower.live(*told)

    def _on_replayed(self, frames: list[bytes]) -> None:
        if self._closed or self._replay is None:
            return
        found = engine.sequence_and_payload(frames)
        if found is not None and found[0] == engine.END_OF_REPLAY:
            self._end_replay()
            self._follower.replay_ended(whole=True)
            return
        told = self._read(frames)
        if told is not None:
            self._follower.replayed(*told)
        self._await_replay()

    def _read(self, frames: list[bytes]) -> tuple[int, Batch] | None:
        found = engine.sequence_and_payload(frames)
        if found is not None and found[0] >= 0:
            with contextlib.suppress(engine.EventError):
                return found[0], engine.batch(found[1])
        self._feed.warn(self.endpoint, "KV events that cannot be read")
        return None

    def _await_replay(self) -> None:
        if self._replay_timer is not None:
            self._replay_timer.cancel()
        self._replay_timer = asyncio.get_running_loop().call_later(REPLAY_S, self._give_up)

    def _give_up(self) -> None:
        self._end_replay()
        self._feed.warn(self.endpoint, "KV events are not replayed", address=self._replay_address)
        self._follower.replay_ended(whole=False)

    def _end_replay(self) -> None:
        if self._replay_timer is not None:
            self._replay_timer.cancel()
            self._replay_timer = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    # --- Follows -----------------------------------------------------------------------------------------------------
    def apply(self, batch: Batch) -> None:
        """See `Follows`."""
        known = self._feed.prefixes
        if self._holder is None or not self._holder.bit:
            self._holder = known.told(self.endpoint.uid, self.rank)
        size = self._holder.block_tokens
        apply(known, self._holder, batch)
        if self._holder.block_tokens != size:
            self._feed.check_block_size(self.endpoint, self._holder.block_tokens)

    def forget(self) -> None:
        """See `Follows`."""
        known = self._feed.prefixes
        self._holder = known.told(self.endpoint.uid, self.rank)
        known.blocks.clear(self._holder)

    def ask(self, start: int) -> None:
        """See `Follows`."""
        self._end_replay()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(self._replay_address)
        self._replay = _Socket(socket, self._on_replayed)
        self._replay.send(engine.replay_request(start))
        self._await_replay()

    def gap(self) -> None:
        """See `Follows`."""
        self._feed.telemetry.kv_event_gaps += 1
        _log.warning("KV events were missed", endpoint=self.endpoint.name, rank=self.rank)


class KvEvents:
    """The subscriptions of all endpoints."""

    def __init__(self, prefixes: Prefixes, telemetry: Telemetry, fetcher: Fetcher) -> None:
        self.prefixes: Final = prefixes
        self.telemetry: Final = telemetry
        self._fetcher = fetcher
        self._context: zmq.Context[Any] | None = None
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._since_s: dict[str, float] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._warned: set[tuple[str, str]] = set()
        self._engine_block_tokens: dict[str, int] = {}
        self._following = False
        self._unmatched_told = False

    # --- membership --------------------------------------------------------------------------------------------------
    def follow(self, endpoints: Iterable[Endpoint], *, listen: bool) -> None:
        """Sets the membership; `listen` False: what endpoints hold is only guessed (`index.source: Approximate`)."""
        if listen and self._context is None:
            self._context = zmq.Context()
            self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._following = listen
        new = {endpoint.uid: endpoint for endpoint in endpoints}
        for uid, old in list(self._endpoints.items()):
            if not listen or uid not in new or _moved(old, new[uid]):
                self._leave(uid)
            if uid not in new:
                self._forget(uid)
        for uid, endpoint in new.items():
            self.prefixes.appear(uid)
            known = uid in self._endpoints
            self._endpoints[uid] = endpoint
            if listen and (not known or uid not in self._since_s):
                self._since_s[uid] = monotonic()
                self._asking[uid] = asyncio.get_running_loop().create_task(self._find(endpoint))

    async def close(self) -> None:
        """Ends all subscriptions."""
        tasks = list(self._asking.values())
        for uid in list(self._endpoints):
            self._leave(uid)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.term()
            self._context = None

    def _leave(self, uid: str) -> None:
        task = self._asking.pop(uid, None)
        if task is not None:
            task.cancel()
        for subscription in self._subscriptions.pop(uid, ()):
            subscription.close()
        self._since_s.pop(uid, None)

    def _forget(self, uid: str) -> None:
        endpoint = self._endpoints.pop(uid)
        self.prefixes.vanish(uid)
        self._engine_block_tokens.pop(uid, None)
        self._warned = {key for key in self._warned if key[0] != endpoint.uid}

    async def _find(self, endpoint: Endpoint) -> None:
        """Finds where an endpoint publishes, and subscribes."""
        if endpoint.kv_events:
            self._subscribe(endpoint, 0, endpoint.kv_events, endpoint.kv_replay)
            return
        while True:
            sources = await self._ask(endpoint)
            if sources is not None:
                break
            await asyncio.sleep(ASK_AGAIN_S)
        for source in sources:
            replay = "" if source.replay_port is None else _address(endpoint, source.replay_port)
            self._subscribe(endpoint, source.rank, _address(endpoint, source.events_port), replay)

    async def _ask(self, endpoint: Endpoint) -> list[engine.Source] | None:
        """Where it publishes; None: it cannot say now, ask again. Of one that does not know: what its pod declares."""
        try:
            status, body = await self._fetcher.fetch(endpoint, engine.SOURCES_PATH, _ASK_TIMEOUT_S)
        except EngineFault:
            return None
        if status == _OK:
            with contextlib.suppress(engine.EventError):
                return engine.sources(body) or None
        elif status >= _SERVER_ERROR:
            return None
        ports = endpoint.event_ports or ((KV_EVENTS_PORT, KV_REPLAY_PORT),)
        return [engine.Source(rank, *each) for rank, each in enumerate(ports)]

    def _subscribe(self, endpoint: Endpoint, rank: int, events: str, replay: str) -> None:
        assert self._context is not None
        try:
            subscription = Subscription(self._context, self, endpoint, rank=rank, events=events, replay=replay)
        except zmq.ZMQError as fault:
            self.warn(endpoint, "KV events cannot be subscribed to", address=events, reason=str(fault))
            return
        self._subscriptions.setdefault(endpoint.uid, []).append(subscription)

    # --- what is said of it ------------------------------------------------------------------------------------------
    def missing(self) -> list[Endpoint]:
        """Endpoints whose events should come and have not for a while."""
        if not self._following:
            return []
        late_s = monotonic() - MISSING_AFTER_S
        found = []
        for uid, endpoint in self._endpoints.items():
            heard = self._subscriptions.get(uid)
            if heard:
                if all(one.connected or one.unheard_since_s > late_s for one in heard):
                    continue
            elif self._since_s.get(uid, 0.0) > late_s:
                continue
            found.append(endpoint)
        return found

    def tick(self) -> None:
        """Stops believing endpoints that are no longer heard, and says so once; call it now and then."""
        self._tell_unmatched()
        missing = {endpoint.uid: endpoint for endpoint in self.missing()}
        for uid, endpoint in missing.items():
            for subscription in self._subscriptions.get(uid, ()):
                if not subscription.connected:
                    self.prefixes.untold(uid, subscription.rank)
            self.warn(endpoint, "no KV events: what it holds is guessed from what was sent there")
        for key in [key for key in self._warned if key[1].startswith("no KV events") and key[0] not in missing]:
            self._warned.discard(key)
            endpoint_now = self._endpoints.get(key[0])
            if endpoint_now is not None:
                _log.info("KV events come again", endpoint=endpoint_now.name)

    def _tell_unmatched(self) -> None:
        """Says once that events come and match nothing, as where they are of other prompts than this router's."""
        if not self.prefixes.unmatched:
            self._unmatched_told = False
        elif self.prefixes.unmatched >= UNMATCHED_AFTER and not self._unmatched_told:
            self._unmatched_told = True
            _log.warning("KV events come, but no repeated prompt matches them", repeats=self.prefixes.unmatched)

    def engine_says(self, uid: str, block_tokens: int) -> None:
        """An engine's metrics tell the block size that it was configured with."""
        self._engine_block_tokens[uid] = block_tokens
        endpoint = self._endpoints.get(uid)
        if endpoint is not None:
            for size in self.prefixes.block_sizes_of(uid):
                self.check_block_size(endpoint, size)

    def check_block_size(self, endpoint: Endpoint, block_tokens: int) -> None:
        """Warns where events have another block size than the engine is configured with; theirs counts."""
        configured = self._engine_block_tokens.get(endpoint.uid)
        if configured is not None and configured != block_tokens and block_tokens:
            self.warn(
                endpoint,
                "KV events have another block size than the engine's configuration; that of the events counts",
                events=block_tokens,
                configured=configured,
            )

    def warn(self, endpoint: Endpoint, text: str, **fields: object) -> None:
        """Says something of an endpoint once."""
        if (endpoint.uid, text) not in self._warned:
            self._warned.add((endpoint.uid, text))
            _log.warning(text, endpoint=endpoint.name, **fields)


def _address(endpoint: Endpoint, port: int) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"tcp://{host}:{port}"


def _moved(old: Endpoint, new: Endpoint) -> bool:
    return (old.authority, old.kv_events, old.kv_replay) != (new.authority, new.kv_events, new.kv_replay)
