"""What the operator is told at its start: flags, and nothing else.

Boundary: parses and checks; starts nothing. Credentials come from `KUBECONFIG` or from the pod (see `kube.connection`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdpool_api import names
from pdpool_operator.records import Images

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_ENGINE_IMAGE: Final = "vllm/vllm-openai:v0.33.0"
DEFAULT_ROUTER_IMAGE: Final = "localhost/pdpool-router:0.1.0"
LEASE_NAME: Final = "pdpool-operator"
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Settings:
    """One operator's configuration."""

    namespace: str | None
    """The only namespace that is looked at; None: all of them."""
    secret_namespaces: frozenset[str]
    """Where Secrets may be read; the only namespace that is looked at is always among them."""
    host: str | None
    """Address of the port; None: every address, of IPv4 and IPv6."""
    port: int
    images: Images
    log_level: str
    log_format: str


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Reads the command line (None: the process's own).

    Raises:
        SystemExit: a flag is unknown or its value breaks a rule; the message names it.
    """
    parser = argparse.ArgumentParser(
        prog="pdpool-operator",
        description=f"Turns {names.CRD_NAME} into prefill, decode and router workloads.",
        epilog="Credentials: KUBECONFIG when set, else the service account of the pod.",
        allow_abbrev=False,
    )
    parser.add_argument("--namespace", type=_word, help="look at this namespace only (needs no cluster-wide rights)")
    parser.add_argument(
        "--secret-namespace",
        type=_word,
        action="append",
        default=[],
        help="roll pods whose Secrets change in this namespace (repeatable; needs `get` on Secrets there)",
    )
    parser.add_argument(
        "--port", type=_port, default=names.OPERATOR_PORT, help="port of /livez, /readyz and /metrics (%(default)s)"
    )
    parser.add_argument(
        "--host",
        type=_word,
        help="address of the port, IPv4 or IPv6 (default: every address of both)",
    )
    parser.add_argument(
        "--router-image", type=_word, default=DEFAULT_ROUTER_IMAGE, help="image of pools' routers (%(default)s)"
    )
    parser.add_argument(
        "--engine-image", type=_word, default=DEFAULT_ENGINE_IMAGE, help="image of pools' engines (%(default)s)"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("console", "json"), default="console")
    given = parser.parse_args(arguments)
    return Settings(
        namespace=given.namespace,
        secret_namespaces=frozenset([*given.secret_namespace, *([given.namespace] if given.namespace else [])]),
        host=given.host,
        port=given.port,
        images=Images(engine=given.engine_image, router=given.router_image),
        log_level=given.log_level,
        log_format=given.log_format,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to {_MAX_PORT}; 0: any free one)")
    return int(text)


def _word(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise argparse.ArgumentTypeError(f"{text!r} must be one word")
    return text
