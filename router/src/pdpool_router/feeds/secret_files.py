"""The files of secrets that the configuration names, read again when they change.

Boundary: bytes of files; what they mean is the edge's. Content is compared, not a time or an inode: a mounted Secret
changes by a symbolic link. A change counts when two looks in a row have seen the same, so that a file is not taken
while it is being written; one that cannot be read leaves what was known in force. No content of a file is ever logged.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from pdpool_api.router_config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_api.router_config import RouterConfig

POLL_S: Final = 0.5
MAX_BYTES: Final = 16_777_216
_log = structlog.get_logger("pdpool_router")


class Secrets(NamedTuple):
    """Content of the files; None: not configured."""

    api_keys: bytes | None
    salt: bytes | None
    cert: bytes | None
    key: bytes | None

    def __repr__(self) -> str:
        return "Secrets(…)"


def read(config: RouterConfig) -> Secrets:
    """What the files of a configuration hold now.

    Raises:
        ConfigError: one cannot be read, or is empty where that would mean no secret at all.
    """
    found = Secrets(
        api_keys=_content("auth.apiKeysFile", config.auth.api_keys_file),
        salt=_content("auth.saltFile", config.auth.salt_file),
        cert=_content("tls.certFile", config.tls.cert_file),
        key=_content("tls.keyFile", config.tls.key_file),
    )
    if found.salt == b"":
        raise ConfigError(f"auth.saltFile: {config.auth.salt_file} is empty")
    return found


def _content(field: str, file: str) -> bytes | None:
    if not file:
        return None
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as fault:
        raise ConfigError(f"{field}: {file}: {fault.strerror or type(fault).__name__}") from fault
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{field}: {file} is longer than {MAX_BYTES} bytes")
    return content


class SecretFiles:
    """What was last taken over, and what has changed since."""

    def __init__(self, apply: Callable[[RouterConfig, Secrets], None]) -> None:
        """`apply` takes over changed content; it raises `ConfigError` where that is refused."""
        self._apply = apply
        self._config: RouterConfig | None = None
        self._taken: Secrets | None = None
        self._seen: Secrets | None = None
        self._complaint = ""

    def follow(self, config: RouterConfig, taken: Secrets) -> None:
        """From now on follows the files of this configuration, whose content was taken over already."""
        self._config, self._taken, self._seen = config, taken, taken

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            self.look()

    def look(self) -> None:
        """Looks once."""
        config = self._config
        if config is None or self._taken == (None, None, None, None):
            return
        try:
            now = read(config)
            settled, self._seen = now == self._seen, now
            if settled and now != self._taken:
                self._apply(config, now)
                self._taken = now
                _log.info("secret files read again")
        except ConfigError as fault:
            if str(fault) != self._complaint:
                _log.error("secret files refused, the old ones stay", reason=str(fault))
            self._complaint = str(fault)
        else:
            self._complaint = ""
