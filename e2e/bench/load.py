"""The client: offers a workload to one router over loopback and checks every answer.

Boundary: sends and checks; what it cost is measured by the caller, and nothing is judged here. It shares a core with
the engines, so it is written on `asyncio.Protocol`: a client library would cost more than the routers do.
Bounded: so many requests or streams, at most `MAX_OPEN` at once, each with a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from e2e.bench.answers import EXACT
from e2e.bench.workloads import CHAT_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from e2e.bench.answers import Answers
    from e2e.bench.workloads import Workload

KEY = "sk-bench-0123456789abcdef"
"""What every request shows; who asks for no key does not look."""
MAX_OPEN = 1024
ANSWER_DEADLINE_S = 15
LEAST_SHARE = 0.5
"""Of the chunks that are due, that must have come for a figure of long streams to mean something."""
CROWD_BEGUN_S = 60
"""All of a crowd's streams have begun, also where the machine has other work."""
SLOW_RATE_PER_S = 50.0
RAMP_STEP_STREAMS = 10
RAMP_STEP_S = 0.02
HTTP_OK = 200
_SHOWN_BYTES = 300


class LoadError(Exception):
    """The router did not keep up or answered wrongly; a figure of such a round means nothing."""


@dataclass
class Tally:
    """What came back: `latencies_s` from the time an answer was due to be asked for until its last byte."""

    answered: int = 0
    events: int = 0
    latencies_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Crowd(NamedTuple):
    """What a crowd of streams was like while all of them ran."""

    used_ns: int
    """CPU of the router meanwhile."""
    events: int
    seconds: float
    more_rss_bytes: int
    """What the router's memory grew by from none to all of them."""


class _Exchange:
    """One request on its way and what has come back."""

    __slots__ = ("body", "due_s", "number", "status")

    def __init__(self, number: int, due_s: float) -> None:
        self.number = number
        self.due_s = due_s
        self.status = 0
        self.body: list[bytes] = []


class _Connection(asyncio.Protocol):
    """One keep-alive connection to the router, carrying one exchange at a time."""

    def __init__(self, client: Client, wire: socket.socket) -> None:
        self._client = client
        self._wire = wire
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: _Exchange | None = None
        self._keep = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: _Exchange, request: bytes) -> None:
        self._exchange = exchange
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        _acknowledge(self._wire)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self._client.failed(self._exchange, f"not HTTP: {fault}")
            self._exchange = None
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self)
        if self._exchange is not None:
            self._client.failed(self._exchange, f"connection lost: {exc or 'closed by the router'}")

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body.append(body)
            self._client.tally.events += body.count(b"\n\n")

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._keep:
            self._client.idle.append(self)
        else:
            self.transport.close()
        self._client.answered(exchange)


class _Listener(asyncio.Protocol):
    """One stream of a crowd: what comes is kept as it comes and read when all is over, as one core carries them all."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.data: list[bytes] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._client.tally.events += 1
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost = True


def _acknowledge(wire: socket.socket) -> None:
    """Acknowledge what has come at once, every time anew, as the kernel forgets it.

    A router that sets no TCP_NODELAY waits for it before it sends more, and would be measured with the kernel's delay
    of 40 ms. A crowd's chunks are further apart than that, and so many acknowledgements would cost the client's core.
    """
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class _Body:
    """The body of an answer that has not ended."""

    def __init__(self, wire: Sequence[bytes]) -> None:
        self._pieces: list[bytes] = []
        parser = httptools.HttpResponseParser(self)
        for piece in wire:
            parser.feed_data(piece)
        self.bytes = b"".join(self._pieces)

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)


class Client:
    """Offers one workload to the router at a loopback port."""

    def __init__(self, port: int, workload: Workload, answers: Answers = EXACT) -> None:
        self._loop = asyncio.get_running_loop()
        self._port = port
        self._answers = answers
        self._workload = workload = answers.asked(workload)
        self._head = (
            f"POST {CHAT_PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {workload.body_bytes}\r\n\r\n"
        ).encode()
        self._next: Iterator[int] | None = None
        self._connections: set[_Connection] = set()
        self._open = 0
        self._quiet = asyncio.Event()
        self.idle: list[_Connection] = []
        self.tally = Tally()

    def answered(self, exchange: _Exchange) -> None:
        """Check a whole answer and count it."""
        self.tally.answered += 1
        self.tally.latencies_s.append(self._loop.time() - exchange.due_s)
        fault = self._fault(exchange)
        if fault:
            self.tally.faults.append(f"request {exchange.number}: {fault}")
        self._settle()

    def failed(self, exchange: _Exchange | None, fault: str) -> None:
        """Count a request that got no whole answer."""
        self.tally.faults.append(f"request {exchange.number if exchange else '?'}: {fault}")
        self._settle()

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def _settle(self) -> None:
        self._open -= 1
        number = next(self._next, None) if self._next is not None and self.idle else None
        if number is not None:
            self._open += 1
            self.idle.pop().send(_Exchange(number, self._loop.time()), self._head + self._workload.body(number))
        elif self._open == 0:
            self._quiet.set()

    def _fault(self, exchange: _Exchange) -> str:
        body = b"".join(exchange.body)
        if exchange.status != HTTP_OK:
            return f"status {exchange.status}: {body[:_SHOWN_BYTES]!r}"
        return self._answers.fault(self._workload, exchange.number, body)

    async def _send(self, number: int, due_s: float) -> None:
        self._open += 1
        self._quiet.clear()
        if self._open > MAX_OPEN:
            raise LoadError(f"{self._open} requests are open at once: the router does not keep up")
        connection = self.idle.pop() if self.idle else await self._connect()
        connection.send(_Exchange(number, due_s), self._head + self._workload.body(number))

    async def _connect(self) -> _Connection:
        wire = await self._wire()
        _, connection = await self._loop.create_connection(lambda: _Connection(self, wire), sock=wire)
        self._connections.add(connection)
        return connection

    async def _wire(self) -> socket.socket:
        """A connected socket, which the transport that gets it closes."""
        wire = socket.socket()
        try:
            wire.setblocking(False)
            await self._loop.sock_connect(wire, ("127.0.0.1", self._port))
        except BaseException:
            wire.close()
            raise
        return wire

    async def _all_answered(self, deadline_s: float) -> None:
        if self._open:
            try:
                await asyncio.wait_for(self._quiet.wait(), deadline_s)
            except TimeoutError:
                raise LoadError(f"{self._open} requests were not answered within {deadline_s:.0f} s") from None

    async def offer(self, numbers: range, seed: int) -> Tally:
        """Send one request per number at the workload's rate, at random distances, whatever has come back.

        Returns when all are answered. The distances depend on the seed alone, so that every router gets the same ones.

        Raises:
            LoadError: too many requests are open, or one is not answered in time.
        """
        chance = random.Random(seed)  # noqa: S311 - arrival times, not secrets
        due_s = self._loop.time()
        rate_per_s = self._workload.rate_per_s or SLOW_RATE_PER_S
        for number in numbers:
            due_s += chance.expovariate(rate_per_s)
            # Also when late: answers must be taken in between, or each late request opens a connection of its own.
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            await self._send(number, due_s)
        await self._all_answered(ANSWER_DEADLINE_S)
        return self.tally

    async def saturate(self, numbers: range, at_once: int) -> float:
        """Send one request per number, so many at a time, each as soon as another is answered.

        Returns:
            The seconds it took.

        Raises:
            LoadError: one is not answered in time.
        """
        began_s = self._loop.time()
        self._next = iter(numbers)
        for number in itertools.islice(self._next, at_once):
            await self._send(number, self._loop.time())
        await self._all_answered(ANSWER_DEADLINE_S + len(numbers) / SLOW_RATE_PER_S)
        return self._loop.time() - began_s

    async def crowd(
        self, numbers: range, window_s: float, *, read_ns: Callable[[], int], rss_bytes: Callable[[], int]
    ) -> Crowd:
        """Open one endless stream per number and, once all run, measure for a while; then leave them.

        What came is checked by its first bytes: each stream has what it should have as far as it has come.

        Raises:
            LoadError: a stream did not begin in time, or broke, or most of what was due did not come.
        """
        before_bytes = rss_bytes()
        listeners: dict[int, _Listener] = {}
        try:
            for index, number in enumerate(numbers):
                wire = await self._wire()
                _, listener = await self._loop.create_connection(lambda: _Listener(self), sock=wire)
                listeners[number] = listener
                listener.transport.write(self._head + self._workload.body(number))
                if index % RAMP_STEP_STREAMS == 0:
                    await asyncio.sleep(RAMP_STEP_S / 2)
            until_s = self._loop.time() + CROWD_BEGUN_S
            while not all(one.data for one in listeners.values()):
                if self._loop.time() > until_s:
                    begun = sum(bool(one.data) for one in listeners.values())
                    raise LoadError(f"only {begun} of {len(numbers)} streams began")
                await asyncio.sleep(0.1)
            more_rss_bytes = rss_bytes() - before_bytes
            began_ns, began_events, began_s = read_ns(), self.tally.events, self._loop.time()
            await asyncio.sleep(window_s)
            found = Crowd(
                read_ns() - began_ns, self.tally.events - began_events, self._loop.time() - began_s, more_rss_bytes
            )
            lost = sum(one.lost for one in listeners.values())
            if lost:
                raise LoadError(f"{lost} of {len(numbers)} streams broke")
            self._check_came(found.events, len(numbers), found.seconds)
        finally:
            for one in listeners.values():
                one.transport.abort()
            await asyncio.sleep(0)
        for number, listener in listeners.items():
            body = _Body(listener.data).bytes
            fault = self._answers.fault_so_far(self._workload, number, body)
            if fault:
                raise LoadError(f"request {number}: {fault}")
            self.tally.answered += 1
        return found

    async def hold(self, numbers: range, window_s: float, read_ns: Callable[[], int]) -> tuple[int, int]:
        """Open one stream per number and, once all run, measure for a while; return when all have ended.

        Returns:
            What `read_ns` grew by within the window, and the events that came within it.

        Raises:
            LoadError: the streams ended before the window did, or one did not end in time.
        """
        for index, number in enumerate(numbers):
            await self._send(number, self._loop.time())
            if index % RAMP_STEP_STREAMS == 0:
                await asyncio.sleep(RAMP_STEP_S)
        await asyncio.sleep(self._workload.gap_ms * 5 / 1000)
        began_ns, began_events = read_ns(), self.tally.events
        await asyncio.sleep(window_s)
        used_ns, events = read_ns() - began_ns, self.tally.events - began_events
        if self._open != len(numbers):
            message = f"only {self._open} of {len(numbers)} streams ran until the end of the window"
            raise LoadError(f"{message}: {self.tally.faults[:3]}")
        self._check_came(events, len(numbers), window_s)
        await self._all_answered(self._workload.chunks * self._workload.gap_ms / 1000 + ANSWER_DEADLINE_S)
        return used_ns, events

    def _check_came(self, events: int, streams: int, seconds: float) -> None:
        due = streams * seconds * 1000 / self._workload.gap_ms
        if events < LEAST_SHARE * due:
            # What little was relayed would bear the cost of everything else that the process does.
            raise LoadError(f"only {events} of {due:.0f} chunks came: router, engines or client did not keep up")

    async def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)
