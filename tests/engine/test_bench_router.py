"""The router benchmark's own parts: what it counts, what it refuses, what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.bench import cpu, ours, replies
from e2e.bench.load import Client
from e2e.bench.peers import Place
from e2e.bench.report import Pair, Row, as_json, table
from e2e.bench.responder import Connection, Engine, Handoffs
from e2e.bench.router import our_command
from e2e.bench.workloads import W1, W2, W4, long_streams, serial
from pdpool_router.config import settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@contextlib.asynccontextmanager
async def serving(factory: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[int]:
    """The loopback port of a server for the time of the block."""
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)


class Scripted(asyncio.Protocol):
    """Answers every request, whatever it is, with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b'"}'):
            self._transport.write(self._answer)


def http_answer(body: bytes) -> bytes:
    """A whole answer with that body."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def faults_of(answer: bytes) -> list[str]:
    """What the client finds wrong with an answer to the first request of W1."""
    async with serving(lambda: Scripted(answer)) as port:
        client = Client(port, W1)
        try:
            return (await client.offer(range(1), seed=1)).faults
        finally:
            await client.close()


async def test_right_answer_has_no_fault() -> None:
    """An answer with every byte as expected counts as answered without a fault."""
    assert await faults_of(http_answer(replies.completion(serial(0)))) == []


async def test_answer_of_another_request_is_a_fault() -> None:
    """An answer that belongs to another request is a fault, even if it has the right shape."""
    faults = await faults_of(http_answer(replies.completion(serial(7))))
    assert len(faults) == 1
    assert "wrong answer" in faults[0]


async def test_error_status_is_a_fault_with_its_text() -> None:
    """A status other than 200 is a fault that quotes the answer."""
    faults = await faults_of(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\ndead")
    assert faults == ["request 0: status 502: b'dead'"]


async def test_stream_with_a_missing_event_is_a_fault() -> None:
    """A stream that lacks one event is a fault although it ends properly."""
    body = replies.stream(serial(0), W2.chunks).replace(replies.stream_event(serial(0), 3, W2.chunks), b"")
    async with serving(lambda: Scripted(http_answer(body))) as port:
        client = Client(port, W2)
        try:
            tally = await client.offer(range(1), seed=1)
        finally:
            await client.close()
    assert len(tally.faults) == 1
    assert tally.events == W2.chunks


async def ask(port: int, body: dict[str, object]) -> httpx.Response:
    """One request to an engine."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)


async def test_engines_take_a_handoff_once() -> None:
    """Decode answers with a handoff that prefill gave, and refuses it when it comes again or was never given."""
    handoffs = Handoffs()
    async with (
        serving(lambda: Connection(Engine("prefill", handoffs))) as prefill,
        serving(lambda: Connection(Engine("decode", handoffs))) as decode,
    ):
        request: dict[str, object] = {"user": "0000000005/000", "max_tokens": 1}
        given = await ask(prefill, request | {"kv_transfer_params": {"do_remote_decode": True}})
        params = given.json()["kv_transfer_params"]
        first = await ask(decode, request | {"kv_transfer_params": params})
        again = await ask(decode, request | {"kv_transfer_params": params})
        never = await ask(decode, request)
    assert first.content == replies.completion("0000000005")
    assert (again.status_code, never.status_code) == (400, 400)


async def test_engine_streams_what_the_client_expects() -> None:
    """A streamed decode leg yields exactly the body that the client compares with."""
    handoffs = Handoffs()
    async with serving(lambda: Connection(Engine("decode", handoffs))) as decode:
        params = {"do_remote_prefill": True, "remote_request_id": handoffs.give()}
        body: dict[str, object] = {
            "user": "0000000009/001",
            "max_tokens": 4,
            "stream": True,
            "kv_transfer_params": params,
        }
        answer = await ask(decode, body)
    assert answer.content == replies.stream("0000000009", 4)


@pytest.mark.parametrize("workload", [W1, W2, W4, long_streams(100, 3)], ids=lambda workload: workload.name)
def test_bodies_of_a_workload_are_equally_long(workload: object) -> None:
    """Every body of a workload is JSON of one length, which its head announces, and carries its serial."""
    assert isinstance(workload, type(W1))
    bodies = [workload.body(number) for number in (0, 12_345)]
    assert {len(body) for body in bodies} == {workload.body_bytes}
    assert json.loads(bodies[1])["user"].startswith("0000012345/")
    text = sum(len(message["content"]) for message in json.loads(bodies[0])["messages"])
    assert text == workload.prompt_bytes


def test_tree_holds_grandchildren() -> None:
    """The tree of a process includes what its children started."""
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '30'])"]
    with subprocess.Popen(command) as child:
        try:
            until_s = time.monotonic() + 20
            while len(found := cpu.tree(child.pid)) < 2 and time.monotonic() < until_s:
                time.sleep(0.02)
            assert child.pid in found
            assert len(found) == 2
        finally:
            for pid in reversed(cpu.tree(child.pid)):
                os.kill(pid, 9)


def test_cpu_of_a_tree_is_the_process_clock() -> None:
    """What a process without children has used is what its own clock says."""
    before_ns, clock_ns = cpu.tree_ns(os.getpid()), time.process_time_ns()
    sum(number * number for number in range(300_000))
    used_ns, clock_used_ns = cpu.tree_ns(os.getpid()) - before_ns, time.process_time_ns() - clock_ns
    # Reading the process table costs a little between the two clocks.
    assert used_ns == pytest.approx(clock_used_ns, rel=0.5)


def test_ratio_is_the_median_of_the_rounds() -> None:
    """The reported ratio is the median of ratios within rounds, not the ratio of medians."""
    row = Row("w1", "t", "request", [Pair(10, 20), Pair(30, 40), Pair(100, 130)])
    assert row.ratio == pytest.approx(0.75)
    assert (row.ours_us, row.peer_us) == (30, 40)


@pytest.mark.parametrize(("ours_us", "holds"), [(52, True), (53, False)])
def test_goal_holds_up_to_its_figure(ours_us: float, holds: bool) -> None:  # noqa: FBT001 - a column of the table
    """A ratio of exactly the goal holds, one above does not."""
    assert Row("w1", "t", "request", [Pair(ours_us, 100)]).holds is holds


def test_workload_without_goal_has_no_verdict() -> None:
    """A workload without a goal is reported with neither goal nor verdict."""
    figures = as_json([Row("w4", "t", "request", [Pair(1, 2)])], {"rounds": (1, "rounds")})
    assert figures["w4_ratio"] == {"value": 0.5, "unit": "ratio", "goal": None, "holds": None}
    assert figures["rounds"] == {"value": 1, "unit": "rounds", "goal": None, "holds": None}


def test_table_names_both_and_the_verdict() -> None:
    """The table shows ours, the peer, the ratio, the goal and whether it holds."""
    text = table([Row("w3_100", "100 long streams", "chunk", [Pair(9, 10)])], "ours 1", "peer 2")
    head, line = text.splitlines()
    assert head.split()[-4:] == ["of", "rounds", "goal", "holds"]
    assert line.split()[-1] == "NO"
    assert "0.900" in line


def test_our_router_is_started_with_a_policy_without_state(tmp_path: Path) -> None:
    """What is measured is comparable with the peer's round robin, whatever our default policy is."""
    place = Place(["http://127.0.0.1:1"], ["http://127.0.0.1:2", "http://127.0.0.1:3"], port=4, admin_port=5)
    command = our_command(Path("pdpool-router"), place, tmp_path)
    told = settings(command[1:])
    assert told.config.routing.policy == "LeastLoaded"
    assert [one.role for one in told.config.endpoints.static] == ["prefill", "decode", "decode"]
    assert (told.host, told.port, told.admin_port) == ("127.0.0.1", 4, 5)


def test_our_router_is_measured_on_the_interpreter_of_its_image_where_there_is_one() -> None:
    """The system's Python is taken when it can run the router; else the present one."""
    chosen = ours.interpreter()
    told = subprocess.run(
        [str(chosen), "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "True"
    assert chosen in {ours.SYSTEM_PYTHON, Path(sys.executable)}
