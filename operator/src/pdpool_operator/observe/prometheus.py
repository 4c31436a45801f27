"""A Prometheus that a pool names: instant queries, with a deadline, credentials from Secrets and TLS.

Boundary: asks and reads answers; which series belong to which pod is decided by `attribution`. The client is a blocking
one and runs in a thread. Faults name the address and what happened, and nothing that an answer or a header holds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
import ssl
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.adapters import HTTPAdapter

from pdpool_operator.kube import ApiError, ForbiddenError, Kube
from pdpool_operator.records import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.scaling_spec import Prometheus as Settings
    from pdpool_api.served_model import SecretKey

SECRETS: Final = Resource("", "v1", "secrets", "Secret")
_STATUS: Final = re.compile(r"HTTP Status Code (\d{3})")


class UnreadError(Exception):
    """Nothing could be read; the message says where and why, without credentials."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sample of an instant vector."""

    labels: Mapping[str, str]
    value: float
    """A finite number, or NaN: unknown."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the Secrets of a pool's `prometheus` hold."""

    token: str = ""
    user: str = ""
    password: str = ""
    authorities: str = ""
    """PEM; empty: the public ones."""


async def credentials(kube: Kube, namespace: str, settings: Settings) -> Credentials:
    """Reads the Secrets that the settings name.

    Raises:
        UnreadError: a Secret or a key is missing, or may not be read.
    """
    token, basic, ca = settings.bearer_token_secret_ref, settings.basic_auth_secret_ref, settings.tls.ca_secret_ref
    return Credentials(
        token="" if token is None else await _key(kube, namespace, token.name, token.key),
        user="" if basic is None else await _key(kube, namespace, basic.name, "username"),
        password="" if basic is None else await _key(kube, namespace, basic.name, "password"),
        authorities="" if ca is None else await _of(kube, namespace, ca),
    )


async def _of(kube: Kube, namespace: str, reference: SecretKey) -> str:
    return await _key(kube, namespace, reference.name, reference.key)


async def _key(kube: Kube, namespace: str, name: str, key: str) -> str:
    try:
        secret = await kube.get(SECRETS, namespace, name)
    except ForbiddenError:
        raise UnreadError(f"Secret {name} may not be read: the operator was not given the right to") from None
    except ApiError as fault:
        raise UnreadError(f"Secret {name} could not be read: {fault}") from None
    if secret is None:
        raise UnreadError(f"Secret {name} does not exist")
    try:
        return base64.b64decode((secret.get("data") or {})[key], validate=True).decode().strip()
    except KeyError:
        raise UnreadError(f"Secret {name} has no key {key}") from None
    except (binascii.Error, UnicodeDecodeError):
        raise UnreadError(f"key {key} of Secret {name} is no text") from None


class Prometheus:
    """One address with one set of credentials."""

    def __init__(self, settings: Settings, given: Credentials) -> None:
        """Connects to nothing yet.

        Raises:
            UnreadError: the certificates of the authorities cannot be used.
        """
        self.url = settings.url.rstrip("/")
        self._timeout_s = settings.timeout_seconds
        session = requests.Session()
        session.trust_env = False  # neither proxies nor a netrc of the operator's own environment
        session.verify = not settings.tls.insecure_skip_verify
        if settings.tls.insecure_skip_verify:
            # The pool's author asked for it: a warning at each reading tells nobody anything.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._client = PrometheusConnect(
            url=self.url,
            headers={"Authorization": f"Bearer {given.token}"} if given.token else None,
            auth=(given.user, given.password) if given.user else None,
            session=session,
        )
        # Mounted over the client's own: a reading that is late is no reading, so nothing is tried again.
        session.mount(self.url, _Adapter(_context(self.url, settings, given.authorities)))

    async def vector(self, query: str) -> list[Series]:
        """The series that the query gives; a scalar is one series without labels.

        Raises:
            UnreadError: no answer, or one that is no result.
        """
        try:
            async with asyncio.timeout(self._timeout_s + 1):
                result = await asyncio.to_thread(self._ask, query)
        except TimeoutError:
            raise UnreadError(f"{self.url}: no answer in {self._timeout_s} s") from None
        except PrometheusApiClientException as fault:
            found = _STATUS.search(str(fault))
            raise UnreadError(f"{self.url}: answered {found[1] if found else 'with an error'}") from None
        except requests.exceptions.SSLError:
            raise UnreadError(f"{self.url}: its certificate is not trusted") from None
        except requests.exceptions.Timeout:
            raise UnreadError(f"{self.url}: no answer in {self._timeout_s} s") from None
        except requests.exceptions.ConnectionError:
            raise UnreadError(f"{self.url}: cannot be reached") from None
        except (requests.exceptions.RequestException, KeyError, TypeError, ValueError):
            raise UnreadError(f"{self.url}: gave no result of a query") from None
        return result

    def _ask(self, query: str) -> list[Series]:
        return _series(self._client.custom_query(query, timeout=self._timeout_s))

    def close(self) -> None:
        """Gives the connections back."""
        self._client.close()


def _series(result: Any) -> list[Series]:
    """An instant vector, or a scalar.

    Raises:
        ValueError, TypeError, KeyError: it is neither.
    """
    if result and not isinstance(result[0], dict):
        result = [{"metric": {}, "value": result}]
    told = [(dict(each["metric"]), float(each["value"][1])) for each in result]
    return [Series(labels, value if math.isfinite(value) else math.nan) for labels, value in told]


def _context(url: str, settings: Settings, authorities: str) -> ssl.SSLContext | None:
    """One for all connections: left to the library, each loads all public authorities, even where none is asked."""
    if not url.startswith("https:"):
        return None
    if settings.tls.insecure_skip_verify:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return trusting
    if not authorities:
        return _of_public_authorities()
    try:
        return ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise UnreadError(f"{url}: caSecretRef holds no certificates that can be used") from None


@cache
def _of_public_authorities() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=requests.utils.DEFAULT_CA_BUNDLE_PATH)


class _Adapter(HTTPAdapter):
    """Connections that trust whom their context trusts, and nobody else."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        """See the base class."""
        super().init_poolmanager(*args, ssl_context=self._context, **more)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """See the base class, which would add the public authorities."""


def quoted(value: str) -> str:
    """A label's value in PromQL."""
    return json.dumps(value)
