"""Fixtures of the router's tests: stand-in engines, a router in this process, a client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
import pytest
import uvloop

from e2e.cluster.fixtures import bare_control_plane
from e2e.engine.standin import Standin
from pdpool_api.router_config import RouterConfig, from_mapping
from pdpool_router.assembly import Router
from pdpool_router.forward.transport import Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    MakeSite = Callable[..., Awaitable["Site"]]

__all__ = ["bare_control_plane"]

PROMPT = "the quick brown fox jumps over the lazy dog "


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the router runs on."""
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@dataclass
class Site:
    """A router between stand-in engines and a client."""

    router: Router
    client: httpx.AsyncClient
    prefill: list[Standin]
    decode: list[Standin]
    aggregated: list[Standin] = field(default_factory=list)

    @property
    def p(self) -> Standin:
        return self.prefill[0]

    @property
    def d(self) -> Standin:
        return self.decode[0]

    @property
    def engines(self) -> list[Standin]:
        return [*self.prefill, *self.decode, *self.aggregated]

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/completions", json={"model": "tiny", "prompt": PROMPT, "max_tokens": 4, **body}
        )

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's series with at least these labels; 0 where there is none."""
        text = (await self.client.get(f"http://127.0.0.1:{self.router.admin_port}/metrics")).text
        total = 0.0
        for line in text.splitlines():
            found = re.match(rf"pdpool_router_{name}(?:\{{(.*)\}})? (\S+)$", line)
            if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
                total += float(found[2])
        return total

    async def idle(self) -> None:
        """Waits until nothing is in flight."""
        await eventually(lambda: not self.router.endpoints.inflight.requests)


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe finds its endpoint well, so that none finds out before a request does."""

    async def healthy(*_: object) -> bool:
        return True

    monkeypatch.setattr(Transport, "healthy", healthy)


@pytest.fixture
async def site() -> AsyncIterator[Callable[..., Awaitable[Site]]]:
    """Makes a site: so many engines of each role, and sections laid over the configuration."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            prefill: int = 1, decode: int = 1, aggregated: int = 0, *, engine: dict[str, Any] | None = None, **over: Any
        ) -> Site:
            groups: dict[str, list[Standin]] = {}
            for role, count in (("prefill", prefill), ("decode", decode), ("aggregated", aggregated)):
                groups[role] = [
                    await stack.enter_async_context(Standin(role, **(engine or {})))  # type: ignore[arg-type]
                    for _ in range(count)
                ]
            static = [{"role": role, "url": one.url} for role, group in groups.items() for one in group]
            router = await stack.enter_async_context(running(config(static, **over)))
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20)
            )
            return Site(router, client, groups["prefill"], groups["decode"], groups["aggregated"])

        yield make
        await RawClient.end_all()


def config(static: list[dict[str, Any]], **over: Any) -> RouterConfig:
    """Prompts of tests are short: they hop all the same, unless a test says otherwise."""
    routing = {"localPrefill": {"maxUncachedTokens": 0}} | over.pop("routing", {})
    return from_mapping(
        {"model": {"servedNames": ["tiny"]}, "endpoints": {"static": static}, "routing": routing, **over}
    )


@contextlib.asynccontextmanager
async def running(settings: RouterConfig, *, host: str = "127.0.0.1") -> AsyncIterator[Router]:
    """A router on loopback, on any free ports."""
    router = Router(settings, rng=random.Random(7))
    await router.start(host, 0, 0)
    try:
        yield router
    finally:
        await router.close()


async def eventually(holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Waits until something holds.

    Raises:
        AssertionError: it does not in time.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it did not come to hold in time"
        await asyncio.sleep(0.01)


class RawClient(asyncio.Protocol):
    """A client that writes and reads bytes as the test says; ended with the test's loop at the latest."""

    _all: ClassVar[list[RawClient]] = []

    def __init__(self) -> None:
        RawClient._all.append(self)
        self.received = b""
        self.ended = False
        self.lost = False
        self._news = asyncio.Event()
        self.transport: Any = None

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    @classmethod
    async def end_all(cls) -> None:
        """Ends every client of the test."""
        clients, cls._all = cls._all, []
        for client in clients:
            client.transport.abort()
        for client in clients:
            await eventually(lambda client=client: client.lost)  # type: ignore[misc]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    def eof_received(self) -> bool:
        self.ended = True
        self._news.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = self.lost = True
        self._news.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def until(self, holds: Callable[[bytes], bool], within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not holds(self.received):
                assert not self.ended, self.received
                self._news.clear()
                await self._news.wait()

    async def head(self) -> bytes:
        await self.until(lambda data: b"\r\n\r\n" in data)
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    async def answer(self) -> tuple[bytes, bytes]:
        """One answer that tells its length."""
        head = await self.head()
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None, head
        length = int(found[1])
        await self.until(lambda data: len(data) >= length)
        body, self.received = self.received[:length], self.received[length:]
        return head, body

    async def rest(self) -> bytes:
        """Everything until the router ends the connection."""
        async with asyncio.timeout(10):
            while not self.ended:
                self._news.clear()
                await self._news.wait()
        self.transport.close()
        return self.received

    def end_sending(self) -> None:
        self.transport.write_eof()

    def reset(self) -> None:
        self.transport.abort()

    def close(self) -> None:
        self.transport.close()


def raw_post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "host: router",
        f"content-length: {len(body)}",
        "content-type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
