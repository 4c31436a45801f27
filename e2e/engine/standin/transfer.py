"""The stand-in's own side channel, in place of NIXL: decode reads leased blocks of prefill, or tells it to free them.

Boundary: bytes on a TCP connection between two stand-ins (4-byte length, msgpack). Not NIXL's protocol: only
stand-ins pair with each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

import msgspec

from e2e.engine.standin.kv import Content

# NIXL's own limit on a handshake.
CONNECT_TIMEOUT_S = 5.0


class Ask(msgspec.Struct, array_like=True):
    """A question of decode: `read` the last `count` blocks of a leased request, `free` them, or `beat`."""

    what: Literal["read", "free", "beat"]
    engine_id: str
    request_id: str
    model: str = ""
    count: int = 0


class Told(msgspec.Struct, array_like=True):
    """Prefill's answer: an error's text, or the contents as (state before, tokens)."""

    error: str
    held: list[tuple[int, bytes]] = []


class TransferError(Exception):
    """The blocks could not be read; the message says why."""


Answer = Callable[[Ask], Told]
_ask_decoder = msgspec.msgpack.Decoder(Ask)
_told_decoder = msgspec.msgpack.Decoder(Told)


def _framed(message: Ask | Told) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(4, "big") + payload


async def _read(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


class SideChannel:
    """Prefill's end: answers questions about its leases."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    writer.write(_framed(self._answer(_ask_decoder.decode(await _read(reader)))))
        finally:
            self._writers.discard(writer)
            writer.close()

    async def close(self) -> None:
        """Stop listening and end connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.close()
            await self._server.wait_closed()
            self._server = None


class Peers:
    """Decode's end: one connection per prefill engine, kept open; questions on it are asked one after another."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}

    async def ask(self, host: str, port: int, ask: Ask) -> list[Content]:
        """Ask prefill.

        Raises:
            TransferError: not reachable in 5 s, another engine answers there, or it does not know the request.
        """
        where = (host, port)
        async with self._locks.setdefault(where, asyncio.Lock()):
            try:
                told = await asyncio.wait_for(self._exchange(where, ask), CONNECT_TIMEOUT_S)
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                self._drop(where)
                raise TransferError(f"side channel {host}:{port}: {error!r}") from error
            except asyncio.CancelledError:
                # The answer may still arrive: the connection cannot be used for another question.
                self._drop(where)
                raise
        if told.error:
            raise TransferError(told.error)
        return [Content(before, tokens) for before, tokens in told.held]

    async def _exchange(self, where: tuple[str, int], ask: Ask) -> Told:
        if where in self._open:
            try:
                return await self._send(where, ask)
            except (OSError, asyncio.IncompleteReadError):
                # Prefill has restarted since: once more on a fresh connection.
                self._drop(where)
        self._open[where] = await asyncio.open_connection(*where)
        return await self._send(where, ask)

    async def _send(self, where: tuple[str, int], ask: Ask) -> Told:
        reader, writer = self._open[where]
        writer.write(_framed(ask))
        return _told_decoder.decode(await _read(reader))

    def _drop(self, where: tuple[str, int]) -> None:
        opened = self._open.pop(where, None)
        if opened is not None:
            opened[1].close()

    def close(self) -> None:
        """End all connections."""
        for where in list(self._open):
            self._drop(where)
