"""`pdpool status`: a person's view of one pool."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from pdpool_operator import kube
from pdpool_operator.cli import pool_view
from pdpool_operator.cli.access import Found, connected, find, run
from pdpool_operator.cli.options import of_cluster


@click.command(short_help="Show a pool: roles, revisions, pods, and why.")
@of_cluster
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form.")
def status(*, name: str, namespace: str | None, context: str | None, output: str) -> None:
    """Shows what a pool is doing: whether it is ready and why not, its roles, its revisions and its pods."""
    found = run(_found(name, namespace, context))
    shown = pool_view.view(found, datetime.now(UTC))
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    for line in pool_view.lines(shown):
        click.echo(line)


async def _found(name: str, namespace: str | None, context: str | None) -> Found:
    async with connected(context) as api:
        return await find(api, namespace or kube.context_namespace(context), name)
