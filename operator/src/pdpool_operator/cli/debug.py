"""`pdpool debug`: a bundle to attach to a report."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import click

from pdpool_operator import kube
from pdpool_operator.cli.access import connected, find, run
from pdpool_operator.cli.bundle import Bundle, gather
from pdpool_operator.cli.judgement import DEFAULT_OPERATOR_NAMESPACE
from pdpool_operator.cli.options import of_cluster


@click.command(short_help="Gather what is needed to see what is wrong with a pool.")
@of_cluster
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to make. Default: named by pool and time.",
)
@click.option(
    "--operator-namespace",
    default=DEFAULT_OPERATOR_NAMESPACE,
    show_default=True,
    help="Where the operator runs: its logs are gathered too.",
)
def debug(
    *, name: str, namespace: str | None, context: str | None, output: Path | None, operator_namespace: str
) -> None:
    """Writes a tar file with a pool, its children, pods, events, logs, and what its routers know.

    No Secret is read, and what looks like a credential or a prompt is taken out; look through it all the same before
    you hand it on. What could not be read is listed in problems.txt.
    """
    now = datetime.now(UTC)
    top = f"pdpool-{name}-{now:%Y%m%d-%H%M%S}"
    target = output or Path(f"{top}.tar.gz")
    bundle = run(_gathered(name, namespace, context, operator_namespace, now))
    content = bundle.archive(top, now)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as fault:
        raise click.ClickException(f"{target}: {fault.strerror}") from fault
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    click.echo(f"{target}: {len(content):,} bytes" + (f"; not read: {len(bundle.problems)}" if bundle.problems else ""))


async def _gathered(
    name: str, namespace: str | None, context: str | None, operator_namespace: str, now: datetime
) -> Bundle:
    async with connected(context) as api:
        found = await find(api, namespace or kube.context_namespace(context), name)
        return await gather(api, found, operator_namespace, now)
