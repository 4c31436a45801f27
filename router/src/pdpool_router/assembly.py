"""Puts the rooms together: one router, from its configuration to its two open ports and back.

Boundary: construction, order of start and stop, what a new configuration changes; no rule of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api.names import ROUTER_POD_NAME_VARIABLE
from pdpool_router.edge import tls
from pdpool_router.edge.access import Access
from pdpool_router.edge.admin import Admin
from pdpool_router.edge.explain import Explainer
from pdpool_router.edge.news import EndpointNews
from pdpool_router.edge.openai import Api
from pdpool_router.edge.page import Page
from pdpool_router.edge.server import Server
from pdpool_router.edge.stack import Stack
from pdpool_router.feeds import secret_files, static
from pdpool_router.feeds.engine_metrics import EngineMetrics, interval_s
from pdpool_router.feeds.kv_events import KvEvents
from pdpool_router.feeds.probes import Prober
from pdpool_router.flow.admission import Admission
from pdpool_router.flow.saturation import spare_tokens
from pdpool_router.flow.wake import Wake
from pdpool_router.forward.choice import Choice
from pdpool_router.forward.handoff import Forwarder
from pdpool_router.forward.transport import Transport
from pdpool_router.records import Life, LocalPrefill
from pdpool_router.schedule.policies import POLICIES
from pdpool_router.state.endpoints import Endpoints
from pdpool_router.state.guesses import guesses, slower
from pdpool_router.state.inflight import Inflight
from pdpool_router.telemetry import Telemetry
from pdpool_router.ticker import Ticker

if TYPE_CHECKING:
    import ssl

    from pdpool_api.router_config import RouterConfig
    from pdpool_router.edge.access_log import AccessLog
    from pdpool_router.edge.tracing import Tracer
    from pdpool_router.records import Endpoint

_DRAIN_POLL_S: Final = 0.05
_LINGER_S: Final = 1.0
"""Longer than a request travels; after it a kept connection that says nothing is closed."""
_SETTLE_S: Final = 1.0
_log = structlog.get_logger("pdpool_router")


class Router:
    """A whole router in this process's event loop."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        rng: random.Random | None = None,
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Reads the secret files that the configuration names; `access_log`, `tracer`: who is told of each request.

        Raises:
            ConfigError: one of them cannot be read, or is refused.
        """
        self.config = config
        self._access_log = access_log
        self._tracer = tracer
        files = secret_files.read(config)
        self._tls = _tls(config)
        self.telemetry: Final = Telemetry()
        self.endpoints: Final = Endpoints(Inflight(), clock=monotonic)
        self.transport: Final = Transport()
        self._choice = Choice(
            POLICIES[config.routing.policy](),
            self.endpoints,
            rng or random.Random(),  # noqa: S311 - choices need no secrecy
        )
        self._forwarder = Forwarder(
            transport=self.transport,
            endpoints=self.endpoints,
            choice=self._choice,
            telemetry=self.telemetry,
            config=config,
        )
        self.admission: Final = Admission(config.limits, {}, clock=monotonic, queued=self.telemetry.queued)
        self.admission.spare_tokens = lambda: spare_tokens(self.endpoints.snapshot())
        self._wake: Final = Wake()
        self._life = Life.STARTED
        self.api: Final = Api(
            forwarder=self._forwarder,
            endpoints=self.endpoints,
            admission=self.admission,
            telemetry=self.telemetry,
            config=config,
            access=_access(config, files),
        )
        self._secret_files = secret_files.SecretFiles(self._renew)
        self._secret_files.follow(config, files)
        self.kv_events: Final = KvEvents(self.endpoints.prefixes, self.telemetry, self.transport)
        self.endpoints.on_change(self._follow_events)
        page = Page(
            self.telemetry,
            self.endpoints,
            self._choice.recent,
            models=lambda: self.config.model.served_names,
            ready=self._unready,
        )
        self.admin: Final = Admin(
            self.telemetry,
            self.endpoints,
            page,
            ready=self._unready,
            kv_events=self.kv_events,
            explain=Explainer(self._choice, lambda: self.config),
        )
        self.server: Server
        self._ticker = Ticker()
        self._prober = Prober(self.endpoints, self.transport)
        self._engine_metrics = EngineMetrics(
            self.endpoints, self.endpoints.loads, self.transport, self.kv_events.engine_says
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._feeding: asyncio.Task[None] | None = None
        self._settled_s = 0.0
        self.port = 0
        self.admin_port = 0

    async def start(self, host: str, port: int, admin_port: int) -> None:
        """Opens both ports and begins to follow the endpoints.

        Raises:
            OSError: a port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        self.server = Server(Stack(self.api, self.telemetry, access_log=self._access_log, tracer=self._tracer), loop)
        self.endpoints.on_gone(self.transport.drop)
        self._follow(None)
        self._ticker.add(self.transport.sweep)
        self._ticker.add(self.server.sweep)
        self._ticker.add(self.telemetry.settle)
        self._ticker.add(EndpointNews(self.endpoints).tell)
        self._ticker.add(self._look_after_the_line)
        if self._access_log is not None:
            self._ticker.add(self._access_log.flush)
        self._ticker.add(self._settle)
        self._ticker.start()
        self._tasks = [
            loop.create_task(self._prober.run()),
            loop.create_task(self._secret_files.run()),
            loop.create_task(self._engine_metrics.run()),
        ]
        self.admin_port = await self.admin.listen(host, admin_port)
        self.port = await self.server.listen(host, port, tls=self._tls)
        _log.info("listening", host=host, port=self.port, admin_port=self.admin_port)

    def configure(self, config: RouterConfig) -> None:
        """Takes over a new configuration, whole or not at all; requests in hand go on with what they began with.

        Raises:
            ConfigError: a secret file that it names cannot be read, or is refused.
        """
        files = secret_files.read(config)
        if config.tls != self.config.tls:
            tls_now = _tls(config)
            self.server.use_tls(tls_now)
            self._tls = tls_now
        old, self.config = self.config, config
        if config.routing.policy != old.routing.policy:
            self._choice.policy = POLICIES[config.routing.policy]()
        self._forwarder.configure(config)
        self.api.configure(config, _access(config, files))
        self._secret_files.follow(config, files)
        self._follow(old)

    def _renew(self, config: RouterConfig, files: secret_files.Secrets) -> None:
        """Takes over what secret files hold now."""
        if self._tls is not None:
            tls.context(config.tls)
            tls.load(self._tls, config.tls)
        self.api.configure(config, _access(config, files))

    def _retire(self) -> None:
        """Serves on, and has each client connect anew after its present answer: elsewhere, as the pod terminates."""
        if not self.server.shutting_down:
            _log.info("this pod terminates: connections are ended one by one")
        self.server.shutting_down = True

    async def drain(self) -> None:
        """Refuses what is new and waits until what was accepted has ended.

        Kept connections stay for a moment: a request that is on its way on one of them gets its 503, and no reset.
        """
        self.api.shutting_down = True
        self.server.shutting_down = True
        linger_until_s = monotonic() + (_LINGER_S if self.server.connections else 0)
        while self.server.busy or (self.server.connections and monotonic() < linger_until_s):  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(_DRAIN_POLL_S)
        for connection in list(self.server.connections):
            connection.close_if_idle()

    async def close(self) -> None:
        """Closes everything at once."""
        for task in (*self._tasks, *([self._feeding] if self._feeding is not None else [])):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._ticker.stop()
        await self.kv_events.close()
        await self.server.close()
        self.transport.close()
        await self.admin.close()
        if self._access_log is not None:
            self._access_log.flush()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _unready(self) -> str:
        if self.api.shutting_down:
            return "shutting down"
        return "" if self.endpoints.listed else "endpoints not listed yet"

    def _follow(self, old: RouterConfig | None) -> None:
        """Takes endpoints from where the configuration says."""
        config = self.config
        self.endpoints.configure(
            max_local_prefills=config.limits.max_local_prefills,
            local_allowed=config.routing.on_prefill_unavailable == "Local",
            local_prefill=LocalPrefill(
                config.routing.local_prefill.max_uncached_tokens, config.routing.local_prefill.min_cached_ratio
            ),
        )
        self.endpoints.prefixes.configure(config.routing.index.max_blocks)
        self.endpoints.loads.configure(guesses(config.speeds), slower(config))
        if old is not None and old.endpoints == config.endpoints:
            if old.routing != config.routing:
                self._follow_events(self.endpoints.all())
            return
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
        self._life = Life.STARTED  # only the feed of pods can tell
        if config.endpoints.pods is None:
            self.endpoints.replace(static.endpoints(config.endpoints.static))
            return
        # Only a router in a cluster pays for the Kubernetes client: 60 MiB and most of a second.
        from pdpool_router.feeds.pods import PodFeed  # noqa: PLC0415

        self._feeding = asyncio.get_running_loop().create_task(
            PodFeed(
                config.endpoints.pods,
                self._take,
                self._set_life,
                own_name=os.environ.get(ROUTER_POD_NAME_VARIABLE) or socket.gethostname(),
                tell_end=self._retire,
            ).run()
        )

    def _take(self, endpoints: list[Endpoint]) -> None:
        self.endpoints.replace(endpoints)
        self._look_after_the_line()  # at once: whoever is held waits for exactly this

    def _follow_events(self, endpoints: list[Endpoint]) -> None:
        """Listens to KV events where the policy compares prefixes and the configuration wants events."""
        reads = self._choice.policy.reads_prefixes
        self.kv_events.follow(endpoints, listen=reads and self.config.routing.index.source == "Events")

    def _settle(self) -> None:
        """Now and then: what was learned counts, what is stale does not."""
        self.endpoints.prefixes.sweep()
        now_s = monotonic()
        if now_s < self._settled_s + _SETTLE_S:
            return
        self._settled_s = now_s
        self.endpoints.loads.settle(now_s, interval_s(len(self.endpoints.loads.loads)))
        self.kv_events.tick()

    def _set_life(self, life: Life) -> None:
        self._life = life
        self._look_after_the_line()

    def _look_after_the_line(self) -> None:
        """Holds requests while the pool wakes, and ends the wait of those whose time is over."""
        serves = self.api.serviceable()
        wakes = self.admission.may_hold and self._wake.look(self._life, serves=serves, now_s=monotonic())
        self.admission.sleep(asleep=wakes)
        self.admission.tick()


def _access(config: RouterConfig, files: secret_files.Secrets) -> Access:
    access = Access(config, keys=files.api_keys, salt=files.salt)
    if not access.open and not len(access):
        _log.warning("the keys file holds no key: every request is refused", file=config.auth.api_keys_file)
    return access


def _tls(config: RouterConfig) -> ssl.SSLContext | None:
    return tls.context(config.tls) if config.tls.cert_file else None
