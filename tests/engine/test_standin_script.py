"""The stand-in's own faults, pace and records: what the real engine cannot be told to do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from e2e.engine.standin import (
    EngineConfig,
    EventsConfig,
    ManualClock,
    Pace,
    Recorded,
    Settings,
    Standin,
    Startup,
    schema,
)
from e2e.engine.standin.kv import BlockPool
from e2e.ports import free_ports

FIRST_LEG = {"do_remote_decode": True, "do_remote_prefill": False}
BODY = {"model": "tiny", "prompt": "hello there", "max_tokens": 4, "ignore_eos": True, "temperature": 0}


def client_of(timeout_s: float = 10) -> httpx.AsyncClient:
    # Loading certificates would be most of a test's time.
    return httpx.AsyncClient(timeout=timeout_s, verify=False)


async def post(engine: Standin, **more: Any) -> httpx.Response:
    async with client_of(10) as client:
        return await client.post(f"{engine.url}/v1/completions", json={**BODY, **more})


async def stream_bytes(engine: Standin, **more: Any) -> bytes:
    return (await post(engine, stream=True, **more)).content


async def raw_answer(engine: Standin, body: dict[str, Any]) -> tuple[list[bytes], BaseException | None]:
    """The pieces that a plain socket reads until the end, and how it ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    payload = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(payload) + payload)
    pieces: list[bytes] = []
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 30):
            pieces.append(piece)
    except ConnectionError as error:
        return pieces, error
    finally:
        writer.close()
    return pieces, None


async def settle(condition: Any, timeout_s: float = 5.0) -> bool:
    end_s = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < end_s:
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


async def test_records_a_request_as_it_arrived() -> None:
    """Path, raw headers in order with their case, raw body and times are kept, and whether the answer was finished."""
    async with Standin("prefill") as engine:
        payload = b'{"model": "tiny",  "prompt": "x", "max_tokens": 1, "seed": 9007199254740993}'
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        head = b"POST /v1/completions?a=1 HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two: 2\r\n"
        head += b"content-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(payload) + payload)
        await reader.readuntil(b"\r\n\r\n")
        assert await settle(lambda: engine.requests[0].finished)
        writer.close()
        recorded = engine.requests[0]
        assert (recorded.path, recorded.target, recorded.body) == ("/v1/completions", b"/v1/completions?a=1", payload)
        assert recorded.headers[1:3] == [(b"X-Two", b"1"), (b"x-two", b"2")]
        assert recorded.status == 200
        assert recorded.disconnected_s is None


async def test_sees_a_client_leave_before_the_headers() -> None:
    """A client that leaves while the answer is awaited is noted as disconnected, and its work ends."""
    async with Standin("decode", settings=Settings(pace=Pace(step_s=60))) as engine:
        async with client_of() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{engine.url}/v1/completions", json=BODY, timeout=0.2)
        assert await settle(lambda: engine.requests[0].disconnected_s is not None)
        assert not engine.requests[0].finished
        assert await settle(lambda: engine.engine.ranks[0].load == 0)
        assert engine.engine.ranks[0].pool.usage == 0


async def test_sees_a_client_leave_in_a_stream() -> None:
    """A client that leaves mid-stream ends the generation; its blocks are free again."""
    async with Standin("decode", settings=Settings(pace=Pace(step_s=0.01))) as engine:
        async with client_of() as client:
            request = {**BODY, "stream": True, "max_tokens": 5000}
            async with client.stream("POST", f"{engine.url}/v1/completions", json=request) as answer:
                pieces = answer.aiter_raw()
                await anext(pieces)
        assert await settle(lambda: engine.requests[0].disconnected_s is not None)
        assert await settle(lambda: engine.engine.ranks[0].pool.usage == 0)


async def test_status_with_headers_and_body() -> None:
    """A rule's status, headers and body replace the answer, for as many requests as it says."""
    async with Standin("prefill") as engine:
        engine.add_rule(times=1, status=429, headers={"Retry-After": "7"})
        engine.add_rule(times=1, status=502, headers={"Content-Type": "text/plain"}, body="bad gateway")
        first, second, third = [await post(engine) for _ in range(3)]
        assert (first.status_code, first.headers["retry-after"]) == (429, "7")
        assert first.json()["error"]["code"] == 429
        assert (second.status_code, second.text, second.headers["content-type"]) == (502, "bad gateway", "text/plain")
        assert third.status_code == 200


async def test_rules_choose_by_leg_path_body_and_function() -> None:
    """A rule applies only where its leg, path, text and function all agree; the first such rule wins."""
    async with Standin("prefill") as engine:
        engine.add_rule(leg="prefill", status=501)
        engine.add_rule(contains="needle", status=502)
        engine.add_rule(path="/health$", status=503)
        engine.add_rule(lambda recorded: recorded.header("x-mark") == "1", status=504)
        assert (await post(engine)).status_code == 200
        assert (await post(engine, kv_transfer_params=FIRST_LEG)).status_code == 501
        assert (await post(engine, prompt="a needle")).status_code == 502
        async with client_of() as client:
            assert (await client.get(f"{engine.url}/health")).status_code == 503
            marked = await client.post(f"{engine.url}/v1/completions", json=BODY, headers={"x-mark": "1"})
            assert marked.status_code == 504


async def test_one_byte_per_write() -> None:
    """A stream split into single bytes still decodes to the same events."""
    async with Standin("decode") as engine:
        plain = await stream_bytes(engine)
        engine.add_rule(bytes_per_write=1, write_gap_s=0)
        split = await stream_bytes(engine)
        events = [json.loads(line[6:])["choices"] for line in split.split(b"\n\n") if line.startswith(b"data: {")]
        expected = [json.loads(line[6:])["choices"] for line in plain.split(b"\n\n") if line.startswith(b"data: {")]
        assert events == expected
        assert split.endswith(b"data: [DONE]\n\n")


async def test_scripted_text_passes_any_characters() -> None:
    """The answer may be any text, one item an event."""
    text = ["한국", "漢", "👩‍👩‍👧", "é"]
    async with Standin("decode") as engine:
        engine.add_rule(text=text)
        content = await stream_bytes(engine)
        events = [json.loads(line[6:]) for line in content.split(b"\n\n") if line.startswith(b"data: {")]
        assert [event["choices"][0]["text"] for event in events] == text
        assert (await post(engine)).json()["choices"][0]["text"] == "".join(text)


async def test_reset_before_the_first_byte() -> None:
    """A connection can be torn down before anything was answered."""
    async with Standin("prefill") as engine:
        engine.add_rule(reset_after_bytes=0)
        pieces, error = await raw_answer(engine, BODY)
        assert pieces == []
        assert isinstance(error, ConnectionResetError)


async def test_reset_after_bytes() -> None:
    """A connection can be torn down after exactly so many bytes of the answer."""
    async with Standin("prefill") as engine:
        engine.add_rule(reset_after_bytes=300)
        pieces, error = await raw_answer(engine, {**BODY, "stream": True})
        assert len(b"".join(pieces)) == 300
        assert isinstance(error, ConnectionResetError)


async def test_orderly_end_within_the_answer() -> None:
    """A connection can be closed in order in the middle of an answer."""
    async with Standin("prefill") as engine:
        engine.add_rule(close_after_bytes=300)
        pieces, error = await raw_answer(engine, {**BODY, "stream": True})
        assert len(b"".join(pieces)) == 300
        assert error is None


async def test_stream_without_done() -> None:
    """A stream can end cleanly without its [DONE]."""
    async with Standin("decode") as engine:
        engine.add_rule(omit_done=True)
        content = await stream_bytes(engine)
        assert b"[DONE]" not in content
        assert b'"finish_reason":"length"' in content


async def test_abort_and_error_as_finish() -> None:
    """An engine's abort is a 200 with that reason; its error is a 500, or an event within a stream, then [DONE]."""
    async with Standin("decode") as engine:
        engine.add_rule(finish_reason="abort", times=2)
        empty = (await post(engine)).json()["choices"][0]
        assert (empty["finish_reason"], empty["text"]) == ("abort", "")
        assert await stream_bytes(engine) == b"data: [DONE]\n\n"
        engine.add_rule(finish_reason="abort", fault_after_tokens=2, times=1)
        assert b'"finish_reason":"abort"' in await stream_bytes(engine)
        engine.add_rule(finish_reason="error", times=1)
        assert (await post(engine)).status_code == 500
        engine.add_rule(error_event=True, fault_after_tokens=2, times=1)
        content = await stream_bytes(engine)
        assert content.count(b'"text"') == 2
        assert b'data: {"error"' in content
        assert content.endswith(b"data: [DONE]\n\n")


async def test_prefill_without_parameters_and_broken_json() -> None:
    """Prefill can answer without transfer parameters, or with half a body."""
    async with Standin("prefill") as engine:
        assert (await post(engine, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"] is not None
        engine.add_rule(drop_kv_params=True, times=1)
        assert (await post(engine, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"] is None
        engine.add_rule(invalid_json=True, times=1)
        with pytest.raises(json.JSONDecodeError):
            (await post(engine)).json()


async def test_refuses_connections_and_takes_them_again() -> None:
    """A closed listener refuses, and opens again on the same port."""
    async with Standin("prefill") as engine:
        await engine.close_listener()
        with pytest.raises(httpx.ConnectError):
            await post(engine)
        await engine.open_listener()
        assert (await post(engine)).status_code == 200


async def test_never_answers_until_the_client_leaves() -> None:
    """A rule can leave a request without any answer."""
    async with Standin("prefill") as engine:
        engine.add_rule(never_answer=True)
        with pytest.raises(httpx.ReadTimeout):
            async with client_of(0.2) as client:
                await client.post(f"{engine.url}/v1/completions", json=BODY)
        assert await settle(lambda: engine.requests[0].disconnected_s is not None)


async def test_delays_follow_the_clock() -> None:
    """Delays before headers, before the body and between events pass on the injected clock only."""
    clock = ManualClock()
    async with Standin("decode", clock=clock) as engine:
        engine.add_rule(delay_headers_s=10, delay_body_s=5, delay_chunk_s=1)
        task = asyncio.ensure_future(stream_bytes(engine))
        assert await settle(lambda: bool(engine.requests))
        recorded: Recorded = engine.requests[0]
        await clock.advance(9.9)
        assert recorded.status is None
        await clock.advance(0.2)
        assert await settle(lambda: recorded.status == 200)
        before = recorded.sent_bytes
        await clock.advance(4.8)
        assert recorded.sent_bytes == before
        for _ in range(20):
            await clock.advance(1)
        assert (await task).endswith(b"data: [DONE]\n\n")


async def test_lease_ends_on_the_clock() -> None:
    """Blocks of a first leg are held until the lease is over on the injected clock, then counted as expired."""
    clock = ManualClock()
    async with Standin("prefill", clock=clock, lease_s=12.0) as engine:
        await post(engine, kv_transfer_params=FIRST_LEG)
        rank = engine.engine.ranks[0]
        await clock.advance(11)
        assert rank.pool.usage > 0
        assert rank.busy
        await clock.advance(1.5)
        assert not rank.busy
        assert rank.pool.usage == 0
        assert rank.metrics.get("nixl_num_kv_expired_reqs_total") == 1


async def test_slow_start() -> None:
    """The port can open late, and the models be listed later still."""
    clock = ManualClock()
    settings = Settings(startup=Startup(open_after_s=5, models_empty_s=3))
    async with Standin("prefill", clock=clock, settings=settings) as engine:
        assert engine.port == 0
        await clock.advance(5)
        assert await settle(lambda: engine.port != 0)
        async with client_of() as client:
            assert (await client.get(f"{engine.url}/v1/models")).json()["data"] == []
            await clock.advance(3)
            assert len((await client.get(f"{engine.url}/v1/models")).json()["data"]) == 1


async def test_seats_are_limited_and_counted() -> None:
    """More requests than seats wait their turn; the gauges tell both."""
    clock = ManualClock()
    async with Standin("decode", clock=clock, max_seqs=2, settings=Settings(pace=Pace(step_s=1))) as engine:
        tasks = [asyncio.ensure_future(post(engine, prompt=f"prompt {number}")) for number in range(5)]
        rank = engine.engine.ranks[0]
        assert await settle(lambda: rank.load == 5)
        await asyncio.sleep(0.05)
        rank.refresh_gauges()
        assert rank.metrics.get("num_requests_running") == 2
        assert rank.metrics.get("num_requests_waiting") == 3
        assert rank.metrics.get("num_requests_waiting_by_reason", "capacity") == 3
        while not all(task.done() for task in tasks):
            await clock.advance(1)
            await asyncio.sleep(0.01)
        rank.refresh_gauges()
        assert rank.metrics.get("num_requests_running") == 0
        assert rank.metrics.get("num_requests_waiting") == 0


async def test_stalled_pull_is_deferred_and_blocks_nobody() -> None:
    """A pull under way counts as deferred and in progress, not as running, and others are served meanwhile."""
    async with Standin("prefill") as prefill, Standin("decode", settings=Settings(pace=Pace(pull_s=60))) as decode:
        params = (await post(prefill, max_tokens=1, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"]
        task = asyncio.ensure_future(post(decode, kv_transfer_params=params))
        rank = decode.engine.ranks[0]
        assert await settle(lambda: rank.load == 1)
        await asyncio.sleep(0.05)
        assert (await post(decode, prompt="another")).status_code == 200
        rank.refresh_gauges()
        assert rank.metrics.get("num_requests_running") == 0
        assert rank.metrics.get("num_requests_waiting_by_reason", "deferred") == 1
        assert rank.metrics.get("num_requests_kv_fetch_by_stage", "in_progress") == 1
        task.cancel()
        # A pull that is given up frees prefill's blocks at once.
        assert await settle(lambda: prefill.engine.ranks[0].pool.usage == 0)


async def test_a_restarted_prefill_is_another_engine() -> None:
    """Parameters of an engine that was restarted on the same ports fail: nobody else's blocks are read."""
    first = Standin("prefill")
    await first.start()
    params = (await post(first, max_tokens=1, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"]
    port = first.engine.ranks[0].handover.port
    await first.stop()
    async with Standin("prefill", side_channel_port=port), Standin("decode") as decode:
        answer = await post(decode, kv_transfer_params=params)
        assert answer.status_code == 500
        assert decode.engine.ranks[0].metrics.get("nixl_num_failed_transfers_total") == 1


async def test_data_parallel_ranks() -> None:
    """Ranks have engine ids, side-channel ports, event ports and metrics of their own; the header chooses one."""
    async with Standin("prefill", data_parallel=2, side_channel_port=0) as engine:
        async with client_of() as client:
            for rank in (0, 1, 1):
                headers = {"X-data-parallel-rank": str(rank)}
                body = {**BODY, "kv_transfer_params": FIRST_LEG}
                told = (await client.post(f"{engine.url}/v1/completions", json=body, headers=headers)).json()
                params = told["kv_transfer_params"]
                assert params["remote_engine_id"].endswith(f"_dp{rank}")
                assert params["remote_port"] == engine.engine.ranks[rank].handover.port
            text = (await client.get(f"{engine.url}/metrics")).text
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0' in text
        assert 'vllm:request_success_total{engine="1",finished_reason="length",model_name="tiny"} 2.0' in text


async def test_admin_endpoint() -> None:
    """Rules, pace, listener and records can be reached over a port of their own; the API's port does not show them."""
    (port,) = free_ports(1)
    async with Standin("prefill", settings=Settings(admin_port=port)) as engine, client_of() as client:
        admin = f"http://127.0.0.1:{port}"
        assert (await client.post(f"{admin}/rules", json={"times": 1, "status": 503})).status_code == 200
        assert (await client.post(f"{admin}/rules", json={"stauts": 503})).status_code == 400
        assert (await post(engine)).status_code == 503
        told = (await client.get(f"{admin}/requests")).json()
        assert [(one["method"], one["target"], one["status"]) for one in told] == [("POST", "/v1/completions", 503)]
        assert json.loads(told[0]["body"]) == BODY
        await client.put(f"{admin}/listener", json={"open": False})
        with pytest.raises(httpx.ConnectError):
            await post(engine)
        await client.put(f"{admin}/listener", json={"open": True})
        assert (await client.get(f"{engine.url}/rules")).status_code == 404


async def test_death_closes_the_port() -> None:
    """After parameters with too few blocks the engine is dead: 500, then connections are refused."""
    async with Standin("prefill") as prefill, Standin("decode") as decode:
        params = (await post(prefill, max_tokens=1, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"]
        assert (await post(decode, prompt="x" * 2000, kv_transfer_params=params)).status_code == 500
        await decode.ended.wait()
        with pytest.raises(httpx.ConnectError):
            await post(decode)


async def test_scripted_events_and_compression() -> None:
    """An event stream can be given as it is, in any spelling, and travel compressed to a client that takes that."""
    events = ": ping\r\n\r\ndata: {}\r\n\r\ndata: a\ndata: b\n\ndata: [DONE]\n\n"
    async with Standin("decode") as engine, client_of() as client:
        engine.add_rule(status=200, headers={"content-type": "text/event-stream"}, body=events, gzip_if_asked=True)
        address = f"{engine.url}/v1/completions"
        plain = await client.post(address, json=BODY, headers={"accept-encoding": "identity"})
        assert (plain.text, "content-encoding" in plain.headers) == (events, False)
        packed = await client.post(address, json=BODY, headers={"accept-encoding": "gzip"})
        assert (packed.text, packed.headers["content-encoding"]) == (events, "gzip")
        engine.script.clear()
        engine.add_rule(gzip_if_asked=True)
        whole = await client.post(address, json=BODY, headers={"accept-encoding": "gzip"})
        assert (whole.headers["content-encoding"], whole.json()["usage"]["completion_tokens"]) == ("gzip", 4)


async def test_forced_metrics() -> None:
    """Metrics can be shown with any value, or left out, and become true again."""
    async with Standin("decode") as engine, client_of() as client:

        async def waiting() -> list[str]:
            text = (await client.get(f"{engine.url}/metrics")).text
            return [
                line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("vllm:num_requests_waiting{")
            ]

        engine.force_metrics(num_requests_waiting=5)
        assert await waiting() == ["5.0"]
        engine.force_metrics(num_requests_waiting=None)
        assert await waiting() == []
        engine.force_metrics()
        assert await waiting() == ["0.0"]


async def test_parameters_without_blocks_end_the_engine() -> None:
    """The flag alone, without block ids, ends the engine, as seen on vLLM 0.32."""
    async with Standin("decode") as decode:
        answer = await post(decode, kv_transfer_params={"do_remote_prefill": True, "do_remote_decode": False})
        assert answer.status_code == 500
        await decode.ended.wait()


async def test_incomplete_parameters_end_the_engine_when_the_client_leaves() -> None:
    """Without the engine's id a request waits; the client's leaving then ends the engine, as seen on vLLM 0.32."""
    async with Standin("prefill") as prefill, Standin("decode") as decode:
        params = (await post(prefill, max_tokens=1, kv_transfer_params=FIRST_LEG)).json()["kv_transfer_params"]
        del params["remote_engine_id"]
        with pytest.raises(httpx.ReadTimeout):
            async with client_of(0.2) as client:
                await client.post(f"{decode.url}/v1/completions", json={**BODY, "kv_transfer_params": params})
        await decode.ended.wait()


def test_config_defaults_agree_with_the_tiny_model() -> None:
    """A block of the stand-in weighs what a block of the tiny model on the real engine weighs."""
    config = EngineConfig()
    assert config.block_tokens * config.kv_bytes_per_token == 65_536


async def test_expired_blocks_serve_who_waits_for_them() -> None:
    """A request that waits for blocks gets those of a lease when it ends, with nobody asking."""
    clock = ManualClock()
    async with Standin("prefill", clock=clock, blocks=9, lease_s=10.0) as engine:
        await post(engine, prompt="x" * 400, max_tokens=1, kv_transfer_params=FIRST_LEG)
        task = asyncio.ensure_future(post(engine, prompt="y" * 400, max_tokens=1))
        assert await settle(lambda: engine.engine.ranks[0].load == 1)
        assert not task.done()
        await clock.advance(10)
        assert (await task).status_code == 200


async def test_shutdown_without_timeout_aborts() -> None:
    """With a shutdown timeout of zero what runs is answered 200 `abort`, and the port closes."""
    engine = Standin("decode", settings=Settings(pace=Pace(step_s=0.05)))
    await engine.start()
    whole = asyncio.ensure_future(post(engine, max_tokens=1000))
    stream = asyncio.ensure_future(stream_bytes(engine, max_tokens=1000))
    assert await settle(lambda: engine.engine.ranks[0].load == 2)
    await asyncio.sleep(0.2)
    await engine.drain(0)
    assert (await whole).json()["choices"][0]["finish_reason"] == "abort"
    assert (await stream).endswith(b"data: [DONE]\n\n")
    with pytest.raises(httpx.ConnectError):
        await post(engine)


async def test_a_cleared_cache_is_told_with_the_next_batch() -> None:
    """AllBlocksCleared leads the events of the next request; until then nothing is told."""
    (port,) = free_ports(1)
    events = EventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{port}", topic="kv")
    context: zmq.asyncio.Context = zmq.asyncio.Context()
    async with Standin("prefill", events=events) as engine:
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        batches: list[list[Any]] = []
        for number in range(50):
            await post(engine, prompt="x" * 80 + str(number))
            if await subscriber.poll(100):
                break
        while await subscriber.poll(100):
            await subscriber.recv_multipart()
        assert engine.engine.ranks[0].clear_cache()
        assert not await subscriber.poll(100)
        await post(engine, prompt="z" * 80)
        assert await subscriber.poll(2000)
        _, _, payload = await subscriber.recv_multipart()
        batches.append(msgspec.msgpack.decode(payload))
        assert [event["type"] for event in batches[0][1]] == ["AllBlocksCleared", "BlockStored"]
        subscriber.close(linger=0)
    context.term()


def test_evictions_go_leaf_first_and_only_when_room_is_needed() -> None:
    """Never-used blocks go first, then the least recently used chain from its leaf; one event a block."""
    pool = BlockPool(4, 2, caching=True)
    events: list[Any] = []
    taken = pool.take([], 3, events)
    pool.store(taken, [1, 2, 3])
    pool.release(taken)
    pool.take([], 3, events)
    assert [event["block_hashes"] for event in events] == [[3], [2]]
    assert [block.key for block in pool.hit([1, 2])] == [1]


def test_copies_of_a_block_are_removed_one_by_one() -> None:
    """A key stored twice stays findable until its last copy is evicted."""
    pool = BlockPool(3, 2, caching=True)
    events: list[Any] = []
    for _ in range(2):
        taken = pool.take([], 1, events)
        pool.store(taken, [7])
        pool.release(taken)
    assert events == []
    first = pool.take([], 2, events)
    assert len(events) == 1
    assert pool.hit([7])
    pool.take([], 1, events)
    assert len(events) == 2
    assert not pool.hit([7])
    pool.release(first)


ANYTHING: list[Any] = [None, -1, 1.5, 10**20, "a", [], ["a", 3], [[3]], {"a": {}}, [{"role": 5, "content": [5]}]]
ROUTES = {
    "/v1/completions": schema.COMPLETION,
    "/v1/chat/completions": schema.CHAT,
    "/v1/responses": schema.RESPONSES,
    "/v1/messages": schema.MESSAGES,
    "/v1/messages/count_tokens": schema.COUNT_TOKENS,
    "/tokenize": schema.TOKENIZE,
    "/detokenize": schema.DETOKENIZE,
    "/v1/load_lora_adapter": schema.LOAD_ADAPTER,
}


async def test_no_value_of_a_field_breaks_the_connection() -> None:
    """Whatever a field holds, on any route: an answer or a refusal, as from vLLM."""
    sound = {"model": "tiny", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a"}
    tried: set[str] = set()
    async with Standin("aggregated", lora_updating=True) as engine, client_of(60) as client:
        for path, form in ROUTES.items():
            asked = {name: sound[name] for name in form.fields if name in sound}
            for name in form.fields:
                if name in tried:
                    continue
                for value in ANYTHING:
                    body = asked | {"max_tokens": 2, "max_output_tokens": 2, name: value}
                    answer = await client.post(f"{engine.url}{path}", json=body)
                    assert answer.status_code in (200, 400, 404), (path, name, value)
            tried |= form.fields.keys() & schema.SHARED.keys()
