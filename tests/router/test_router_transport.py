"""Connections to engines that only real bytes show: what is kept and what is not."""

from __future__ import annotations

import asyncio

from pdpool_api.names import Role
from pdpool_router.forward.transport import Transport
from pdpool_router.records import Endpoint


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
        await asyncio.wait_for(ended.wait(), 5)
    finally:
        transport.close()
        server.close()
