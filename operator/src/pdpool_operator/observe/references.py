"""Whether the ConfigMaps, PersistentVolumeClaims and ServiceAccounts that pools name are there (Secrets: `secrets`).

Boundary: gets single objects by name, when a pool is new to this process, while it is being edited, and as long as one
is missing; a pool at rest costs no call. What cannot be read is not called missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from pdpool_operator import rotation
from pdpool_operator.kube import ApiError, Kube
from pdpool_operator.records import CLAIMS, CONFIG_MAPS, SERVICE_ACCOUNTS, Json, Observed, Reference

_BY_KIND: Final = {resource.kind: resource for resource in (CLAIMS, CONFIG_MAPS, SERVICE_ACCOUNTS)}
_CONTENTS: Final = ("data", "binaryData")

_log = structlog.get_logger(__name__)


class References:
    """What one pool refers to."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._there: frozenset[Reference] = frozenset()
        """What was there when it was last asked for."""

    async def seen(self, observed: Observed, *, anew: bool) -> Observed:
        """The pool with what is missing.

        Args:
            observed: the pool.
            anew: also what was there before is asked for.
        """
        wanted = rotation.objects(observed.pool)
        unknown = sorted(wanted if anew else wanted - self._there)
        objects = sorted({(each.kind, each.name) for each in unknown})
        found = await asyncio.gather(*(self._read(observed.ref.namespace, *each) for each in objects))
        live = dict(zip(objects, found, strict=True))
        missing = {each: words for each in unknown if (words := _missing(each, live[each.kind, each.name]))}
        self._there = wanted.difference(missing)
        return replace(observed, missing_objects=tuple(dict.fromkeys(missing.values())))

    async def _read(self, namespace: str, kind: str, name: str) -> Json | ApiError | None:
        try:
            return await self._kube.get(_BY_KIND[kind], namespace, name)
        except ApiError as fault:
            _log.debug("reference not read", namespace=namespace, kind=kind, name=name, fault=str(fault))
            return fault


def _missing(reference: Reference, live: Json | ApiError | None) -> str:
    """What of a reference is not there, for a person; empty: nothing, as far as is known."""
    if isinstance(live, ApiError):
        return ""
    if live is None:
        return reference.object_words
    entries = {entry for content in _CONTENTS for entry in live.get(content) or ()}
    return reference.words if reference.key and reference.key not in entries else ""
