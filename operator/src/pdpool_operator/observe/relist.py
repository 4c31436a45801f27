"""The periodic re-list: corrects what watches lost, and proves that the API can be read.

Boundary: reads lists into the store and wakes whom they concern. `/readyz` and `/livez` rest on this loop and not on
the watches, because a silent stream and a healthy one look alike.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api import names
from pdpool_operator.kube import ApiError, ForbiddenError, Kube, NotFoundError
from pdpool_operator.records import OPTIONAL_RESOURCES, POOLS, WATCHED, PoolRef, Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_operator.observe.cluster import Cluster

PERIOD_S: Final = 60.0
"""Each kind is listed so often, one after another at even distances: an edit waits behind one list, not behind all."""
RETRY_S: Final = 3.0
AT_ONCE: Final = 2
"""Kinds listed side by side where all are wanted now: more hold up whatever else the API server is asked."""
SELECTOR: Final = names.LABEL_POOL
"""Children and pods carry this label; the server leaves out everything else."""

_log = structlog.get_logger(__name__)


def selector(resource: Resource) -> str | None:
    """What lists and watches of a kind ask for."""
    return None if resource is POOLS else SELECTOR


class Relist:
    """Lists every kind now and then; knows which kinds the API server has and when it last answered."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        namespace: str | None,
        wake: Callable[[PoolRef], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._namespace = namespace
        self._wake = wake
        self._clock = clock
        self._hurry = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._serving: frozenset[Resource] = frozenset()
        self._good = False
        self._changed = asyncio.Condition()
        self.good_at = float("-inf")
        """When (by `clock`) the latest list ended with which every kind was listed within a period."""

    @property
    def serving(self) -> frozenset[Resource]:
        """Kinds that were listed once and have not been found missing since."""
        return self._serving

    async def until(self, condition: Callable[[frozenset[Resource]], bool]) -> None:
        """Waits until the set of kinds that can be listed is as asked."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self._serving))

    def hurry(self) -> None:
        """Asks for a list of every kind now."""
        self._hurry.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        kinds = itertools.cycle(WATCHED)
        while True:
            await self._round()
            while self._good and not await self._hurried(PERIOD_S / len(WATCHED)):
                await self._one(next(kinds), consistent=False)
                self._stamp()
            if not self._good:
                await self._hurried(RETRY_S)

    async def _hurried(self, within_s: float) -> bool:
        """Waits; True as soon as a list of every kind is asked for."""
        try:
            async with asyncio.timeout(within_s):
                await self._hurry.wait()
        except TimeoutError:
            return False
        self._hurry.clear()
        return True

    async def _round(self) -> None:
        # After a failure the server's cache may be behind: then the consistent, dearer list.
        consistent, self._good = not self._good, True
        await asyncio.gather(*(self._one(resource, consistent=consistent) for resource in WATCHED))
        self._stamp()

    def _stamp(self) -> None:
        if self._good:
            self.good_at = self._clock()

    async def _one(self, resource: Resource, *, consistent: bool) -> None:
        try:
            async with self._slots:
                namespace, labels = self._namespace, selector(resource)
                listing = await self._kube.list_heads(resource, namespace, labels, consistent=consistent)
        except ApiError as fault:
            if resource in OPTIONAL_RESOURCES:
                await self._do_without(resource, fault)
                return
            self._good = False
            _log.warning("list failed", resource=str(resource), fault=str(fault))
            if isinstance(fault, NotFoundError):
                await self._note(resource, serving=False)
            return
        for ref in self._cluster.replace(resource, listing.items, listing.version, consistent=consistent):
            self._wake(ref)
        await self._note(resource, serving=True)

    async def _do_without(self, resource: Resource, fault: ApiError) -> None:
        """A kind of another project may be absent, forbidden or broken: the operator neither waits nor gets unready.

        What was listed once and fails for now is kept, so that a short fault changes nothing.
        """
        is_for_good = isinstance(fault, NotFoundError | ForbiddenError)
        if not is_for_good:
            _log.warning("list failed", resource=str(resource), fault=str(fault))
        if is_for_good or resource not in self._serving:
            for ref in self._cluster.lack(resource):
                self._wake(ref)
            await self._note(resource, serving=False)

    async def _note(self, resource: Resource, *, serving: bool) -> None:
        if (resource in self._serving) is serving:
            return
        async with self._changed:
            self._serving = self._serving | {resource} if serving else self._serving - {resource}
            self._changed.notify_all()
