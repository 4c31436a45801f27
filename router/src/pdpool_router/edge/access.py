"""Who may ask for what: keys, the models and adapters of each, and the salt that keeps its KV apart from others'.

Boundary: an immutable view made from the configuration and the content of its secret files; who reads those files, and
when, is `feeds.secret_files`. Keys are kept hashed, with a secret of this process, and compared in constant time. What
may be logged of a client is its key's name, which comes from the file; a key without a name is a tenant of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.router_config import RouterConfig

_BEARER: Final = b"bearer "
_AUTHORIZATION: Final = b"authorization"
_X_API_KEY: Final = b"x-api-key"
CREDENTIAL_HEADERS: Final = (_AUTHORIZATION, _X_API_KEY)


class Key(NamedTuple):
    """A line of the keys file."""

    name: str
    """Empty: the line is the key alone."""
    key: bytes


class Client(NamedTuple):
    """Whoever holds a key."""

    name: str
    """The key's name; empty where it has none, or where nobody needs a key."""
    names: Mapping[str, str]
    """What it may ask for: served names and adapters, in order, each by itself."""
    salt: str
    """Goes into the keys of its KV blocks; empty: it has none."""
    tenant: str
    """Whose share of the router it takes: its name; of a key without one something that is nobody else's and says
    nothing of the key. Empty: where nobody needs a key."""


class Access:
    """Everybody who may ask, at one moment."""

    def __init__(self, config: RouterConfig, *, keys: bytes | None, salt: bytes | None) -> None:
        """`keys`, `salt`: content of `auth.apiKeysFile` and `auth.saltFile`; None: not configured."""
        model = config.model
        self.anybody: Final = Client("", _by_itself(*model.served_names, *model.adapters), "", "")
        """Who asks where nobody needs a key."""
        self.open: Final = keys is None
        self._secret = secrets.token_bytes(32)
        self._clients: dict[bytes, Client] = {}
        tenants = {tenant.key: tenant for tenant in config.tenants}
        for name, key in parse_keys(keys or b""):
            tenant = tenants.get(name) if name else None
            allowed = self.anybody.names
            if tenant is not None and (tenant.models or tenant.adapters):
                models, adapters = set(tenant.models), set(tenant.adapters)
                allowed = _by_itself(
                    *(one for one in model.served_names if not models or one in models),
                    *(one for one in model.adapters if not adapters or one in adapters),
                )
            salted = _salt(salt, name.encode() if name else key)
            digest = self._digest(key)
            # Of two lines with one key the first counts, as its reader would think.
            self._clients.setdefault(digest, Client(name, allowed, salted, name or digest.hex()))

    def __len__(self) -> int:
        return len(self._clients)

    def client(self, headers: Mapping[bytes, bytes]) -> Client | None:
        """Who sends these headers; None: nobody who may ask.

        A key comes as `Authorization: Bearer`, or as `x-api-key` from Anthropic's clients.
        """
        if self.open:
            return self.anybody
        bearer = headers.get(_AUTHORIZATION)
        if bearer is not None and bearer[: len(_BEARER)].lower() == _BEARER:
            found = self._holder(bearer[len(_BEARER) :].strip())
            if found is not None:
                return found
        key = headers.get(_X_API_KEY)
        return self._holder(key) if key is not None else None

    def _holder(self, key: bytes) -> Client | None:
        digest = self._digest(key)
        # By a hash that nobody outside can aim at: how long the look-up takes tells nothing of a key.
        return self._clients.get(digest)

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def parse_keys(text: bytes) -> list[Key]:
    """The keys of a file: one a line, or `name=key`, split at the first `=` that has something after it.

    What is nothing but `=` at a line's end is the padding of a key in base64, and part of it. Empty lines and lines
    that begin with `#` say nothing.
    """
    found = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        name, _, key = stripped.partition(b"=")
        if name.strip() and key.strip(b"= \t"):
            found.append(Key(name.strip().decode("utf-8", "replace"), key.strip()))
        else:
            found.append(Key("", stripped))
    return found


def own_salt(tenant: str, clients: str) -> str:
    """The salt of a request whose client gave one: still nobody else's, whatever was given."""
    return hmac.new(tenant.encode(), clients.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _salt(secret: bytes | None, name: bytes) -> str:
    return hmac.new(secret, name, hashlib.sha256).hexdigest() if secret is not None else ""


def _by_itself(*names: str) -> dict[str, str]:
    return {name: name for name in names}
