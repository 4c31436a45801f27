"""What ticks cost: the operator's own reading and deciding for autoscaled pools, at the default interval.

Boundary: in this process, without an API server. The pages are those of the stand-in engine (the families of a real
vLLM, hence of its size) and of a router, served by another process at an address for each pod, so that every pod costs
a connection of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from e2e.bench.processes import ProcessError
from e2e.engine.standin.metrics import Metrics, rendered
from pdpool_api import names
from pdpool_api.names import ROUTER_METRICS_PREFIX, Role
from pdpool_api.pool import InferencePool
from pdpool_operator import autoscale
from pdpool_operator.autoscale import Memory
from pdpool_operator.observe.metrics import Pages, PoolMetrics
from pdpool_operator.records import Observed, PoolRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdpool_operator.kube import Kube

ROUNDS: Final = 3
AT_ONCE: Final = 8
"""Pools that are read side by side; in an operator their intervals are spread."""
ENGINES_PER_ROLE: Final = 2
_START_S: Final = 60.0
_POOLS_PER_NET: Final = 250


def cpu_shares(sizes: Sequence[int]) -> list[float]:
    """CPU of the best of some rounds of ticks, of one core at the default interval, for each number of pools.

    Raises:
        ProcessError: the pages cannot be served.
    """
    with _pages():
        return [asyncio.run(_measured(pools)) for pools in sizes]


async def _measured(count: int) -> float:
    spec = _spec()
    limits = autoscale.limits(spec)
    found = []
    async with Pages() as pages:
        # No pool names a Secret, so that no API server is asked.
        kube: Kube = None  # type: ignore[assignment]
        pools = [(_observed(number), PoolMetrics(pages, kube)) for number in range(count)]
        memories = [Memory()] * count
        slots = asyncio.Semaphore(AT_ONCE)
        for turn in range(ROUNDS):
            now = turn * limits.interval_s

            async def one(number: int, now: float = now) -> None:
                observed, reader = pools[number]
                async with slots:
                    seen = await reader.read(observed, spec, limits, now)
                memories[number] = autoscale.tick(seen, memories[number], limits, now).memory

            began_s = time.process_time()
            await asyncio.gather(*(one(number) for number in range(count)))
            found.append((time.process_time() - began_s) / limits.interval_s)
    if not all(each.roles[Role.PREFILL].asked for each in memories):
        raise ProcessError("a tick read nothing: the pages are not served")
    return min(found)


def _spec() -> Any:
    role: dict[str, Any] = {"autoscaling": {}}
    raw = {"metadata": {"name": "p"}, "spec": {"model": {"id": "m"}, "prefill": role, "decode": role}}
    return InferencePool.parse(raw, strict=True).spec


def _observed(number: int) -> Observed:
    net = f"127.{20 + number // _POOLS_PER_NET}.{number % _POOLS_PER_NET}"
    roles = [*[Role.PREFILL] * ENGINES_PER_ROLE, *[Role.DECODE] * ENGINES_PER_ROLE, Role.ROUTER]
    pods = tuple(_pod(f"{role}-{place}", role, f"{net}.{place + 1}") for place, role in enumerate(roles))
    return Observed(PoolRef("bench", f"p{number}"), {"metadata": {"name": f"p{number}", "uid": str(number)}}, {}, pods)


def _pod(name: str, role: Role, ip: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "labels": {names.LABEL_ROLE: role.value}},
        "status": {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@contextmanager
def _pages() -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_serve, args=(ready,), daemon=True)
    process.start()
    try:
        if not ready.wait(_START_S):
            raise ProcessError("the pages of the ticks are not served: are their ports taken?")
        yield
    finally:
        process.terminate()
        process.join()


def _serve(ready: Any) -> None:
    engine = rendered([Metrics(connector=True, consumer=True, lora=False)], "m")
    router = "".join(
        f'# TYPE {ROUTER_METRICS_PREFIX}{name} gauge\n{ROUTER_METRICS_PREFIX}{name}{{endpoint="decode-2"}} 1\n'
        for name in ("queued", "inflight", "unstarted", "unstarted_prompt_tokens")
    ).encode()

    async def main() -> None:
        for port, page in ((names.ENGINE_HTTP_PORT, engine), (names.ROUTER_ADMIN_PORT, router)):
            app = web.Application()
            app.router.add_get("/metrics", _answer(page))
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - every address of 127.0.0.0/8
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(main())


def _answer(page: bytes) -> Any:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=page)

    return answer
