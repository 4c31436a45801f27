"""TLS of the API port: one context whose certificate is replaced in place.

Boundary: the context; the server hands it to the event loop. A new certificate is tried on a context of its own first,
so that one that does not fit its key changes nothing; connections that are open keep theirs.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from pdpool_api.router_config import ConfigError

if TYPE_CHECKING:
    from pdpool_api.router_config import Tls


def context(tls: Tls) -> ssl.SSLContext:
    """A server's context with the certificate of the configuration.

    Raises:
        ConfigError: the files are no certificate and its key.
    """
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    load(made, tls)
    return made


def load(into: ssl.SSLContext, tls: Tls) -> None:
    """Puts the certificate of the files into a context; handshakes from now on show it.

    Raises:
        ConfigError: see `context`.
    """
    try:
        # An encrypted key would have OpenSSL ask on the terminal.
        into.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse)
    except (ssl.SSLError, OSError, ValueError) as fault:
        why = getattr(fault, "reason", None) or getattr(fault, "strerror", None) or str(fault)
        raise ConfigError(f"tls: {tls.cert_file} and {tls.key_file} are no certificate and its key: {why}") from fault


def _refuse() -> str:
    raise ValueError("the key has a passphrase")
