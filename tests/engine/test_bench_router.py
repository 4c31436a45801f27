"""The router benchmark's own parts: what it counts, what it refuses, what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.bench import cpu, dynamo, ours, replies, router
from e2e.bench.answers import ByForm
from e2e.bench.contest import Contestant, our_command
from e2e.bench.contest import Engine as ContestEngine
from e2e.bench.load import Client, LoadError
from e2e.bench.measures import latency, per_request
from e2e.bench.peers import DYNAMO, PEERS, VLLM_ROUTER, Place, install_commands
from e2e.bench.report import OURS, Row, figures, judged, table, verdicts
from e2e.bench.responder import Connection, Engine, Handoffs
from e2e.bench.workloads import CROWD, W1, W2, W4, Workload, long_streams, seed, serial, serial_and_gap_ms
from e2e.cluster.progress import Progress
from pdpool_router.config import settings
from pdpool_sim.figure import as_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


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
        if data.endswith(b"}"):
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
        request: dict[str, object] = {"seed": seed(serial(5), 0), "max_tokens": 1}
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
            "seed": seed(serial(9), 1),
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
    assert serial_and_gap_ms(json.loads(bodies[1])["seed"]) == (serial(12_345), workload.gap_ms)
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
    script = """
import os, time
from e2e.bench import cpu
before_ns, clock_ns = cpu.tree_ns(os.getpid()), time.process_time_ns()
sum(number * number for number in range(3_000_000))
print(cpu.tree_ns(os.getpid()) - before_ns, time.process_time_ns() - clock_ns)
"""
    # In a process of its own: this one may have children, as an operator that other tests share.
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    used_ns, clock_used_ns = map(int, told.split())
    # Reading the process table costs a little between the two clocks.
    assert used_ns == pytest.approx(clock_used_ns, rel=0.5)


def row(name: str, **samples: list[float | None]) -> Row:
    """A row with these samples, `_` in a contestant's name standing for `-`."""
    return Row(name, "t", "u", {contestant.replace("_", "-"): values for contestant, values in samples.items()})


def test_ratio_is_the_median_of_the_rounds() -> None:
    """The reported ratio is the median of ratios within rounds, not the ratio of medians."""
    [found] = verdicts([row("w1", ours=[10, 30, 100], peer=[20, 40, 130])], ["peer"])
    assert (found.value, found.lowest, found.highest) == (0.75, 0.5, pytest.approx(100 / 130))


def test_ours_stands_beside_the_cheapest_peer_with_two_legs() -> None:
    """Of several peers the one with the smallest median is compared with; one that makes a single leg is none."""
    measured = row("w2", ours=[50], one=[100], other=[80], single=[10])
    [found] = verdicts([measured], ["one", "other"])
    assert (found.peer, found.value) == ("other", 0.625)


def test_round_that_a_peer_failed_has_no_ratio() -> None:
    """A sample that is missing leaves its round out, and no more."""
    measured = row("w1", ours=[10, 20, 30], peer=[20, None, 40])
    assert measured.ratios("ours", "peer") == [0.5, 0.75]
    assert measured.median("peer") == 30


@pytest.mark.parametrize(("ours_us", "holds"), [(52, True), (53, False)])
def test_goal_holds_up_to_its_figure(ours_us: float, holds: bool) -> None:  # noqa: FBT001 - a column of the table
    """A ratio of exactly the goal holds, one above does not."""
    [found] = verdicts([row("w1", ours=[ours_us], peer=[100])], ["peer"])
    assert found.figure.holds is holds


def test_goal_that_is_no_ratio_needs_no_peer() -> None:
    """What a stream holds in memory is judged by itself."""
    [found] = verdicts([row("crowd_rss", ours=[29.5])], ["peer"])
    assert (found.value, found.figure.holds, found.peer) == (29.5, True, "")


def test_figures_without_a_goal_have_no_verdict() -> None:
    """Every median is reported by name, with neither goal nor verdict; a goal has both."""
    rows = [row("w1", ours=[1], ours_all_on=[3], peer=[2])]
    told = as_json(figures(rows, list(verdicts(rows, ["peer"])), {"rounds": (1, "rounds")}))
    assert told["w1_peer"] == {"value": 2, "unit": "u", "goal": None, "holds": None}
    assert told["w1_ours_ratio"] == {"value": 0.5, "unit": "ratio", "goal": 0.52, "holds": True}
    assert told["w1_ours_all_on_ratio"] == {"value": 1.5, "unit": "ratio", "goal": 0.6, "holds": False}
    assert told["rounds"] == {"value": 1, "unit": "rounds", "goal": None, "holds": None}


def test_table_has_a_column_for_each_and_tells_what_is_not_measured() -> None:
    """Medians stand under their contestants' titles; a dash where there is none."""
    text = table([row("w3_100", ours=[9, 11])], {"ours": "us 1", "peer": "them 2"})
    head, line = text.splitlines()
    assert head.split() == ["us", "1", "them", "2"]
    assert line.split() == ["t", "u", "10", "-"]


def test_verdicts_are_shown_with_their_goal() -> None:
    """A missed goal is told loudly."""
    text = judged(list(verdicts([row("w3_100", ours=[9], peer=[10])], ["peer"])))
    assert text.splitlines()[1].split() == [
        "w3_100",
        "ours",
        "peer",
        "0.900",
        "0.900",
        "to",
        "0.900",
        "<=",
        "0.84",
        "NO",
    ]


ENGINES = [ContestEngine("prefill", 1, 11), ContestEngine("decode", 2, 12), ContestEngine("whole", 3, 13)]


@pytest.mark.parametrize(("all_on", "policy"), [(False, "LeastLoaded"), (True, "KvAware")])
def test_our_router_is_started_in_two_settings(tmp_path: Path, all_on: bool, policy: str) -> None:  # noqa: FBT001
    """With keys and log; once with a policy without state, as the peers', once with prefixes and still two legs."""
    place = Place(["http://127.0.0.1:1"], ["http://127.0.0.1:2"], [], port=4, admin_port=5, folder=tmp_path)
    told = settings(our_command(Path("pdpool-router"), ENGINES, place, all_on=all_on)[1:])
    assert told.config.routing.policy == policy
    assert [one.role for one in told.config.endpoints.static] == ["prefill", "decode"]
    assert (told.host, told.port, told.admin_port) == ("127.0.0.1", 4, 5)
    assert told.access_log
    assert told.config.auth.api_keys_file
    if all_on:
        assert told.config.routing.local_prefill.max_uncached_tokens == 0


def test_every_peer_is_told_where_its_engines_are(tmp_path: Path) -> None:
    """Each peer's command names the engines of the kind that it uses, or it has its own; and where to listen."""
    for peer in PEERS.values():
        folder = tmp_path / peer.name
        folder.mkdir()
        place = Place(["http://p:1"], ["http://d:2"], ["http://w:3"], port=4, admin_port=5, folder=folder)
        told = " ".join(peer.arguments(place)) + "".join(file.read_text() for file in folder.glob("*.json"))
        assert "port 4" in told
        ours = ["http://p:1", "http://d:2"] if peer.legs == 2 else ["http://w:3"]
        assert bool(peer.engine_commands()) != all(url in told for url in ours)


def test_a_peer_with_engines_of_its_own_has_as_many_of_each_role_at_every_pace(tmp_path: Path) -> None:
    """Dynamo's mockers: two prefill and two decode engines for each pace, all from one environment."""
    place = Place([], [], [], port=4, admin_port=5, folder=tmp_path)
    assert DYNAMO.arguments(place)[-2:] == ["--event-plane", "zmq"]
    engines = list(DYNAMO.engine_commands().values())
    assert all(command[0] == str(DYNAMO.environment / "bin/python") for command in engines)
    told = [dict(itertools.pairwise(command)) for command in engines]
    assert {(one["--model-name"], one["--disaggregation-mode"]) for one in told} == {
        (model, role) for model in dynamo.MODELS.values() for role in ("prefill", "decode")
    }
    assert {one["--num-workers"] for one in told} == {"2"}
    assert {one["--endpoint"] for one in told} == {
        f"dyn://{model}.{role}.generate" for model in dynamo.MODELS.values() for role in ("prefill", "backend")
    }
    assert Path(DYNAMO.variables(place)["DYN_FILE_KV"]).is_relative_to(tmp_path)


@pytest.mark.parametrize("quick", [False, True])
def test_every_pace_that_is_offered_has_a_mocker(quick: bool) -> None:  # noqa: FBT001 - a column of the table
    """Whatever a run offers, Dynamo's mockers have its pace, and its body is as long as the others'."""
    plan = router.plan(quick=quick)
    for measure in [*plan.measures, plan.crowd]:
        asked = DYNAMO.answers.asked(measure.warm_up)
        assert asked.body_bytes == measure.warm_up.body_bytes
        assert json.loads(asked.body(3))["model"] == dynamo.MODELS[measure.warm_up.gap_ms]


def test_a_peer_is_ready_once_all_its_engines_are() -> None:
    """Dynamo answers 200 without engines: it is ready when it tells of all of them, and of every model."""
    health, models = dynamo.PAGES["/health"], dynamo.PAGES["/v1/models"]
    instances = [{"endpoint": "generate"}] * (4 * len(dynamo.MODELS))
    assert health(json.dumps({"status": "healthy", "instances": [{"endpoint": "other"}, *instances]}).encode())
    assert not health(json.dumps({"instances": instances[1:]}).encode())
    assert not health(b'{"status":"unhealthy"}')
    cards = [{"id": name, "object": "model"} for name in dynamo.MODELS.values()]
    assert models(json.dumps({"data": cards}).encode())
    assert not models(json.dumps({"data": cards[1:]}).encode())


def test_a_peer_is_installed_as_its_entry_says() -> None:
    """By default its package in its version; else what the entry lists, with every package pinned."""
    assert install_commands(VLLM_ROUTER) == [["vllm-router==0.1.17"]]
    [bare, needed] = install_commands(DYNAMO)
    assert bare == ["--no-deps", "ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1"]
    assert all("==" in package for package in needed)


def piece(text: str | None, finish: str | None = None, model: str = "m") -> bytes:
    """One event of an engine that makes up its texts."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c-1", "model": model, "choices": [choice]}).encode() + b"\n\n"


THREE = Workload("three", "t", 100, chunks=3)
ONE = Workload("one", "t", 100)
WHOLE = b'{"model":"m","choices":[{"message":{"content":"a"},"finish_reason":"length"}]}'
RIGHT = 3 * piece("a") + piece(None, "length") + replies.STREAM_END


@pytest.mark.parametrize(
    ("workload", "body", "fault"),
    [
        (THREE, RIGHT, ""),
        (THREE, RIGHT.removesuffix(replies.STREAM_END), "no [DONE]"),
        (THREE, RIGHT.removeprefix(piece("a")), "2 pieces of text, not 3"),
        (THREE, piece("a") + RIGHT, "4 pieces of text, not 3"),
        (THREE, 3 * piece("a") + replies.STREAM_END, "3 pieces of text, not 3"),
        (THREE, 3 * piece("a") + piece(None, "stop") + replies.STREAM_END, "'stop'"),
        (THREE, 3 * piece("a", model="b") + piece(None, "length") + replies.STREAM_END, "another model"),
        (THREE, b'data: {"error":"overloaded"}\n\n' + replies.STREAM_END, "no answer"),
        (ONE, WHOLE, ""),
        (ONE, WHOLE.replace(b'"a"', b'""'), "0 pieces of text, not 1"),
        (ONE, WHOLE.replace(b"length", b"stop"), "'stop'"),
        (ONE, b'{"error":"overloaded"}', "no answer"),
        (ONE, b"", "no answer"),
    ],
)
def test_answer_that_nobody_knows_beforehand_is_checked_by_its_form(
    workload: Workload, body: bytes, fault: str
) -> None:
    """As many pieces of text as asked for, the end that the bound makes, the model that was asked."""
    found = ByForm({0: "m"}).fault(workload, 1, body)
    assert fault in found
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", ""),
        (b"dat", ""),
        (2 * piece("a") + b'data: {"id"', ""),
        (piece("a") + piece(None, "length"), "1 pieces of text, not 2"),
        (b'{"error":"overloaded"}', "no stream"),
    ],
)
def test_stream_that_nobody_knows_beforehand_is_checked_as_far_as_it_has_come(body: bytes, fault: str) -> None:
    """Each whole event carries text and no end; half an event is not looked at."""
    found = ByForm({0: "m"}).fault_so_far(THREE, 1, body)
    assert fault in found
    assert bool(found) == bool(fault)


def ended_process() -> int:
    """The pid of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


@contextlib.contextmanager
def idle_process() -> Iterator[int]:
    """The pid of a process without children, for the time of the block: this one's may end while they are counted."""
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


async def test_a_peer_that_fails_leaves_gaps_and_does_not_cost_the_others_their_figures() -> None:
    """A peer that ended is noted from its warm-up on, is not tried for ever, and ours is measured in every round."""
    handoffs = Handoffs()
    async with serving(lambda: Connection(Engine("whole", handoffs))) as whole:
        with socket.socket() as closed, idle_process() as pid:
            closed.bind(("127.0.0.1", 0))
            mine = Contestant(OURS, "us", whole, pid)
            gone = Contestant("peer", "them", closed.getsockname()[1], ended_process())
            measure = per_request(dataclasses.replace(W1, rate_per_s=50), offered_s=0.2)
            plan = router.Plan(("peer",), [measure], 3, latency(offered_s=0.02), (), budget_s=60)
            run = router.Run(plan, [mine, gone], mine, Progress("test"))
            await run.measure(until_s=time.monotonic() + 600)
    by_name = {row.name: row for row in run.rows}
    assert [one is None for one in by_name["w1"].samples[OURS]] == [False] * 3
    assert by_name["w1"].samples["peer"] == [None] * 3
    assert by_name["rss"].samples["peer"] == [None]
    assert [note.split(":")[0] for note in run.notes] == ["them, w1, warm-up", "them, w1, round 1"]
    assert run.notes[-1].endswith("not tried again")
    assert not run.ours_failed


async def test_half_of_the_prompts_are_known_and_their_ids_begin_alike() -> None:
    """Even requests share prompt and ids, odd ones have their own; a prefill engine tells them when it is asked."""
    assert W1.body(0).split(b'"seed"')[0] == W1.body(2).split(b'"seed"')[0]
    assert W1.body(1)[:200] != W1.body(3)[:200]
    handoffs = Handoffs()
    async with serving(lambda: Connection(Engine("prefill", handoffs))) as prefill:
        wanted = {"max_tokens": 1, "return_token_ids": True, "kv_transfer_params": {"do_remote_decode": True}}
        told = [(await ask(prefill, wanted | {"seed": seed(serial(n), 0)})).json() for n in (1, 2, 4)]
    ids = [one["prompt_token_ids"] for one in told]
    assert ids[1] == ids[2] == replies.token_ids(serial(0), 4 * (len(ids[1]) - 1))
    assert ids[0][0] != ids[1][0]


async def test_crowd_that_breaks_is_no_crowd() -> None:
    """A stream that ends before it was measured ends the measure, whatever it brought."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    class Breaks(Scripted):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._transport.close()

    async with serving(lambda: Breaks(head)) as port:
        with pytest.raises(LoadError, match="1 of 1 streams broke"):
            await Client(port, CROWD).crowd(range(1), 0.3, read_ns=lambda: 0, rss_bytes=lambda: 0)


async def test_streams_that_hardly_come_have_no_cost_per_chunk() -> None:
    """Where most chunks that are due do not come, dividing by those that do would tell nothing."""
    event = replies.stream_event(serial(0), 0, 100)
    begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(event), event)
    async with serving(lambda: Scripted(begun)) as port:
        client = Client(port, long_streams(1, 2))
        try:
            with pytest.raises(LoadError, match="0 of 10 chunks came"):
                await client.hold(range(1), 0.2, lambda: 0)
        finally:
            await client.close()
        with pytest.raises(LoadError, match=r"0 of \d+ chunks came"):
            await Client(port, dataclasses.replace(CROWD, gap_ms=100)).crowd(
                range(1), 0.3, read_ns=lambda: 0, rss_bytes=lambda: 0
            )


async def test_closed_loop_sends_every_request_once() -> None:
    """However many are at once, all are sent and each answer is checked."""
    handoffs = Handoffs()
    async with serving(lambda: Connection(Engine("whole", handoffs))) as whole:
        client = Client(whole, W1)
        try:
            await client.saturate(range(50), 8)
        finally:
            await client.close()
    assert (client.tally.answered, client.tally.faults) == (50, [])


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
