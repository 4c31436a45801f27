"""Events become wake-ups: kopf watches, this module passes on.

Boundary: kopf is used for listing and watching only. Its handlers are raw (`on.event`): they leave no finalizer,
annotation or status on any object. It runs in a thread of its own, because on its end it cancels every task of its
event loop that it did not know before, and takes over the process's signals.

`kopf.operator()` ends with an exception on some answers of an API server in trouble, and never picks up a kind that
was absent at its start. So it is supervised: entered when every kind is there, re-entered after an exception, and
when a kind has come back. Nor does it always end: where one watch was refused while another tries again, that one waits
for ever for a login that nobody answers any more. So its first task that ends counts as its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import kopf
import structlog

from pdpool_operator import telemetry
from pdpool_operator.observe.relist import Relist, selector
from pdpool_operator.records import REQUIRED, Json, PoolRef, Resource

if TYPE_CHECKING:
    from pdpool_operator.kube import Kube, Login
    from pdpool_operator.observe.cluster import Cluster

RETRY_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
_STOP_TIMEOUT_S: Final = 10.0
_LOGIN_TIMEOUT_S: Final = 10.0

Deliver = Callable[[Resource, str | None, Json], None]
"""Kind, type of the event (None: listed), object."""

_log = structlog.get_logger(__name__)


class Watches:
    """Runs kopf, again and again."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        relist: Relist,
        namespace: str | None,
        wake: Callable[[PoolRef], None],
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._relist = relist
        self._namespace = namespace
        self._wake = wake

    async def run(self) -> None:
        """Runs until cancelled."""
        for attempt in itertools.count():
            await self._relist.until(lambda serving: serving.issuperset(REQUIRED))
            began = asyncio.get_running_loop().time()
            await self._once()
            telemetry.WATCH_RESTARTS.inc()
            # Whatever ended it, the set of kinds may have changed, and events were missed.
            self._relist.hurry()
            quick = asyncio.get_running_loop().time() - began < RETRY_S[-1]
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)] if quick else RETRY_S[0])

    async def _once(self) -> None:
        """One life of kopf; ends with its end, or when a kind is gone from the API server, or new there."""
        loop = asyncio.get_running_loop()
        kinds = self._relist.serving

        def login() -> Login:
            # Asked for again when credentials were refused: tokens of pods are renewed in place.
            return asyncio.run_coroutine_threadsafe(self._kube.login(), loop).result(_LOGIN_TIMEOUT_S)

        running, ending = loop.create_future(), loop.create_future()

        def deliver(resource: Resource, kind: str | None, raw: Json) -> None:
            # What a life that does not end tells is older than what the next one knows; and what its first lists tell
            # is mostly known: thousands of objects need not wait in memory for the main loop to see that.
            if not ending.done() and (kind == "DELETED" or not self._cluster.knows(resource, raw)):
                _call(loop, self._deliver, resource, kind, raw)

        thread = _Thread(deliver, self._namespace, login, kinds, lambda: _call(loop, _done, ending))

        def live() -> None:
            thread.run()
            _call(loop, _done, running)

        # No thread of the loop's executor: what kopf does not end, for example while the API server is away, must not
        # hold up the end of the process.
        threading.Thread(target=live, name="kopf", daemon=True).start()
        changed = asyncio.create_task(self._relist.until(lambda serving: serving != kinds))
        try:
            await asyncio.wait([running, ending, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            _done(ending)
            thread.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running), _STOP_TIMEOUT_S)

    def _deliver(self, resource: Resource, kind: str | None, raw: Json) -> None:
        take = self._cluster.remove if kind == "DELETED" else self._cluster.put
        ref = take(resource, raw)
        if ref is not None:
            self._wake(ref)


def _done(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *event: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the main loop has ended: nobody is left to tell
        loop.call_soon_threadsafe(function, *event)


class _Thread:
    """kopf with an event loop of its own."""

    def __init__(
        self,
        deliver: Deliver,
        namespace: str | None,
        login: Callable[[], Login],
        kinds: frozenset[Resource],
        tell_ending: Callable[[], None],
    ) -> None:
        """`tell_ending` is called once a task has ended without which kopf does not go on."""
        self._deliver = deliver
        self._namespace = namespace
        self._login = login
        self._kinds = kinds
        self._tell_ending = tell_ending
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False

    def run(self) -> None:
        """Runs in the thread until stopped; never raises."""
        try:
            asyncio.run(self._main())
        except Exception as fault:  # noqa: BLE001 - kopf lets through whatever its client meets
            _log.warning("watches ended", fault=repr(fault))

    def stop(self) -> None:
        """Asks for the end, from another thread."""
        self._stopped = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopped:
            return
        scope: dict[str, Any] = {"namespaces": [self._namespace]} if self._namespace else {"clusterwide": True}
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=_registry(self._deliver, self._login, self._kinds),
            settings=_settings(self._kinds),
            standalone=True,  # peering would need objects and is no election; see lease.py
            stop_flag=self._stop,
            **scope,
        )
        for task in tasks:
            task.add_done_callback(lambda _: self._tell_ending())
        await kopf.run_tasks(tasks, ignored=others)


class _NoDiffs(kopf.DiffBaseStorage):
    """Keeps nothing: raw handlers ask for no differences, and kopf would copy every object of every event for them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        raise NotImplementedError("no handler of this operator has a state to store")


def _registry(deliver: Deliver, login: Callable[[], Login], kinds: frozenset[Resource]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def _login(**_: Any) -> kopf.ConnectionInfo:  # sync: kopf runs it in a thread, where it may wait
        found = login()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            token=found.token,
            certificate_path=found.certificate_path,
            private_key_path=found.private_key_path,
            insecure=found.insecure,
        )

    for resource in kinds:
        _register(registry, resource, deliver)
    return registry


def _register(registry: kopf.OperatorRegistry, resource: Resource, deliver: Deliver) -> None:
    # Async although nothing is awaited: kopf runs sync handlers in threads.
    async def _handle(event: Any, **_: Any) -> None:
        deliver(resource, event["type"], event["object"])

    kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(_handle)


def _settings(kinds: frozenset[Resource]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    # Scanning asks for namespaces and CRDs cluster-wide, which a namespaced operator may not.
    settings.scanning.disabled = True
    for resource in kinds:
        if (labels := selector(resource)) is not None:
            # By the server, for lists and watches; labels of a decorator filter in the client.
            settings.watching.label_selectors[resource.group, resource.version, resource.plural] = labels
    # Thousands of objects come at the start: in pages, each object in a task that waits so long for more of the same.
    settings.queueing.idle_timeout = 0.2
    settings.watching.chunk_size = 100
    settings.watching.connect_timeout = 5
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 20
    settings.networking.error_backoffs = [1, 2, 3] + [5] * 200
    settings.networking.enforce_retry_after = True
    return settings
