"""The command group of `pdpool`: finds its subcommands among the installed packages' entry points.

Boundary: knows no subcommand. One that cannot be loaded says so when it is called, and spoils no other.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

GROUP: Final = "pdpool.commands"
"""Entry points of this group are click commands, named as they are called."""


class Subcommands(click.Group):
    """Every command that an installed package offers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the alphabet."""
        return sorted({*super().list_commands(ctx), *_offered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None: no package offers it."""
        offered = _offered().get(cmd_name)
        return super().get_command(ctx, cmd_name) if offered is None else _loaded(offered)


def _offered() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}


def _loaded(offered: EntryPoint) -> click.Command:
    try:
        found = offered.load()
    except Exception as fault:  # noqa: BLE001 - another package's import may fail in any way
        return _broken(offered, repr(fault))
    return found if isinstance(found, click.Command) else _broken(offered, f"{offered.value} is no click command")


def _broken(offered: EntryPoint, why: str) -> click.Command:
    def say() -> None:
        raise click.ClickException(f"{offered.name} cannot be loaded: {why}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return click.Command(
        offered.name, callback=say, short_help="(cannot be loaded)", context_settings=settings, add_help_option=False
    )


@click.group(
    name="pdpool",
    cls=Subcommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="pdpool-operator", prog_name="pdpool")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Looks at pools of pdpool: in files without a cluster, and in the cluster of your kubeconfig."""
    # click leaves colours out of pipes by itself; https://no-color.org asks for more.
    ctx.color = False if os.environ.get("NO_COLOR") else None
