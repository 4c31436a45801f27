"""HTTP/1.1 of the stand-in as asyncio protocols: cheap enough for benchmarks, able to misbehave byte by byte.

Boundary: framing, recording and the faults that concern bytes (`script.Rule`); what an answer says is `api`'s business.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import socket
import struct
import time
import traceback
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
import msgspec

if TYPE_CHECKING:
    from e2e.engine.standin.clock import Clock
    from e2e.engine.standin.script import Rule

Application = Callable[["Recorded", "Reply"], Awaitable[None]]
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
JSON_HEADERS = ((b"content-type", b"application/json"),)
GZIP_HEADER = (b"content-encoding", b"gzip")
GZIP_WINDOW = 31
SSE_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"),)
# What uvicorn's connections do: wait this long for a next request, longer than any client's pool should.
KEEP_ALIVE_S = 75.0


@functools.lru_cache(maxsize=2)
def _common_headers(second: int) -> bytes:
    return b"date: %b\r\nserver: uvicorn\r\nvary: Origin\r\n" % formatdate(second, usegmt=True).encode()


class Recorded:
    """One request as it arrived, and what became of its answer. Times are seconds of the stand-in's clock."""

    __slots__ = (
        "body",
        "disconnected_s",
        "finished_s",
        "headers",
        "method",
        "path",
        "received_s",
        "rule",
        "sent_bytes",
        "status",
        "target",
    )

    def __init__(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes, received_s: float
    ) -> None:
        self.method = method
        self.target = target  # raw, query included
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.headers = headers  # raw, in order, names as sent
        self.body = body
        self.received_s = received_s
        self.status: int | None = None
        self.sent_bytes = 0
        self.finished_s: float | None = None  # the whole answer was handed to the socket
        self.disconnected_s: float | None = None  # the connection was gone before that
        self.rule: Rule | None = None

    @property
    def finished(self) -> bool:
        """Whether the whole answer was handed to the socket."""
        return self.finished_s is not None

    def header(self, name: str) -> str | None:
        """The first header of that name (any case), or None."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} {len(self.body)} bytes, status {self.status}, finished {self.finished}>"


class GoneError(Exception):
    """The client's connection is gone, or was ended by a rule: nothing more can be written."""


class Reply:
    """The answer to one request; applies what the rule says about bytes."""

    __slots__ = ("_compressor", "_connection", "_keep_alive", "recorded", "rule")

    def __init__(self, connection: Connection, recorded: Recorded, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._compressor: zlib._Compress | None = None
        self.recorded = recorded
        self.rule: Rule | None = None

    @property
    def started(self) -> bool:
        """Whether a status line was sent."""
        return self.recorded.status is not None

    def _head(self, status: int, headers: tuple[tuple[bytes, bytes], ...], framing: bytes) -> bytes:
        self.recorded.status = status
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"Unknown")), _common_headers(int(time.time()))]
        lines += [b"%s: %s\r\n" % header for header in headers]
        if not self._keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(framing)
        return b"".join(lines)

    async def send(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = JSON_HEADERS) -> None:
        """Send a whole answer."""
        if self._compresses():
            body, headers = gzip.compress(body), (*headers, GZIP_HEADER)
        head = self._head(status, headers, b"content-length: %d\r\n\r\n" % len(body))
        if self.rule is None:
            await self._connection.write(self.recorded, head + body)
        else:
            await self._scripted(head, b"")
            if self.rule.delay_body_s:
                await self._connection.sleep(self.rule.delay_body_s)
            await self._scripted(body, b"")
        self._end()

    async def start(self, headers: tuple[tuple[bytes, bytes], ...] = SSE_HEADERS, status: int = 200) -> None:
        """Send the head of a chunked answer."""
        if self._compresses():
            self._compressor = zlib.compressobj(wbits=GZIP_WINDOW)
            headers = (*headers, GZIP_HEADER)
        head = self._head(status, headers, b"transfer-encoding: chunked\r\n\r\n")
        if self.rule is None:
            await self._connection.write(self.recorded, head)
        else:
            await self._scripted(head, b"")
            if self.rule.delay_body_s:
                await self._connection.sleep(self.rule.delay_body_s)

    async def chunk(self, payload: bytes) -> None:
        """Send one piece of a chunked answer."""
        if self._compressor is not None:
            payload = self._compressor.compress(payload) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        if self.rule is not None:
            if self.rule.delay_chunk_s:
                await self._connection.sleep(self.rule.delay_chunk_s)
            await self._scripted(payload, b"%x\r\n")
            return
        await self._connection.write(self.recorded, b"%x\r\n%b\r\n" % (len(payload), payload))

    async def end(self) -> None:
        """End a chunked answer."""
        if self._compressor is not None:
            last = self._compressor.flush(zlib.Z_FINISH)
            await self._connection.write(self.recorded, b"%x\r\n%b\r\n" % (len(last), last))
        await self._connection.write(self.recorded, b"0\r\n\r\n")
        self._end()

    def _compresses(self) -> bool:
        asked = self.rule is not None and self.rule.gzip_if_asked
        return asked and "gzip" in (self.recorded.header("accept-encoding") or "")

    def reset(self) -> None:
        """Tear the connection down with RST."""
        self._connection.reset()
        raise GoneError

    async def _scripted(self, payload: bytes, frame: bytes) -> None:
        """Write in the rule's portions; with `frame` each portion is a chunk of its own."""
        rule = self.rule
        assert rule is not None
        size = rule.bytes_per_write or max(len(payload), 1)
        for at in range(0, len(payload), size):
            if at and rule.write_gap_s:
                await self._connection.sleep(rule.write_gap_s)
            piece = payload[at : at + size]
            await self._limited(rule, (frame % len(piece)) + piece + b"\r\n" if frame else piece)

    async def _limited(self, rule: Rule, piece: bytes) -> None:
        for limit, stop in (
            (rule.reset_after_bytes, self._connection.reset),
            (rule.close_after_bytes, self._connection.close),
        ):
            if limit is not None and self.recorded.sent_bytes + len(piece) >= limit:
                await self._connection.write(self.recorded, piece[: limit - self.recorded.sent_bytes])
                # What was written before must reach the client before the end does.
                await asyncio.sleep(0.01 if limit else 0)
                stop()
                raise GoneError
        await self._connection.write(self.recorded, piece)

    def _end(self) -> None:
        self.recorded.finished_s = self._connection.now()
        if not self._keep_alive:
            self._connection.close()


class Connection(asyncio.Protocol):
    """One client's connection: runs its requests one after another, in a task that ends with the connection."""

    def __init__(
        self,
        application: Application,
        clock: Clock,
        keep: Callable[[Recorded], None],
        open_connections: set[Connection],
    ) -> None:
        self._application = application
        self._clock = clock
        self._keep = keep
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._queue: deque[Reply] = deque()
        self._task: asyncio.Task[None] | None = None
        self._current: Recorded | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start parsing."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.close()

    def eof_received(self) -> bool:
        """Treat a half-closed connection as a client that left, as uvicorn does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Note which answers were not finished, and end what makes them."""
        self._transport = None
        self._open.discard(self)
        self._writable.set()
        now_s = self._clock.now()
        waiting = [reply.recorded for reply in self._queue]
        for recorded in [self._current, *waiting] if self._current is not None else waiting:
            if recorded.finished_s is None:
                recorded.disconnected_s = now_s
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable.set()

    # httptools
    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Ask for the body if the client waits for that."""
        if any(name.lower() == b"expect" for name, _ in self._headers) and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Run the request, after those before it."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode("latin-1")
        recorded = Recorded(method, self._target, self._headers, body, self._clock.now())
        self._keep(recorded)
        self._queue.append(Reply(self, recorded, keep_alive=self._parser.should_keep_alive()))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self._queue:
                reply = self._queue.popleft()
                self._current = reply.recorded
                await self._application(reply.recorded, reply)
        except GoneError:
            self.close()
        except Exception:
            # A defect of the stand-in itself: say so loudly, and let the client see a broken connection.
            traceback.print_exc()
            self.close()
            raise
        finally:
            self._task = None

    # For replies
    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        """Wait on the clock."""
        await self._clock.sleep(seconds)

    async def write(self, recorded: Recorded, payload: bytes) -> None:
        """Write and wait while the client does not read.

        Raises:
            GoneError: the connection is closed.
        """
        if self._transport is None or self._transport.is_closing():
            raise GoneError
        recorded.sent_bytes += len(payload)
        self._transport.write(payload)
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close with RST, dropping what was not sent."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
