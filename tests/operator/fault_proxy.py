"""A reverse proxy before the API server that answers with faults on request.

Boundary: HTTP on loopback, one upstream. Everything it is not told to spoil passes through unchanged, watches included.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import yaml
from aiohttp import web

from tests.operator.harness import free_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}


@dataclass
class Seen:
    """One request: when it came, and the status it was answered with."""

    call: str
    at: float
    status: int = 0


@dataclass
class FaultProxy:
    """Runs in a thread of its own; use as a context manager."""

    upstream: str
    context: ssl.SSLContext
    port: int = field(default_factory=free_port)
    spoil: Callable[[web.Request], web.Response | None] | None = None
    """Answers instead of the API server, unless it returns None."""
    silent: bool = False
    """Nothing is answered and nothing passed on, as when packets are lost; what waits goes on once it is over."""
    deaf: bool = False
    """Nothing of a watch is passed on, open ones included; everything else is."""
    seen: list[Seen] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._streams: dict[web.StreamResponse, str] = {}
        self._at_once = 0
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def inject(self, path: str, event: dict[str, Any]) -> int:
        """Writes an event into every open watch whose path holds `path`; their number."""
        line = json.dumps(event).encode() + b"\n"

        async def write() -> int:
            found = [stream for stream, of in self._streams.items() if path in of]
            for stream in found:
                await stream.write(line)
            return len(found)

        return asyncio.run_coroutine_threadsafe(write(), self._loop).result(10)

    def watched(self, path: str) -> bool:
        """Whether a watch whose path holds `path` is open."""
        return any(path in of for of in list(self._streams.values()))

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """The same credentials, sent through this proxy."""
        config = yaml.safe_load(original.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        target.write_text(yaml.safe_dump(config))
        return target

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        # Handlers of watches whose client is gone still wait for the API server.
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        # Connections that were closed just now end in the loop's next turns.
        self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that gave up is gone for good: what it had asked for is not passed on later.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        connector = aiohttp.TCPConnector(ssl=self.context, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            self._started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_watch = "watch" in request.query
        note = Seen(f"{request.method} {request.path_qs}", time.monotonic())
        self.seen.append(note)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await self._heard()
            if self.spoil is not None and (spoilt := self.spoil(request)) is not None:
                note.status = spoilt.status
                return spoilt
            return await self._forward(request, note, is_watch=is_watch)
        finally:
            self._at_once -= 1

    async def _heard(self, *, is_watch: bool = False) -> None:
        while self.silent or (is_watch and self.deaf):  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.05)

    async def _forward(self, request: web.Request, note: Seen, *, is_watch: bool) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        call = self._session.request(
            request.method, self.upstream + request.path_qs, headers=headers, data=body or None
        )
        async with call as answer:
            note.status = answer.status
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            stream = web.StreamResponse(status=answer.status, headers=kept)
            if is_watch:
                self._streams[stream] = request.path
            try:
                await stream.prepare(request)
                async for chunk in answer.content.iter_any():
                    await self._heard(is_watch=is_watch)
                    await stream.write(chunk)
            except (ConnectionError, aiohttp.ClientError):
                pass
            finally:
                self._streams.pop(stream, None)
            return stream
