"""The cluster as a person's kubeconfig reaches it, and a pool in it with what belongs to it.

Boundary: reads only. No Secret is ever asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from pdpool_api import names
from pdpool_operator import kube
from pdpool_operator.kube import ApiError, ForbiddenError, Kube
from pdpool_operator.observe.cluster import pool_owner
from pdpool_operator.records import DEPLOYMENTS, PODS, POOLS, Json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A pool, its Deployments and its pods, as the API server has them."""

    pool: Json
    deployments: tuple[Json, ...]
    pods: tuple[Json, ...]

    @property
    def namespace(self) -> str:
        """Where it is."""
        return str(self.pool["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.pool["metadata"]["name"])

    @property
    def selector(self) -> str:
        """Label selector of all that belongs to it."""
        return f"{names.LABEL_POOL}={names.label_value(self.name)}"


def run(work: Coroutine[None, None, T]) -> T:
    """Runs a command's work.

    Raises:
        click.ClickException: there are no credentials, or the API server does not do what is asked.
    """
    try:
        return asyncio.run(work)
    except kube.ConfigException as fault:
        raise click.ClickException(f"no cluster: {fault}") from fault
    except ForbiddenError as fault:
        raise click.ClickException(f"not allowed: {fault.words}") from fault
    except ApiError as fault:
        raise click.ClickException(str(fault)) from fault


@contextlib.asynccontextmanager
async def connected(context: str | None) -> AsyncIterator[Kube]:
    """Calls to the cluster of the kubeconfig."""
    configuration = await kube.connection(context)
    async with Kube(configuration, agent="pdpool", patience_s=10) as api:
        yield api


async def find(api: Kube, namespace: str, name: str) -> Found:
    """The pool with what belongs to it.

    Raises:
        click.ClickException: there is no such pool.
    """
    pool = await api.get(POOLS, namespace, name)
    if pool is None:
        raise click.ClickException(f"no {names.CRD_NAME} {name!r} in namespace {namespace!r}")
    selector = f"{names.LABEL_POOL}={names.label_value(name)}"
    deployments, pods = await asyncio.gather(
        api.list_all(DEPLOYMENTS, namespace, selector), api.list_all(PODS, namespace, selector)
    )
    owned = tuple(each for each in deployments.items if (pool_owner(each) or {}).get("uid") == pool["metadata"]["uid"])
    return Found(pool, owned, pods.items)
