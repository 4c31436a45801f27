"""Options that several subcommands take."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from pdpool_operator.cli import pool_files
from pdpool_operator.records import Images
from pdpool_operator.settings import DEFAULT_ENGINE_IMAGE, DEFAULT_ROUTER_IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdpool_operator.cli.pool_files import Written

F = TypeVar("F", bound="Callable[..., Any]")


def of_files(command: F) -> F:
    """`-f`, `-n` and the images that the operator would fill in."""
    for option in reversed(
        (
            click.option(
                "-f",
                "--filename",
                "files",
                type=click.File(encoding="utf-8"),
                multiple=True,
                required=True,
                help="File with pools; - is the standard input. May be repeated.",
            ),
            click.option("-n", "--namespace", help="Namespace of pools that name none."),
            click.option(
                "--engine-image",
                default=DEFAULT_ENGINE_IMAGE,
                show_default=True,
                help="Engine image where the pool names none: the operator's --engine-image.",
            ),
            click.option(
                "--router-image",
                default=DEFAULT_ROUTER_IMAGE,
                show_default=True,
                help="Router image where the pool names none: the operator's --router-image.",
            ),
        )
    ):
        command = option(command)
    return command


def of_cluster(command: F) -> F:
    """The pool's name, `-n` and `--context`."""
    for option in reversed(
        (
            click.argument("name"),
            click.option("-n", "--namespace", help="Namespace of the pool. Default: that of the context."),
            click.option("--context", help="Context of the kubeconfig. Default: its current one."),
        )
    ):
        command = option(command)
    return command


def images(engine_image: str, router_image: str) -> Images:
    """The two as one."""
    return Images(engine=engine_image, router=router_image)


def written(files: Sequence[IO[str]], namespace: str | None) -> list[tuple[str, Written]]:
    """Every pool of every file, with the file's name.

    Raises:
        click.ClickException: a file is no YAML, or none of them holds a pool.
    """
    found: list[tuple[str, Written]] = []
    for file in files:
        try:
            found += [(file.name, each) for each in pool_files.pools(file, namespace)]
        except pool_files.PoolFileError as fault:
            raise click.ClickException(f"{file.name}: {fault}") from fault
    if not found:
        raise click.ClickException(f"no InferencePool of pdpool.io in {', '.join(file.name for file in files)}")
    return found
