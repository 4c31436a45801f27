"""Keyed digests of the Secrets that pools' engines use, and a look at them now and then.

Boundary: reads single Secrets by name, in the namespaces that were listed at install time and nowhere else; keeps
digests, never values. The key is random, lies in a Secret beside the operator and outlives it: a digest without a key
could be tried out against guesses by whoever may read Deployments.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets as randomness
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from pdpool_api import names
from pdpool_operator import rotation
from pdpool_operator.kube import ApiError, ConflictError, ForbiddenError, Kube
from pdpool_operator.records import SECRETS, Json, Observed, PoolRef, SecretEntry, SecretsSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PERIOD_S: Final = 15.0
"""Between two looks at a Secret: a rotation or a missing Secret that appears is seen within half a minute."""
KEY_BYTES: Final = 32
_KEY_ENTRY: Final = "key"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Secret:
    """One Secret as it was last seen."""

    entries: Mapping[str, str] | None = None
    """Digest by key; None: there is no such Secret."""
    fault: str = ""
    """Why it could not be read."""
    users: set[PoolRef] = field(default_factory=set)


class Secrets:
    """What pools' Secrets are, as far as they may be read."""

    def __init__(
        self, kube: Kube, namespaces: frozenset[str], key_namespace: str, wake: Callable[[PoolRef], None]
    ) -> None:
        self._kube = kube
        self._namespaces = namespaces
        self._key_namespace = key_namespace
        self._wake = wake
        self._known: dict[tuple[str, str], _Secret] = {}
        self._key = b""
        self._key_lock = asyncio.Lock()

    async def seen(self, observed: Observed) -> Observed:
        """The pool with what is known of its Secrets; one that is asked for the first time is read now."""
        wanted = rotation.references(observed.pool)
        self._keep(observed.ref, {each.name for each in wanted})
        if not wanted:
            return observed
        namespace, is_on = observed.ref.namespace, rotation.is_on(observed.pool)
        if namespace not in self._namespaces:
            words = _unwatched(wanted, f"of namespace {namespace}") if is_on else ""
            return replace(observed, secrets=SecretsSeen(unwatched=words))
        for name in sorted({each.name for each in wanted}):
            known = self._known.setdefault((namespace, name), _Secret())
            if observed.ref not in known.users:
                known.users.add(observed.ref)
                await self._look(namespace, name, known)
        found = self._summary(namespace, wanted)
        # Without rotation only what is missing counts: no value is compared with another.
        return replace(observed, secrets=found if is_on else SecretsSeen(missing=found.missing))

    def forget(self, ref: PoolRef) -> None:
        """The pool is gone."""
        self._keep(ref, set())

    async def run(self) -> None:
        """Looks at every Secret in use again and again, and wakes the pools of one that changed."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await asyncio.gather(*(self._again(*key, known) for key, known in list(self._known.items())))

    async def _again(self, namespace: str, name: str, known: _Secret) -> None:
        before = (known.entries, known.fault)
        try:
            await self._look(namespace, name, known)
        except Exception:  # noqa: BLE001 - one odd Secret must end neither this look nor the lead
            _log.exception("look at a secret failed", namespace=namespace, name=name)
            return
        if (known.entries, known.fault) != before:
            for ref in known.users:
                self._wake(ref)

    async def _look(self, namespace: str, name: str, known: _Secret) -> None:
        try:
            key = await self._digest_key()
            raw = await self._kube.get(SECRETS, namespace, name)
        except ForbiddenError as fault:
            known.entries, known.fault = {}, fault.words
        except ApiError as fault:  # what was seen before still counts
            _log.debug("secret not read", namespace=namespace, name=name, fault=str(fault))
        else:
            known.entries = None if raw is None else _digests(key, namespace, name, raw)
            known.fault = ""

    def _summary(self, namespace: str, wanted: Iterable[SecretEntry]) -> SecretsSeen:
        digests: dict[SecretEntry, str] = {}
        missing: list[str] = []
        faults: list[str] = []
        for each in sorted(wanted):
            known = self._known[namespace, each.name]
            if known.fault:
                faults.append(known.fault)
            elif known.entries is not None and not each.key:
                continue  # mounted: the kubelet brings a new value to the pod
            elif known.entries is not None and each.key in known.entries:
                digests[each] = known.entries[each.key]
            elif each.optional:
                digests[each] = "absent"
            elif known.entries is None:
                missing.append(each.reference.object_words)
            elif known.entries:
                missing.append(each.reference.words)
        words = _unwatched(wanted, f"({faults[0]})") if faults else ""
        return SecretsSeen(_key_id(self._key), digests, tuple(dict.fromkeys(missing)), words)

    def _keep(self, ref: PoolRef, used: set[str]) -> None:
        """Nobody is listed as a user of what it does not use; what nobody uses is not looked at."""
        for (namespace, name), known in list(self._known.items()):
            if ref in known.users and (namespace != ref.namespace or name not in used):
                known.users.discard(ref)
                if not known.users:
                    del self._known[namespace, name]

    async def _digest_key(self) -> bytes:
        async with self._key_lock:
            if not self._key:
                self._key = await self._stored_key()
            return self._key

    async def _stored_key(self) -> bytes:
        found = await self._kube.get(SECRETS, self._key_namespace, names.DIGEST_KEY_SECRET)
        if found is None:
            try:
                found = await self._kube.create(SECRETS, self._key_namespace, _new_key(self._key_namespace))
            except ConflictError:  # the other replica was faster
                found = await self._kube.get(SECRETS, self._key_namespace, names.DIGEST_KEY_SECRET) or {}
        return _decoded(found.get("data", {}).get(_KEY_ENTRY, ""))


def _new_key(namespace: str) -> Json:
    text = base64.b64encode(randomness.token_bytes(KEY_BYTES)).decode()
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {
            "name": names.DIGEST_KEY_SECRET,
            "namespace": namespace,
            "labels": {names.LABEL_APP_PART_OF: names.PART_OF},
        },
        "immutable": True,
        "type": "Opaque",
        "data": {_KEY_ENTRY: text},
    }


def _decoded(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        found = b""
    if len(found) < KEY_BYTES:
        raise ForbiddenError(f"Secret {names.DIGEST_KEY_SECRET} holds no key of {KEY_BYTES} bytes")
    return found


def _digests(key: bytes, namespace: str, name: str, raw: Json) -> dict[str, str]:
    """Keyed digest of every entry; the place is part of it, so that equal values do not show."""
    return {
        entry: hmac.new(key, json.dumps([namespace, name, entry, value]).encode(), hashlib.sha256).hexdigest()
        for entry, value in (raw.get("data") or {}).items()
    }


def _key_id(key: bytes) -> str:
    """Tells one key from another and gives neither away."""
    return hmac.new(key, b"id of this key", hashlib.sha256).hexdigest()[:8] if key else ""


def _unwatched(wanted: Iterable[SecretEntry], where: str) -> str:
    named = ", ".join(sorted({each.name for each in wanted if each.key}))
    if not named:
        return ""
    return f"a new value of Secret {named} rolls no pod by itself: the operator may not read Secrets {where}"
