"""`pdpool validate`: every refusal and warning that the operator would give, without a cluster."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click

from pdpool_operator.cli.judgement import Judgement, judged
from pdpool_operator.cli.options import images, of_files, written

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command(short_help="Say what is refused and what is doubtful in a file.")
@of_files
@click.pass_context
def validate(
    ctx: click.Context, *, files: tuple[IO[str], ...], namespace: str | None, engine_image: str, router_image: str
) -> None:
    """Says of each pool in the files what the API server or the operator refuses, and what is doubtful.

    Nothing is asked of a cluster. The exit status is 0 when nothing is refused, with warnings too, else 1.
    """
    is_fine = True
    for file, each in written(files, namespace):
        found = judged(each, images(engine_image, router_image))
        is_fine = is_fine and not found.refusals
        for line in _lines(file, found):
            click.echo(line)
    ctx.exit(0 if is_fine else 1)


def _lines(file: str, found: Judgement) -> Iterator[str]:
    verdict = click.style("refused", fg="red", bold=True) if found.refusals else click.style("valid", fg="green")
    yield f"{file}: {found.name}: {verdict}"
    for refusal in found.refusals:
        yield f"  {click.style('refused', fg='red')}  {refusal.reason}: {refusal.message}"
    for remark in found.warnings:
        yield f"  {click.style('warning', fg='yellow')}  {remark.reason}: {remark.message}"
    if found.unchecked:
        yield f"  {click.style('note', fg='cyan')}     {found.unchecked}"
