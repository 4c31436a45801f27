"""Which engines the tests run on: `--engine=standin` (the default) or `--engine=real`, one set for the whole run."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

# Before the import: a failed check should show its values, as in a test.
pytest.register_assert_rewrite("e2e.engine.exchanges")

from e2e.engine import model  # noqa: E402
from e2e.engine.exchanges import Pair, Target  # noqa: E402
from e2e.engine.real import START_TIMEOUT_S, EngineSet, RealEngine  # noqa: E402
from e2e.engine.standin.process import StandinProcess  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REAL_LEASE_S, STANDIN_LEASE_S = 10, 2
"""Of prefill: some rows wait until it is over, and on a busy machine seconds pass between two legs."""
DECODE_LEASE_S, DECODE_DRAIN_S = 30, 45
"""Long enough that a drain, which lasts until what is held is pulled, does not end before a slow test has pulled it."""
# Slow enough that a request can be met while it runs.
STANDIN = {"PDPOOL_STANDIN": '{"pace": {"step_s": 0.004}}'}
# As in the sample for CPUs: engine and worker in one process. Two wait for each other by spinning: six on two cores.
REAL = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
EXTRA = ("--enable-lora", "--max-lora-rank", "8", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


class Engines(NamedTuple):
    """What a router stands before, and the table of exchanges drives the first two of."""

    prefill: RealEngine
    decode: RealEngine
    other_prefill: RealEngine
    adapter: Path
    """A folder with a LoRA adapter."""
    lease_s: float


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=["standin", "real"], default="standin", help="what the exchanges run on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ends_engine(order): ends its engine, so it runs after all others, in this order"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--engine", default="standin") == "real":
        for item in items:
            # Whichever comes first starts the engines, which takes minutes on a busy machine.
            item.add_marker(pytest.mark.timeout(2 * START_TIMEOUT_S))

    def order(item: pytest.Item) -> int:
        mark = item.get_closest_marker("ends_engine")
        return -1 if mark is None else int(mark.args[0])

    items.sort(key=order)


def _target(engine: RealEngine, adapter: Path) -> Target:
    process = engine.process
    assert process is not None
    return Target(
        url=engine.url,
        events=f"tcp://127.0.0.1:{engine.ports.events}",
        replay=f"tcp://127.0.0.1:{engine.ports.replay}",
        terminate=engine.terminate,
        has_ended=lambda: process.poll() is not None,
        adapter=str(adapter),
    )


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """One set for all tests, since real engines take long to start."""
    real = request.config.getoption("--engine", default="standin") == "real"
    kind = RealEngine if real else StandinProcess
    adapter = model.folder() / "adapter" if real else tmp_path_factory.mktemp("adapter")
    env = REAL if real else STANDIN
    lease_s = REAL_LEASE_S if real else STANDIN_LEASE_S
    prefill, other = (kind("prefill", extra=EXTRA, lease_s=lease_s, on_failure="recompute", env=env) for _ in range(2))
    drains = ("--shutdown-timeout", f"{DECODE_DRAIN_S}")
    decode = kind("decode", extra=(*EXTRA, *drains), lease_s=DECODE_LEASE_S, env=env)
    with EngineSet([prefill, decode, other]):
        engines = Engines(prefill, decode, other, adapter, lease_s)
        for one in (prefill, other):
            met = _pair(one, engines)
            met.greet()
            met.close()
        yield engines


def _pair(prefill: RealEngine, engines: Engines) -> Pair:
    first, second = _target(prefill, engines.adapter), _target(engines.decode, engines.adapter)
    return Pair(first, second, random.Random(time.time()), engines.lease_s)


@pytest.fixture(scope="session")
def pair(engines: Engines) -> Iterator[Pair]:
    pair = _pair(engines.prefill, engines)
    yield pair
    pair.close()
