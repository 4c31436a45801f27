"""Connections to engines that only real bytes show: what is kept and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from pdpool_api.names import Role
from pdpool_router.faults import ConnectFailed, EngineFault, EngineReset
from pdpool_router.forward import upstream as connections
from pdpool_router.forward.call import Body, Call, Carrier
from pdpool_router.forward.transport import IDLE_KEPT_S, Transport
from pdpool_router.records import Endpoint
from tests.router.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pdpool_router.forward.framing import Head
    from pdpool_router.forward.upstream import Upstream

    Engine = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST = b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def engine_of(serve: Engine) -> AsyncIterator[tuple[Transport, Endpoint]]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transport = Transport()
    try:
        yield transport, endpoint_at(server.sockets[0].getsockname()[1])
    finally:
        transport.close()
        server.close()


def endpoint_at(port: int, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(uid="u", name="n", role=Role.DECODE, host=host, port=port)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Waiting:
    """A receiver that a test can wait for; results in the payload."""

    def __init__(self) -> None:
        self.carrier: Carrier | None = None
        self.payload = b""
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_answer(self, head: Head, body: bytes, now_s: float) -> None:
        del head, now_s
        self.done.set_result(body)

    def on_head(self, head: Head, upstream: Upstream, now_s: float) -> Body:
        del head, upstream, now_s
        return self

    def on_body(self, wire: bytes, payload: bytes, now_s: float, *, last: bool) -> None:
        del wire, now_s, last
        self.payload += payload

    def on_end(self, now_s: float) -> None:
        del now_s
        self.done.set_result(self.payload)

    def on_fault(self, fault: Exception) -> None:
        self.done.set_exception(fault)


async def call(transport: Transport, endpoint: Endpoint) -> bytes:
    waiting = Waiting()
    transport.send(endpoint, Call(REQUEST, waiting, connect_s=5))
    return await waiting.done


async def test_connection_of_a_probe_is_not_used_again() -> None:
    """A probe says that nothing follows, so its connection is closed even if the engine's answer would keep it open."""
    ended = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        assert await reader.read() == b""
        ended.set()
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    transport = Transport()
    try:
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(uid="u", name="n", role=Role.DECODE, host="127.0.0.1", port=port)
        assert await transport.healthy(endpoint, 5)
        await asyncio.wait_for(ended.wait(), 30)
    finally:
        transport.close()
        server.close()


async def test_a_reset_is_no_end_of_an_answer() -> None:
    """An answer that ends with its connection is whole only when the engine ended it in order."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)
        reset(writer)

    async with engine_of(engine) as (transport, endpoint):
        with pytest.raises(EngineReset):
            await call(transport, endpoint)


@pytest.mark.parametrize("late", [False, True])
async def test_only_an_idle_end_is_made_good_unseen(monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
    """A kept connection that ends as the request arrives is replaced; one that ends later has failed the request."""
    monkeypatch.setattr(connections, "STALE_AFTER_S", 0.0)
    monkeypatch.setattr(connections, "STALE_SEEN_WITHIN_S", 0.2)
    seen: list[int] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = not seen
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                seen.append(1)
                if first and len(seen) == 2:
                    await asyncio.sleep(0.4 if late else 0)
                    reset(writer)
                    return
                writer.write(OK)
        writer.close()

    async with engine_of(engine) as (transport, endpoint):
        await call(transport, endpoint)
        if late:
            with pytest.raises(EngineFault):
                await call(transport, endpoint)
            assert len(seen) == 2
        else:
            assert await call(transport, endpoint) == b"{}"
            assert len(seen) == 3


async def test_a_name_that_is_none_is_a_failed_connection() -> None:
    """A host name that cannot be looked up fails like any connection, and as nothing worse."""
    transport = Transport()
    with pytest.raises(ConnectFailed):
        await call(transport, endpoint_at(1, "a" * 70 + ".invalid"))


async def test_nothing_is_remembered_of_endpoints_without_connections() -> None:
    """An endpoint that is gone leaves nothing behind, also when a request of its last moment still dialled it."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(OK)
        writer.close()

    async with engine_of(engine) as (transport, endpoint):
        assert await call(transport, endpoint) == b"{}"
        transport.sweep()
        assert len(transport.shelf(endpoint).idle) == 1
        transport.drop(endpoint)
        assert await call(transport, endpoint) == b"{}"
        kept = transport.shelf(endpoint).idle[0]
        kept.heard_s -= IDLE_KEPT_S + 1
        transport.sweep()
        await eventually(lambda: not transport._connections)
        transport.sweep()
        assert not transport._shelves
