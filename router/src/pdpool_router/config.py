"""Where the configuration comes from: flags, or a file that is read again when it changes.

Boundary: arguments and files into a `RouterConfig`; its rules are the contract's (`pdpool_api.router_config`).
"""

from __future__ import annotations

import argparse
import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from pdpool_api.names import ROUTER_ADMIN_PORT, ROUTER_API_PORT, Role
from pdpool_api.router_config import ConfigError, RouterConfig, from_mapping, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S: Final = 1.0
_LAST_PORT: Final = 65_535
_log = structlog.get_logger("pdpool_router")


class Settings(NamedTuple):
    """What the command line says."""

    config: RouterConfig
    file: Path | None
    """Where the configuration was read from; None: from flags."""
    host: str
    port: int
    admin_port: int
    log_level: str
    log_format: str
    access_log: float
    """Share of the requests that are logged, in [0, 1]; 0: no access log at all."""


def settings(arguments: Sequence[str] | None = None) -> Settings:
    """Reads the command line, and the file that it names.

    Raises:
        ConfigError: a flag or a field is refused; the message names it.
    """
    flags = _parser().parse_args(arguments)
    shape = bool(flags.model or flags.prefill or flags.decode or flags.endpoint)
    if flags.config is not None:
        if shape:
            raise ConfigError("--config: not together with --model, --prefill, --decode or --endpoint")
        config = read(flags.config)
    else:
        config = _from_flags(flags)
    return Settings(
        config,
        flags.config,
        flags.host,
        flags.port,
        flags.admin_port,
        flags.log_level,
        flags.log_format,
        flags.access_log,
    )


def read(file: Path) -> RouterConfig:
    """The configuration in a file.

    Raises:
        ConfigError: it cannot be read, or is refused.
    """
    return parse(_text(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{file}: {fault}") from fault


async def watch(file: Path, current: RouterConfig, apply: Callable[[RouterConfig], None]) -> None:
    """Applies each valid new content of a file, until cancelled; a refused one is logged and the old one stays.

    The content is compared, not a time: a mounted ConfigMap changes by a symbolic link whose target may be older.
    """
    seen = ""
    complaint = ""
    while True:
        await asyncio.sleep(POLL_S)
        try:
            text = _text(file)
        except ConfigError as fault:
            text = str(fault)
        if text == seen:
            continue
        seen = text
        try:
            new = read(file)
        except ConfigError as fault:
            _log.error("configuration refused, the old one stays", file=str(file), reason=str(fault))
            continue
        if new == current:
            continue
        try:
            apply(new)
        except ConfigError as fault:
            # A file that it names may come, or be mended, without a change of this one.
            seen = ""
            if str(fault) != complaint:
                _log.error("configuration refused, the old one stays", file=str(file), reason=str(fault))
            complaint = str(fault)
            continue
        except Exception as fault:  # noqa: BLE001 - a defect must not end the watch: the next file may mend it
            _log.error("configuration not applied", file=str(file), kind=type(fault).__name__, reason=str(fault))
            continue
        current = new
        complaint = ""
        _log.info("configuration applied", file=str(file))


def _from_flags(flags: argparse.Namespace) -> RouterConfig:
    if not flags.model:
        raise ConfigError("--model: required unless --config is given")
    static = [
        {"role": role.value, "url": url}
        for role, urls in (
            (Role.PREFILL, flags.prefill),
            (Role.DECODE, flags.decode),
            (Role.AGGREGATED, flags.endpoint),
        )
        for url in urls
    ]
    raw: dict[str, Any] = {"model": {"servedNames": flags.model}, "endpoints": {"static": static}}
    return from_mapping(raw)


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return share


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{number} is not between 0 and 65535")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pdpool-router",
        description="One OpenAI-compatible URL before prefill and decode engines.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('pdpool-router')}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (YAML), read again when it changes"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="served name; the first is the primary"
    )
    parser.add_argument("--prefill", action="append", default=[], metavar="URL", help="a prefill engine")
    parser.add_argument("--decode", action="append", default=[], metavar="URL", help="a decode engine")
    parser.add_argument("--endpoint", action="append", default=[], metavar="URL", help="an engine that does both")
    parser.add_argument("--host", default="0.0.0.0", help="address of both ports")  # noqa: S104 - a server\'s default
    parser.add_argument("--port", type=_port, default=ROUTER_API_PORT, help="API port (%(default)s); 0: any")
    parser.add_argument("--admin-port", type=_port, default=ROUTER_ADMIN_PORT, help="admin port (%(default)s); 0: any")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("json", "console"), default="json")
    parser.add_argument(
        "--access-log",
        type=_share,
        nargs="?",
        const=1.0,
        default=0.0,
        metavar="SHARE",
        help="one JSON line a request, of all or of a share of them; answers of 500 and above are always logged",
    )
    return parser
