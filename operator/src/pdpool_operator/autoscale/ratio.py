"""Bounds of prefill replicas per decode replica.

Boundary: pure. Prefill gives way, as decode holds what users are being told; decode does where prefill is held.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pdpool_operator.autoscale.limits import Limits, RoleLimits

_EXACT: Final = 1e-9


def in_ratio(sizes: Mapping[Role, int], limits: Limits, held: Collection[Role]) -> dict[Role, int]:
    """The sizes within the bounds, as far as the roles' own bounds allow; held roles keep theirs."""
    prefill, decode = sizes.get(Role.PREFILL), sizes.get(Role.DECODE)
    if not prefill or not decode or not (limits.least_ratio or limits.most_ratio):
        return dict(sizes)
    if Role.PREFILL not in held:
        least = math.ceil(limits.least_ratio * decode - _EXACT)
        most = math.floor(limits.most_ratio * decode + _EXACT) if limits.most_ratio else prefill
        return {**sizes, Role.PREFILL: _between(prefill, least, most, limits.roles[Role.PREFILL])}
    if Role.DECODE not in held:
        least = math.ceil(prefill / limits.most_ratio - _EXACT) if limits.most_ratio else 1
        most = math.floor(prefill / limits.least_ratio + _EXACT) if limits.least_ratio else decode
        return {**sizes, Role.DECODE: _between(decode, least, most, limits.roles[Role.DECODE])}
    return dict(sizes)


def _between(size: int, least: int, most: int, limits: RoleLimits) -> int:
    found = max(least, min(size, most))
    return min(max(found, limits.least, 1), limits.most)
