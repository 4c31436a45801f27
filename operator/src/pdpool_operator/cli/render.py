"""`pdpool render`: the children of a pool as YAML, without a cluster."""

from __future__ import annotations

from typing import IO

import click

from pdpool_api import kubectl_yaml
from pdpool_operator import ownership
from pdpool_operator.cli.judgement import DEFAULT_OPERATOR_NAMESPACE, judged
from pdpool_operator.cli.options import images, of_files, written


@click.command(short_help="Print the children that a pool becomes.")
@of_files
@click.option(
    "--operator-namespace",
    default=DEFAULT_OPERATOR_NAMESPACE,
    show_default=True,
    help="Where the operator runs: NetworkPolicies let it in.",
)
@click.pass_context
def render(
    ctx: click.Context,
    *,
    files: tuple[IO[str], ...],
    namespace: str | None,
    engine_image: str,
    router_image: str,
    operator_namespace: str,
) -> None:
    """Prints every object that the operator makes of the pools in the files, as YAML.

    They are to be read and compared, not applied: only a pool that is stored has the uid by which it owns them. A pool
    that is refused prints its reasons to the standard error, and the exit status is 1.
    """
    is_fine = True
    for file, each in written(files, namespace):
        found = judged(each, images(engine_image, router_image), operator_namespace)
        for refusal in found.refusals:
            is_fine = False
            click.echo(f"{file}: {found.name}: {refusal.reason}: {refusal.message}", err=True)
        for remark in found.warnings:
            click.echo(f"{file}: {found.name}: warning: {remark.reason}: {remark.message}", err=True)
        for child in found.desired.children if found.desired is not None else ():
            body = ownership.without_none(child.body)
            click.echo("---\n" + kubectl_yaml.for_people(body), nl=False)
    ctx.exit(0 if is_fine else 1)
