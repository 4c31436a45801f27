"""The operator's process: puts the parts together, and takes them down in order.

Boundary: wiring and signals. Every replica watches and lists, so that it is warm; only the leader writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_operator import kube, telemetry
from pdpool_operator.handlers import Watches
from pdpool_operator.kube import Kube
from pdpool_operator.lease import Election
from pdpool_operator.observe.cluster import Cluster
from pdpool_operator.observe.relist import Relist
from pdpool_operator.probes import Probes, serving
from pdpool_operator.settings import LEASE_NAME, Settings, parse
from pdpool_operator.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

COLLECTIONS: Final = (10_000, 10, 50)
"""`gc.set_threshold`: what is built of pools lives long, and by default the collector walked through all of it every
few seconds, during which nothing else was done: a quarter of a second with 250 pools."""

_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `pdpool-operator`; returns the exit status."""
    gc.set_threshold(*COLLECTIONS)
    settings = parse(arguments)
    telemetry.configure_logs(settings.log_level, settings.log_format)
    _allow_connections()
    try:
        asyncio.run(_until_stopped(settings))
    except kube.ConfigException as fault:
        _log.error("no credentials", fault=str(fault))
        return 2
    return 0


def _allow_connections() -> None:
    """Raises the soft limit of open files, often 1024, to the hard one: a connection to each engine is kept."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _until_stopped(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = asyncio.create_task(_run(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if running.done():
        running.result()
        return
    _log.info("stopping")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _run(settings: Settings) -> None:
    configuration = await kube.connection()
    cluster = Cluster()
    # The Lease has connections of its own: it must not wait behind the writes that it permits.
    lease_api = Kube(configuration, in_flight=2, timeout_s=4, patience_s=4)
    election = Election(lease_api, _home(settings), LEASE_NAME, _identity())
    async with lease_api, Kube(configuration, may_write=election.may_write) as api:
        workers = Workers(
            api,
            cluster,
            settings.images,
            kube.own_namespace(),
            secret_namespaces=settings.secret_namespaces,
            key_namespace=_home(settings),
        )
        relist = Relist(api, cluster, settings.namespace, workers.wake)
        watches = Watches(api, cluster, relist, settings.namespace, workers.wake)
        async with (
            serving(Probes(api, cluster, relist), settings.port, settings.host) as port,
            asyncio.TaskGroup() as tasks,
        ):
            _log.info("started", port=port, namespace=settings.namespace or "every")
            tasks.create_task(relist.run(), name="re-list")
            tasks.create_task(watches.run(), name="watches")
            tasks.create_task(election.run(workers.act), name="election")
            await cluster.completed.wait()
            # What is known now mostly stays: a collector that walks through all of it holds up everything meanwhile.
            gc.collect()
            gc.freeze()


def _home(settings: Settings) -> str:
    """Where the operator keeps what is its own: the Lease, and the key of its digests."""
    return kube.own_namespace() or settings.namespace or "default"


def _identity() -> str:
    """Unique to this life of the process: a restarted one must not take its own old Lease for its own."""
    return f"{os.environ.get('HOSTNAME', 'pdpool-operator')}_{uuid.uuid4()}"


if __name__ == "__main__":
    sys.exit(main())
