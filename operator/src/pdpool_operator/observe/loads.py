"""What leaving pods still have to do: asked of the pool's routers and, for prefill, of the engine itself.

Boundary: reads, and remembers since when a pod has been seen without a request, as a lease of KV counts from there.
Every router counts that may still have a stream open, a terminating one too; one that runs nowhere has none. What
cannot be read is unknown, never zero.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_api.engines.vllm import metrics as engine_metrics
from pdpool_api.names import Role
from pdpool_operator.observe import workload
from pdpool_operator.observe.prometheus import UnreadError
from pdpool_operator.records import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_operator.observe.exposition import Page
    from pdpool_operator.observe.metrics import Pages
    from pdpool_operator.records import Json, Observed

INFLIGHT: Final = f"{names.ROUTER_METRICS_PREFIX}inflight"


class Loads:
    """The loads of one pool's pods."""

    def __init__(self, pages: Pages, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pages = pages
        self._clock = clock
        self._idle_since: dict[str, float] = {}

    async def read(self, observed: Observed, uids: Iterable[str]) -> dict[str, Load]:
        """The load of each pod, by uid; faults are in it, none is raised."""
        wanted = set(uids)
        pods = [pod for pod in observed.pods if pod["metadata"].get("uid") in wanted]
        routers = [pod for pod in workload.pods(observed, Role.ROUTER) if _may_have_work(pod)]
        pages = await asyncio.gather(*(self._page(pod, names.ROUTER_ADMIN_PORT, [INFLIGHT]) for pod in routers))
        requests = {pod["metadata"]["uid"]: _requests(pages, pod["metadata"]["name"]) for pod in pods}
        self._idle_since = {
            uid: self._idle_since.get(uid, self._clock()) for uid, count in requests.items() if count == 0
        }
        holding = await asyncio.gather(*(self._holds_kv(pod) for pod in pods))
        return {
            uid: Load(count, holds_kv, self._clock() - self._idle_since.get(uid, self._clock()))
            for (uid, count), holds_kv in zip(requests.items(), holding, strict=True)
        }

    async def _holds_kv(self, pod: Json) -> bool | None:
        """False on every role but prefill: nobody comes to pull there."""
        if pod["metadata"]["labels"].get(names.LABEL_ROLE) != Role.PREFILL or not _may_have_work(pod):
            return False
        page = await self._page(pod, names.ENGINE_HTTP_PORT, engine_metrics.KV_USAGE.names)
        used = page.largest(*engine_metrics.KV_USAGE.names) if page is not None else None
        return None if used is None else used > 0

    async def _page(self, pod: Json, port: int, wanted: Iterable[str]) -> Page | None:
        address = workload.address(pod, port)
        assert address is not None
        try:
            return await self._pages.page(address, wanted)
        except UnreadError:
            return None


def _may_have_work(pod: Json) -> bool:
    """True for a pod with an address and a container that runs; it may terminate, or not be ready."""
    states = pod.get("status", {}).get("containerStatuses", ())
    return workload.address(pod, 0) is not None and any("running" in each.get("state", {}) for each in states)


def _requests(pages: Iterable[Page | None], pod: str) -> int | None:
    """Requests in flight at a pod, over all routers; None: one of them did not say."""
    total = 0.0
    for page in pages:
        if page is None or page.total(INFLIGHT) is None:
            return None
        total += sum(each.value for each in page.samples(INFLIGHT) if each.labels.get("endpoint") == pod)
    return int(total)
