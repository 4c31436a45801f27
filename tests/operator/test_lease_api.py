"""The election on a real Lease, with a network between that can fall silent. Periods are scaled down tenfold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from pdpool_operator.kube import Kube, connection
from pdpool_operator.lease import Election, Timing
from pdpool_operator.records import LEASES
from tests.operator.harness import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.xdist_group("operator")]

TIMING = Timing(retry_s=0.2, expire_s=3.0, step_down_s=1.8, step_timeout_s=0.5)


class Act:
    """What a leader does: notes when it began and ended."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.acting = asyncio.Event()

    async def __call__(self) -> None:
        began = time.monotonic()
        self.acting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.acting.clear()
            self.spans.append((began, time.monotonic()))


class SilentNetwork:
    """A TCP relay that can swallow everything from one moment on: connections stay open, and nobody answers."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = free_port()
        self.silent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._ended = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SilentNetwork]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        try:
            yield self
        finally:
            server.close()
            self._ended = True
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.silent:
            return
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        if self._ended:  # meanwhile
            up_writer.transport.abort()
            return
        self._writers.append(up_writer)
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65_536):
                if not self.silent:
                    sink.write(chunk)
                    await sink.drain()
        sink.close()


@pytest.fixture
async def kube(site: Site, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kube]:
    monkeypatch.setenv("KUBECONFIG", str(site.cluster.kubeconfig))
    async with Kube(await connection(), timeout_s=1, patience_s=1) as found:
        yield found


def _candidate(kube: Kube, namespace: str, identity: str) -> Election:
    return Election(kube, namespace, "election", identity, timing=TIMING)


async def test_a_leader_cut_off_stops_before_another_begins(kube: Kube, namespace: str) -> None:
    """When its network falls silent a leader stops by its own clock, before the Lease can be anybody else's."""
    configuration = await connection()
    host, _, port = configuration.host.removeprefix("https://").partition(":")
    network = SilentNetwork(host, int(port))
    configuration.host = f"https://127.0.0.1:{network.port}"
    first, second = Act(), Act()
    async with network.running(), Kube(configuration, timeout_s=1, patience_s=1) as cut_off:
        leader = asyncio.create_task(_candidate(cut_off, namespace, "first").run(first))
        await asyncio.wait_for(first.acting.wait(), 10)
        other = asyncio.create_task(_candidate(kube, namespace, "second").run(second))
        await asyncio.sleep(TIMING.expire_s + 1)
        assert not second.acting.is_set()
        network.silent = True
        await asyncio.wait_for(second.acting.wait(), 20)
        began = time.monotonic()
        assert first.spans, "the leader that was cut off still acts"
        assert first.spans[0][1] < began
        for task in (leader, other):
            task.cancel()
        await asyncio.gather(leader, other, return_exceptions=True)


async def test_a_leader_that_stops_gives_the_lease_back(kube: Kube, namespace: str) -> None:
    """After a clean stop a successor need not wait until the Lease expires, and act was ended first."""
    first, second = Act(), Act()
    leader = asyncio.create_task(_candidate(kube, namespace, "first").run(first))
    await asyncio.wait_for(first.acting.wait(), 10)
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)
    lease = await kube.get(LEASES, namespace, "election")
    assert lease is not None
    assert not lease["spec"].get("holderIdentity")
    assert first.spans
    began = time.monotonic()
    successor = asyncio.create_task(_candidate(kube, namespace, "second").run(second))
    await asyncio.wait_for(second.acting.wait(), TIMING.expire_s - 0.5)
    assert time.monotonic() - began < TIMING.expire_s
    successor.cancel()
    await asyncio.gather(successor, return_exceptions=True)


async def test_a_lease_that_others_take_ends_the_acting(kube: Kube, namespace: str) -> None:
    """A leader that sees another holder in the Lease stops at once, and does not take it back while it is fresh."""
    act = Act()
    election = _candidate(kube, namespace, "first")
    leader = asyncio.create_task(election.run(act))
    await asyncio.wait_for(act.acting.wait(), 10)
    lease = await kube.get(LEASES, namespace, "election")
    assert lease is not None
    taken = {**lease, "spec": {**lease["spec"], "holderIdentity": "thief"}}
    for _ in range(10):  # the leader renews meanwhile, so the version may be old
        with contextlib.suppress(Exception):
            await kube.replace(LEASES, namespace, taken)
            break
        lease = await kube.get(LEASES, namespace, "election")
        assert lease is not None
        taken = {**lease, "spec": {**lease["spec"], "holderIdentity": "thief"}}
    await asyncio.sleep(TIMING.retry_s + TIMING.step_timeout_s)
    assert act.spans
    assert not election.leading
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


async def test_an_act_that_fails_is_no_silent_end(kube: Kube, namespace: str) -> None:
    """A fault of the acting itself reaches the caller, and the Lease is given back."""

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await _candidate(kube, namespace, "first").run(fail)
    lease = await kube.get(LEASES, namespace, "election")
    assert lease is not None
    assert not lease["spec"].get("holderIdentity")
