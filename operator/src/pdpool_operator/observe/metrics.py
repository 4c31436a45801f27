"""What a tick needs to know of a pool: read from its engines and routers themselves, or from Prometheus.

Boundary: reads exactly what the signals declare, each source with a deadline, and says of a source that told nothing
why. What was not read is absent from the observation. Addresses stand in faults, credentials never.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from pdpool_api import names
from pdpool_api.engines import vllm
from pdpool_api.engines.vllm import metrics as engine_metrics
from pdpool_api.names import Role
from pdpool_operator.autoscale import Measure, Source, source_of
from pdpool_operator.observe import workload
from pdpool_operator.observe.attribution import Owners
from pdpool_operator.observe.exposition import Page
from pdpool_operator.observe.from_prometheus import FromPrometheus
from pdpool_operator.observe.gateway import NAMES as GATEWAY_NAMES
from pdpool_operator.observe.gateway import Gateway
from pdpool_operator.observe.prometheus import Credentials, Prometheus, UnreadError, credentials
from pdpool_operator.observe.readings import Readings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdpool_api.pool import InferencePoolSpec
    from pdpool_api.scaling_spec import Prometheus as Settings
    from pdpool_operator.autoscale import Limits, Observation
    from pdpool_operator.kube import Kube
    from pdpool_operator.records import Json, Observed

TIMEOUT_S: Final = 3.0
IN_FLIGHT: Final = 64
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
CREDENTIALS_S: Final = 60.0
"""How long credentials are used before their Secrets are read again."""
_OK: Final = 200

ENGINE: Final = {
    Measure.WAITING: (engine_metrics.WAITING.names, Page.total),
    Measure.RUNNING: (engine_metrics.RUNNING.names, Page.total),
    Measure.KV_USAGE: (engine_metrics.KV_USAGE.names, Page.largest),
}
"""Ranks of one engine: requests are summed, of ratios the largest counts."""
ACTIVITY: Final = frozenset({Measure.QUEUED, Measure.INFLIGHT, Measure.SERVED_TOKENS, Measure.RUNNING})
"""Asked of engines and routers themselves whatever the source is: what Prometheus knows is too old to wake a pool."""


class Pages:
    """Pages of metrics, over connections that all pools share; use as an async context manager."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Half of what a reading costs is its connection. Ours is given up before the engine closes it.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=vllm.KEEP_ALIVE_S - TIMEOUT_S)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        # Compressing a page costs an engine more than sending it; and no cookie of one pod goes to another.
        plain = {"Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=plain, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def page(self, address: str, wanted: Iterable[str]) -> Page:
        """The wanted lines of `http://<address>/metrics`.

        Raises:
            UnreadError: no page.
        """
        assert self._session is not None
        try:
            async with self._slots, self._session.get(f"http://{address}/metrics", allow_redirects=False) as answer:
                if answer.status != _OK:
                    raise UnreadError(f"{address} answered {answer.status}")
                body = await answer.content.read(MAX_PAGE_BYTES)
                while len(body) < MAX_PAGE_BYTES and (more := await answer.content.read(MAX_PAGE_BYTES - len(body))):
                    body += more
            return Page(body, wanted)
        except TimeoutError:
            raise UnreadError(f"no answer from {address} in {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError):
            raise UnreadError(f"{address} cannot be reached") from None
        except ValueError:
            raise UnreadError(f"{address} gave a page that cannot be read") from None


class PoolMetrics:
    """The readings of one pool; keeps what only differences tell (latencies), and the connection to its Prometheus."""

    def __init__(self, pages: Pages, kube: Kube) -> None:
        self._pages = pages
        self._kube = kube
        self._gateway = Gateway()
        self._prometheus: tuple[object, Prometheus] | None = None
        self._given: tuple[float, Settings, Credentials] | None = None

    def close(self) -> None:
        """Gives the connection to Prometheus back."""
        if self._prometheus is not None:
            self._prometheus[1].close()
            self._prometheus = None

    async def read(self, observed: Observed, spec: InferencePoolSpec, limits: Limits, now: float) -> Observation:
        """One observation; faults are in it, none is raised."""
        needs = limits.needs
        readings = Readings()
        of_pods = frozenset(each for each in needs if source_of(each) in (Source.ENGINE, Source.GATEWAY))
        always = of_pods & ACTIVITY if limits.to_zero else frozenset()
        direct = of_pods if spec.autoscaling.source == "Direct" else always
        scaled = [role for role, each in limits.engines.items() if each.scaled or limits.to_zero]
        await asyncio.gather(
            self._engines(observed, spec, scaled, direct, readings),
            self._routers(observed, direct, readings, now, spec),
            self._ask_prometheus(observed, spec, limits, needs - direct, readings, now=now),
        )
        asked = needs - direct
        if readings.unheard and any(not asked.isdisjoint(values) for values in readings.pods.values()):
            await self._ask_unheard(observed, asked, readings, now, spec)
        return readings.observation(observed, limits)

    async def _ask_unheard(
        self, observed: Observed, needs: frozenset[Measure], readings: Readings, now: float, spec: InferencePoolSpec
    ) -> None:
        """Asks routers themselves where a Prometheus knows the engines and not the routers, in whom a queue stands."""
        themselves = Readings()
        await self._routers(observed, needs, themselves, now, spec)
        if len(themselves.unheard) < len(readings.unheard):
            readings.take_over(themselves)

    async def _engines(
        self,
        observed: Observed,
        spec: InferencePoolSpec,
        roles: Iterable[Role],
        needs: frozenset[Measure],
        readings: Readings,
    ) -> None:
        wanted = {measure: ENGINE[measure] for measure in needs & ENGINE.keys()}
        if not wanted:
            return
        asked = [(pod, vllm.http_port(spec, role)) for role in roles for pod in workload.serving(observed, role)]
        lines = [name for each, _ in wanted.values() for name in each]
        pages = await asyncio.gather(*(self._page(pod, port, lines) for pod, port in asked))
        for (pod, _), page in sorted(zip(asked, pages, strict=True), key=lambda each: each[0][0]["metadata"]["name"]):
            if isinstance(page, UnreadError):
                readings.fault(wanted, str(page))
                continue
            for measure, (of_engine, combined) in wanted.items():
                readings.tell(pod["metadata"]["name"], measure, combined(page, *of_engine))

    async def _routers(
        self, observed: Observed, needs: frozenset[Measure], readings: Readings, now: float, spec: InferencePoolSpec
    ) -> None:
        wanted = needs & GATEWAY_NAMES.keys()
        if not wanted:
            return
        serving = workload.serving(observed, Role.ROUTER)
        # One that drains may hold requests, also such as a pool must wake for; it may be gone at any time, too.
        routers = [*serving, *workload.draining(observed, Role.ROUTER)]
        lines = [GATEWAY_NAMES[measure] for measure in wanted]
        pages = await asyncio.gather(*(self._page(pod, names.ROUTER_ADMIN_PORT, lines) for pod in routers))
        told: dict[str, Page] = {}
        for pod, page in sorted(zip(routers, pages, strict=True), key=lambda each: each[0]["metadata"]["name"]):
            if not isinstance(page, UnreadError):
                told[pod["metadata"]["uid"]] = page
            elif pod in serving:
                readings.fault(wanted, str(page))
                readings.unheard.add(pod["metadata"]["name"])
        if not serving:
            readings.fault(wanted, "no router is ready")
        owners = Owners(observed.ref.namespace, observed.pods)
        percentile = spec.slo.percentile if spec.slo is not None else 95.0
        self._gateway.read(told, wanted, owners, readings, now=now, percentile=percentile)

    async def _page(self, pod: Json, port: int, wanted: Iterable[str]) -> Page | UnreadError:
        address = workload.address(pod, port)
        if address is None:
            return UnreadError(f"pod {pod['metadata']['name']} has no address")
        try:
            return await self._pages.page(address, wanted)
        except UnreadError as fault:
            return fault

    async def _ask_prometheus(
        self,
        observed: Observed,
        spec: InferencePoolSpec,
        limits: Limits,
        needs: frozenset[Measure],
        readings: Readings,
        *,
        now: float,
    ) -> None:
        settings = spec.autoscaling.prometheus
        if settings is None or not needs:
            return
        try:
            given = await self._credentials(observed.ref.namespace, settings, now)
            key = (settings, given)
            if self._prometheus is None or self._prometheus[0] != key:
                self.close()
                self._prometheus = (key, Prometheus(settings, given))
        except UnreadError as fault:
            words = f"{settings.url}: {fault}" if settings.url not in str(fault) else str(fault)
            readings.fault(needs, words)
            return
        percentile = spec.slo.percentile if spec.slo is not None else 95.0
        await FromPrometheus(self._prometheus[1], observed, limits, percentile).read(needs, readings)

    async def _credentials(self, namespace: str, settings: Settings, now: float) -> Credentials:
        known = self._given
        if known is None or known[1] != settings or not 0 <= now - known[0] < CREDENTIALS_S:
            known = self._given = (now, settings, await credentials(self._kube, namespace, settings))
        return known[2]
