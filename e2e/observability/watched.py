"""A pool as Prometheus sees it, without a cluster: a router between stand-in engines, scraped by a real Prometheus.

Boundary: processes and sockets of this machine, for the length of a block. The router is whole and real; engines are
stand-ins, and so are GPUs. The operator's own page is served as it is; what it says of a pool is the caller's.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx
from prometheus_client import generate_latest

from e2e.engine.standin import EventsConfig, Standin
from e2e.observability.answers import Board
from e2e.ports import free_ports
from e2e.scenarios import gpu_exporter, host_page, prometheus
from pdpool_api.names import Role
from pdpool_api.router_config import from_mapping
from pdpool_operator.telemetry import REGISTRY
from pdpool_router.assembly import Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMESPACE: Final = "serving"
POOL: Final = "llama"
MODEL: Final = "tiny"
HOST: Final = "127.0.0.1"
_TEXT: Final = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Watched:
    """The pool, to talk to and to look at."""

    client: httpx.AsyncClient
    """Of the router's API."""
    prefill: list[Standin]
    decode: list[Standin]
    board: Board

    async def ask(self, prompt: str, max_tokens: int) -> httpx.Response:
        """One streamed request, to its end."""
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        return await self.client.post("/v1/completions", json=body)


@asynccontextmanager
async def watched(folder: Path, *, prefill: int = 2, decode: int = 2, **sections: Any) -> AsyncIterator[Watched]:
    """Starts everything; `sections` are laid over the router's configuration.

    Raises:
        LateError: Prometheus does not start.
    """
    async with AsyncExitStack() as stack:
        counts: dict[Literal["prefill", "decode"], int] = {"prefill": prefill, "decode": decode}
        engines = {
            role: [await stack.enter_async_context(Standin(role, events=_events())) for _ in range(count)]
            for role, count in counts.items()
        }
        static = [{"role": role, "url": each.url} for role, group in engines.items() for each in group]
        settings = {"model": {"servedNames": [MODEL]}, "endpoints": {"static": static}, **sections}
        router = Router(from_mapping(settings), rng=random.Random(7))  # noqa: S311 - of choices, not of secrets
        await router.start(HOST, 0, 0)
        stack.push_async_callback(router.close)
        pods = {f"{POOL}-{role}-{number}": each for role, group in engines.items() for number, each in enumerate(group)}
        busy = {(NAMESPACE, name): 0.5 for name in pods}
        operator = stack.enter_context(host_page.serving(lambda: generate_latest(REGISTRY), _TEXT, HOST))
        exporter = stack.enter_context(host_page.serving(lambda: gpu_exporter.page(busy), _TEXT, HOST))
        targets = [_target(each.url, name, name.split("-")[1]) for name, each in pods.items()]
        targets.append(_target(f"http://{HOST}:{router.admin_port}", f"{POOL}-router", Role.ROUTER))
        scraped = prometheus.configuration({"static_configs": targets}, exporter, [operator])
        # Its own thread: the engines and the router go on meanwhile, and the first scrape finds them.
        running = prometheus.running(folder, scraped, HOST, *free_ports(1))
        url = await asyncio.to_thread(running.__enter__)
        stack.push_async_exit(lambda *fault: asyncio.to_thread(running.__exit__, *fault))
        client = httpx.AsyncClient(base_url=f"http://{HOST}:{router.port}", timeout=60)
        await stack.enter_async_context(client)
        yield Watched(client, engines["prefill"], engines["decode"], Board(url, NAMESPACE, POOL))


def _target(url: str, pod: str, role: str) -> dict[str, Any]:
    return prometheus.target(url.removeprefix("http://"), NAMESPACE, pod, POOL, role)


def _events() -> EventsConfig:
    live, replay = (f"tcp://*:{port}" for port in free_ports(2))
    return EventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=live, replay_endpoint=replay)
