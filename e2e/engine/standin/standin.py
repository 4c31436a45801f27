"""One stand-in engine to start and stop, in a test's loop or as a process: listener, control endpoint, records.

Boundary: lifecycle. The control endpoint is on a port of its own, so that the other port shows vLLM's surface and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from e2e.engine.standin.api import Api
from e2e.engine.standin.clock import Clock, RealClock
from e2e.engine.standin.config import EngineConfig, KvRole
from e2e.engine.standin.engine import Engine
from e2e.engine.standin.http import Connection, Recorded, Reply
from e2e.engine.standin.script import Pace, Rule, Script, Settings, leg_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

Role = Literal["prefill", "decode", "aggregated"]
_KV_ROLES: dict[Role, KvRole | None] = {"prefill": "kv_producer", "decode": "kv_consumer", "aggregated": None}


class Standin:
    """A stand-in engine; an async context manager, or `start` and `stop`.

    Args:
        role: a short form for the `kv_role` of `config`.
        config: what the engine is; `changes` are fields of it, for short.
        rules: the script at the start.
        settings: pace, start-up script, control port, how many requests are recorded.
        clock: the only source of time.
    """

    def __init__(
        self,
        role: Role | None = None,
        *,
        config: EngineConfig | None = None,
        rules: list[Rule] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        **changes: Any,
    ) -> None:
        config = config or EngineConfig()
        if role is not None:
            changes.setdefault("kv_role", _KV_ROLES[role])
        self.config = replace(config, **changes)
        self.settings = settings or Settings()
        self.clock = clock or RealClock()
        self.script = Script([*self.settings.rules, *(rules or [])])
        self.requests: deque[Recorded] = deque(maxlen=self.settings.record)
        self.port = 0
        self.admin_port = 0
        self.ended = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._admin_connections: set[Connection] = set()
        self._started_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.engine = Engine(self.config, self.clock, self.settings.pace, self._engine_died)
        self._api = Api(self.engine, self.script, self._models_hidden)

    @property
    def url(self) -> str:
        """Base URL of the API."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many clients' connections are open."""
        return len(self._connections)

    def generations(self, leg: Literal["prefill", "decode", "plain"] | None = None) -> list[Recorded]:
        """The recorded generation requests, of one leg or of all."""
        routes = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
        return [one for one in self.requests if one.path in routes and (leg is None or leg_of(one.body) == leg)]

    def add_rule(self, where: Callable[[Recorded], bool] | None = None, **fields: Any) -> Rule:
        """Put a `script.Rule` in force."""
        return self.script.add(Rule(**fields), where)

    def set_pace(self, **fields: float) -> None:
        """Change how long work takes (`script.Pace`)."""
        self.engine.pace = Pace(**fields)

    def force_metrics(self, **values: float | None) -> None:
        """Show these values (names without `vllm:`) whatever is true; None leaves out; none given: the truth."""
        for rank in self.engine.ranks:
            rank.metrics.forced = dict(values)

    async def start(self) -> None:
        """Open everything; the API's port as the start-up script says."""
        await self.engine.open()
        self._started_s = self.clock.now()
        if self.settings.admin_port:
            await self._open_admin()
        if self.settings.startup.open_after_s:
            task = asyncio.ensure_future(self._open_late())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            await self.open_listener()

    async def _open_late(self) -> None:
        await self.clock.sleep(self.settings.startup.open_after_s)
        await self.open_listener()

    async def open_listener(self) -> None:
        """Accept connections on the API's port (again)."""
        if self._listener is not None:
            return
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._api, self.clock, self.requests.append, self._connections),
            self.config.host,
            self.port or self.config.port,
            backlog=2048,
        )
        self.port = int(self._listener.sockets[0].getsockname()[1])

    async def close_listener(self, *, connections: bool = True) -> None:
        """Refuse new connections; those that are open end too, unless told otherwise."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if connections:
            for connection in list(self._connections):
                connection.close()
        await asyncio.sleep(0)

    async def drain(self, timeout_s: float | None = None) -> None:
        """What SIGTERM does: finish what runs within `--shutdown-timeout`, then stop."""
        await self.engine.drain(self.config.shutdown_timeout_s if timeout_s is None else timeout_s)
        await self.stop()

    async def stop(self) -> None:
        """Close everything; open answers are cut."""
        for task in list(self._tasks):
            task.cancel()
        await self.close_listener(connections=False)
        await self.engine.close()
        for server in self._servers:
            server.close()
        self._servers.clear()
        # Answers of what was aborted leave before the connections close, and what was accepted just now is made.
        await _turns()
        for connection in [*self._connections, *self._admin_connections]:
            connection.close()
        await _turns()
        self.ended.set()

    def reset_connections(self) -> None:
        """Tear all clients' connections down with RST, as when the machine dies."""
        for connection in list(self._connections):
            connection.reset()

    def _models_hidden(self) -> bool:
        startup = self.settings.startup
        return self.clock.now() < self._started_s + startup.open_after_s + startup.models_empty_s

    def _engine_died(self) -> None:
        task = asyncio.ensure_future(self._close_after_death())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_after_death(self) -> None:
        # The answers to what was under way leave first.
        await asyncio.sleep(0.1)
        await self.close_listener()
        self.ended.set()

    # Control endpoint
    async def _open_admin(self) -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._administer, self.clock, lambda _: None, self._admin_connections),
            self.config.host,
            self.settings.admin_port,
        )
        self.admin_port = int(server.sockets[0].getsockname()[1])
        self._servers.append(server)

    async def _administer(self, recorded: Recorded, reply: Reply) -> None:
        try:
            told = await self._command(recorded)
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            await reply.send(400, msgspec.json.encode({"error": str(error)}))
            return
        await reply.send(200, msgspec.json.encode(told))

    async def _command(self, recorded: Recorded) -> Any:
        if recorded.path in {"/requests", "/rules"}:
            return self._record_command(recorded)
        match recorded.method, recorded.path:
            case "PUT", "/pace":
                self.engine.pace = msgspec.json.decode(recorded.body, type=Pace)
            case "PUT", "/metrics":
                self.force_metrics(**msgspec.json.decode(recorded.body, type=dict[str, float | None]))
            case "PUT", "/listener":
                await (self.open_listener() if msgspec.json.decode(recorded.body)["open"] else self.close_listener())
            case "POST", "/reset_connections":
                self.reset_connections()
            case "POST", "/reset_prefix_cache":
                return [rank.clear_cache() for rank in self.engine.ranks]
            case method, path:
                raise KeyError(f"no {method} {path}")
        return {}

    def _record_command(self, recorded: Recorded) -> Any:
        match recorded.method, recorded.path:
            case "GET", "/requests":
                return [_told(request) for request in self.requests]
            case "GET", "/rules":
                return self.script.rules()
            case "POST", "/rules":
                self.script.add(msgspec.json.decode(recorded.body, type=Rule))
            case "DELETE", "/requests":
                self.requests.clear()
            case "DELETE", "/rules":
                self.script.clear()
            case method, path:
                raise KeyError(f"no {method} {path}")
        return {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            await self.stop()


async def _turns() -> None:
    """Lets the loop make what was accepted, and end what was closed: either takes it up to three turns."""
    for _ in range(3):
        await asyncio.sleep(0)


def _told(request: Recorded) -> dict[str, Any]:
    """A recorded request as JSON: bytes in Latin-1, so that every value is exact."""
    return {
        "method": request.method,
        "target": request.target.decode("latin-1"),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers],
        "body": request.body.decode("latin-1"),
        "received_s": request.received_s,
        "status": request.status,
        "sent_bytes": request.sent_bytes,
        "finished_s": request.finished_s,
        "disconnected_s": request.disconnected_s,
    }
