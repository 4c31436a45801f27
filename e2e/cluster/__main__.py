"""The command line of the cluster tool; see `python -m e2e.cluster --help`.

Boundary: arguments in, calls of the library, answers on stdout; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster import binaries, debian
from e2e.cluster.cluster import Cluster
from e2e.cluster.layout import known_names, load
from e2e.cluster.lifecycle import DEFAULT_CONTROL_PLANE_NAME, DEFAULT_NODE_NAME, down, status, up
from e2e.cluster.progress import ClusterError, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        chosen.act(chosen)
    except ClusterError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster",
        description="A real one-node Kubernetes of this machine, or an API server alone, without an image registry.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("up", help="bring a cluster up; quick if it is up, and a half-dead one is replaced")
    one.add_argument(
        "--control-plane-only", action="store_true", help="etcd, API server and controllers: no root, many at once"
    )
    _add_name(one)
    one.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait for another run on the same cluster"
    )
    one.set_defaults(act=_up)

    one = commands.add_parser("down", help="take a cluster down and leave nothing of it but its logs")
    _add_name(one)
    one.add_argument(
        "--control-plane-only", action="store_true", help=f"the default name is {DEFAULT_CONTROL_PLANE_NAME}"
    )
    one.add_argument("--all", action="store_true", help="every cluster of this machine")
    one.add_argument("--purge", action="store_true", help="the logs too")
    one.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait for another run on the same cluster"
    )
    one.set_defaults(act=_down)

    one = commands.add_parser("status", help="what runs, as JSON; of every cluster unless one is named")
    _add_name(one)
    one.set_defaults(act=_status)

    one = commands.add_parser(
        "kubeconfig", help="print a kubeconfig: the administrator's, or a fresh one of somebody else"
    )
    _add_name(one)
    whose = one.add_mutually_exclusive_group()
    whose.add_argument("--service-account", metavar="NAMESPACE/NAME", help="by token")
    whose.add_argument("--user", help="by client certificate")
    one.add_argument("--group", action="append", default=[], help="a group of --user; may be repeated")
    one.set_defaults(act=_kubeconfig)

    one = commands.add_parser("build", help="install and build every program of the cluster now, so that `up` need not")
    one.add_argument(
        "--clean-go-caches", action="store_true", help="then remove what Go downloaded and compiled, some 5 GB"
    )
    one.set_defaults(act=_build)

    one = commands.add_parser("import-image", help="bring OCI archives into the node")
    _add_name(one)
    one.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    one.set_defaults(act=_import_image)
    return parser


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", help=f"default: {DEFAULT_NODE_NAME}, or {DEFAULT_CONTROL_PLANE_NAME} with --control-plane-only"
    )


def _up(chosen: argparse.Namespace) -> None:
    cluster = up(chosen.name, control_plane_only=chosen.control_plane_only, wait_s=chosen.wait)
    print(cluster.kubeconfig)


def _down(chosen: argparse.Namespace) -> None:
    default = DEFAULT_CONTROL_PLANE_NAME if chosen.control_plane_only else DEFAULT_NODE_NAME
    for name in known_names() if chosen.all else [chosen.name or default]:
        down(name, keep_logs=not chosen.purge, wait_s=chosen.wait)


def _status(chosen: argparse.Namespace) -> None:
    names = [chosen.name] if chosen.name else known_names()
    print(json.dumps([status(name) for name in names], indent=2))


def _kubeconfig(chosen: argparse.Namespace) -> None:
    cluster = _running(chosen.name)
    path = cluster.kubeconfig
    if chosen.service_account:
        namespace, slash, name = chosen.service_account.partition("/")
        if not slash or not namespace or not name:
            raise ClusterError(f"--service-account {chosen.service_account!r}: must be NAMESPACE/NAME")
        path = cluster.kubeconfig_for_service_account(namespace, name)
    elif chosen.user:
        path = cluster.kubeconfig_for_user(chosen.user, chosen.group)
    print(path.read_text(), end="")


def _build(chosen: argparse.Namespace) -> None:
    progress = Progress("build")
    debian.ensure(debian.NODE_PACKAGES, progress)
    wanted = [name for name in binaries.PROGRAMS if name not in binaries.ON_REQUEST]
    for name, path in binaries.ensure(wanted, progress).items():
        print(f"{name}\t{path}")
    if chosen.clean_go_caches:
        binaries.clean_go_caches()


def _import_image(chosen: argparse.Namespace) -> None:
    cluster = _running(chosen.name)
    for archive in chosen.archives:
        if not archive.is_file():
            raise ClusterError(f"{archive}: no such archive")
        for image in cluster.import_image(archive):
            print(image)


def _running(name: str | None) -> Cluster:
    layout = load(name or DEFAULT_NODE_NAME)
    if layout is None:
        raise ClusterError(f"the cluster {name or DEFAULT_NODE_NAME!r} is not up")
    return Cluster(layout)


if __name__ == "__main__":
    sys.exit(main())
