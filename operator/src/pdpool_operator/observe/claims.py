"""Whether the PersistentVolumeClaims that pools name are there.

Boundary: gets single claims by name, when a pool is new to this process, while it is being edited, and as long as one
is missing; a pool at rest costs no call. What cannot be read is not called missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from pdpool_operator import rotation
from pdpool_operator.kube import ApiError, Kube
from pdpool_operator.records import CLAIMS, Observed

_log = structlog.get_logger(__name__)


class Claims:
    """The claims of one pool."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._there: frozenset[str] = frozenset()
        """Those that were there when they were last asked for."""

    async def seen(self, observed: Observed, *, anew: bool) -> Observed:
        """The pool with the claims that are missing.

        Args:
            observed: the pool.
            anew: also those are asked for that were there before.
        """
        wanted = rotation.claims(observed.pool)
        unknown = sorted(wanted if anew else wanted - self._there)
        found = await asyncio.gather(*(self._exists(observed.ref.namespace, name) for name in unknown))
        missing = tuple(name for name, exists in zip(unknown, found, strict=True) if not exists)
        self._there = wanted.difference(missing)
        return replace(observed, missing_claims=missing)

    async def _exists(self, namespace: str, name: str) -> bool:
        try:
            return await self._kube.get(CLAIMS, namespace, name) is not None
        except ApiError as fault:
            _log.debug("claim not read", namespace=namespace, name=name, fault=str(fault))
            return True
