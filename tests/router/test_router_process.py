"""`pdpool-router` as a command: start, serve, change, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
from typing import TYPE_CHECKING

import httpx
import structlog
import yaml

from e2e.engine.standin import Standin
from pdpool_router.__main__ import _log_to_stderr
from pdpool_router.config import settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


class Command:
    """A running command, and what it logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, object]] = []
        assert process.stderr is not None
        self._reading = asyncio.create_task(self._read(process.stderr))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.log.append(json.loads(line))

    async def logged(self, event: str) -> dict[str, object]:
        async with asyncio.timeout(20):
            while True:
                for record in self.log:
                    if record["event"] == event:
                        return record
                assert self.process.returncode is None
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pdpool_router", *arguments, "--host", "127.0.0.1", "--port", "0", "--admin-port", "0",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    running = Command(process)
    try:
        yield running
    finally:
        await running.end()


async def test_the_command_serves_and_ends_a_stream_before_itself(tmp_path: Path) -> None:
    """From a file: it serves, takes a change, and on SIGTERM finishes the running stream, refuses new work, exits 0."""
    async with Standin("prefill") as p, Standin("decode") as d:
        content = {
            "model": {"servedNames": ["tiny"]},
            "endpoints": {"static": [{"role": "prefill", "url": p.url}, {"role": "decode", "url": d.url}]},
        }
        file = tmp_path / "router.yaml"
        file.write_text(yaml.safe_dump(content))
        async with command("--config", str(file)) as router:
            ports = await router.logged("listening")
            base, admin = f"http://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['admin_port']}"
            async with httpx.AsyncClient(timeout=20) as client:
                body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
                assert (await client.post(f"{base}/v1/completions", json=body)).status_code == 200
                file.write_text(yaml.safe_dump({**content, "model": {"servedNames": ["tiny", "second"]}}))
                await router.logged("configuration applied")
                assert (await client.get(f"{base}/v1/models/second")).status_code == 200
                d.set_pace(step_s=0.15)
                stream = {**body, "max_tokens": 10, "stream": True}
                async with client.stream("POST", f"{base}/v1/completions", json=stream) as answer:
                    pieces = answer.aiter_text()
                    text = await anext(pieces)
                    router.process.send_signal(signal.SIGTERM)
                    await asyncio.sleep(0.1)
                    assert (await client.get(f"{admin}/readyz")).status_code == 503
                    refused = await client.post(f"{base}/v1/completions", json=body)
                    assert refused.status_code == 503
                    text += "".join([piece async for piece in pieces])
                assert text.endswith("data: [DONE]\n\n")
            async with asyncio.timeout(10):
                assert await router.process.wait() == 0


async def test_a_request_on_its_way_at_the_end_is_answered() -> None:
    """On a kept connection a request that meets SIGTERM gets its 503 and the end of the connection, and no reset."""
    async with (
        Standin("decode") as d,
        command("--model", "tiny", "--decode", d.url) as router,
        httpx.AsyncClient(timeout=20) as client,
    ):
        ports = await router.logged("listening")
        base = f"http://127.0.0.1:{ports['port']}"
        assert (await client.get(f"{base}/health")).status_code == 200
        router.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        answer = await client.post(f"{base}/v1/completions", json={"model": "tiny", "prompt": "x"})
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert answer.json()["error"]["code"] == "shutting_down"
        async with asyncio.timeout(10):
            assert await router.process.wait() == 0


def test_the_log_is_json_or_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """`--log-format` chooses how a line is written, `--log-level` which ones are."""
    before = structlog.get_config()
    try:
        for form in ("json", "console"):
            flags = ["--model", "m", "--decode", "http://h:1", "--log-format", form, "--log-level", "warning"]
            _log_to_stderr(settings(flags))
            log = structlog.get_logger()
            log.info("quiet")
            log.warning("heard", number=1)
    finally:
        structlog.configure(**before)
    for_machines, for_people = capsys.readouterr().err.splitlines()
    assert json.loads(for_machines)["event"] == "heard"
    assert "heard" in for_people
    assert "number=1" in for_people


async def test_the_command_may_hold_as_many_connections_as_the_system_allows() -> None:
    """The soft limit of open files, often 1024, is raised to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import resource as r, pdpool_router.__main__ as m; "
        "m._allow_connections(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"ulimit -Sn 256; exec {sys.executable} -c '{program}'", stdout=asyncio.subprocess.PIPE
    )
    text, _ = await process.communicate()
    assert [int(limit) for limit in text.split()] == [hard, hard]


async def test_a_bad_command_line_ends_with_a_clear_message() -> None:
    """A refused configuration is named on stderr, with exit code 2 and no traceback."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pdpool_router", "--model", "m", "--decode", "ftp://x", stderr=asyncio.subprocess.PIPE
    )
    _, text = await process.communicate()
    assert process.returncode == 2
    assert text.decode().startswith("pdpool-router: endpoints.static.0.url:")
    assert "Traceback" not in text.decode()
