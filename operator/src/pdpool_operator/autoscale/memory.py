"""What one tick leaves to the next: sizes, what was asked for, since when; values, passed in and out.

Boundary: pure. It lives in the pool's task only. After a restart there is none, so sizes hold until one full window of
fresh readings exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pdpool_api.names import ENGINE_ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdpool_api.names import Role

RISING: Final = 4
"""Readings in a row that must rise before growth is sized for what they lead to."""


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """One role."""

    size: int
    """What the last tick decided."""
    asked: tuple[tuple[float, int], ...] = ()
    """When, and which size demand asked for; oldest first, without long gaps."""
    since: float | None = None
    """When the first of these readings was taken."""
    needs: tuple[tuple[float, float], ...] = ()
    """The last readings: when, and replicas needed, not rounded."""
    start_s: float | None = None
    """How long a replica of this role takes from its creation until it is ready."""
    stuck: tuple[float, int] | None = None
    """Until when, and how many: no node could take more, so while the budget is short no more are asked for."""
    wanted: int | None = None
    """What the last tick would have decided, had it been allowed to change anything."""
    reason: str = ""
    message: str = ""
    limit: str = ""
    """What kept the size from what demand asked for."""
    scaled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """One pool."""

    at: float | None = None
    """When the last tick was."""
    roles: Mapping[Role, RoleMemory] = field(default_factory=dict)
    idle_since: float | None = None
    served_tokens: float | None = None

    @property
    def at_zero(self) -> bool:
        """True when the engines of the pool are at zero."""
        engines = [each.size for role, each in self.roles.items() if role in ENGINE_ROLES]
        return bool(engines) and not any(engines)
