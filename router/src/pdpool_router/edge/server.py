"""The API port: its listener and all its client connections.

Boundary: opening, sweeping and closing; one connection is `connection`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pdpool_router.edge.connection import HEAD_S, LINGER_S, Connection

if TYPE_CHECKING:
    import ssl

    from pdpool_router.edge.connection import Application


class Server:
    """All client connections of one port."""

    def __init__(self, application: Application, loop: asyncio.AbstractEventLoop) -> None:
        self.application = application
        self.connections: set[Connection] = set()
        self.shutting_down = False
        self._loop: Final = loop
        self._listeners: list[asyncio.Server] = []
        self._relistening: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Opens the port, with TLS where a context is given; the number that was opened (`port` 0: any)."""
        listener = await self._listener(tls, host=host, port=port)
        self._listeners = [listener]
        number: int = listener.sockets[0].getsockname()[1]
        return number

    def use_tls(self, tls: ssl.SSLContext | None) -> None:
        """Speaks TLS, or no longer, with whoever connects from now on; the port never closes meanwhile."""
        self._relistening = self._loop.create_task(self._listen_anew(tls))

    async def _listen_anew(self, tls: ssl.SSLContext | None) -> None:
        old = self._listeners
        sockets = [socket.socket(fileno=os.dup(each.fileno())) for one in old for each in one.sockets]
        self._listeners = [await self._listener(tls, sock=each) for each in sockets]
        for one in old:
            one.close()

    async def _listener(self, tls: ssl.SSLContext | None, **where: Any) -> asyncio.Server:
        limits = {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": LINGER_S} if tls is not None else {}
        create: Any = self._loop.create_server  # its overloads know no mapping of arguments
        made: asyncio.Server = await create(lambda: Connection(self), ssl=tls, backlog=4096, **limits, **where)
        return made

    def sweep(self) -> None:
        """Ends what is too slow; called by the ticker."""
        now_s = monotonic()
        for connection in list(self.connections):
            connection.check_time(now_s)

    @property
    def busy(self) -> int:
        """Connections that a shutdown must wait for."""
        return sum(1 for connection in self.connections if connection.busy)

    async def close(self) -> None:
        """Closes the port and every connection."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
