"""`pdpool import`: another system's manifests as pools, with a remark for each thing that could not be carried over."""

from __future__ import annotations

from typing import IO

import click
import yaml

from pdpool_api import kubectl_yaml
from pdpool_api.pool import InferencePool, PoolError
from pdpool_operator.cli.importing import SOURCES, CarryError, imported


@click.command(name="import", short_help="Make pools out of another system's manifests.")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.File(encoding="utf-8"),
    multiple=True,
    required=True,
    help="Helm values or manifests; - is the standard input. May be repeated.",
)
@click.option("--from", "source", type=click.Choice(sorted(SOURCES)), help="What they are of. Default: as they look.")
@click.pass_context
def import_(ctx: click.Context, *, files: tuple[IO[str], ...], source: str | None) -> None:
    """Prints InferencePools for manifests of NVIDIA Dynamo, llm-d or vLLM's production stack, as YAML.

    A comment above a pool names each thing that could not be carried over: read them before you apply anything. The
    exit status is 1 where nothing could be made of a file.
    """
    is_fine = True
    for file in files:
        try:
            documents = [each for each in yaml.load_all(file, Loader=kubectl_yaml.Loader) if isinstance(each, dict)]
            found = imported(documents, source)
        except (yaml.YAMLError, CarryError) as fault:
            raise click.ClickException(f"{file.name}: {fault}") from fault
        if not found:
            click.echo(f"{file.name}: nothing of {', '.join(sorted(SOURCES))} is in it", err=True)
            is_fine = False
        for each in found:
            remarks = [*each.remarks, *_faults(each.pool)]
            click.echo("---\n" + "".join(f"# {' '.join(remark.split())}\n" for remark in remarks), nl=False)
            click.echo(kubectl_yaml.for_people(each.pool), nl=False)
    ctx.exit(0 if is_fine else 1)


def _faults(pool: dict[str, object]) -> list[str]:
    """What the API server would refuse, said beside the pool instead of only when it is applied."""
    try:
        InferencePool.parse(pool, strict=True)
    except PoolError as fault:
        return [f"to be mended: {fault}"]
    return []
