"""PURE: who goes next among requests that wait: priority first, then fair shares among tenants.

Boundary: order and bounds of what waits; when there is room, and what waiting means to a client, is `admission`.
Within one priority tenants share by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) on predicted tokens, so
that a tenant of long prompts gets the same work done as one of many short ones, and a huge prompt delays only its own
tenant. A turn is worth one token: with larger ones short requests alternate, whatever their tenants' weights, until a
turn's worth is spent. Within a tenant it is first come, first served. A request that has waited longer than
`patience_s` goes before every other, so that no priority can starve another for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class Waiting(msgspec.Struct, eq=False):
    """One request that waits. Compared by identity."""

    tenant: str
    weight: int
    """Share of its tenant; 1 or more."""
    priority: int
    """A higher one goes first."""
    cost_tokens: int
    """Predicted work."""
    size_bytes: int
    """Memory that it holds while it waits."""
    since_s: float


class _Flow:
    """What one tenant has waiting in one priority, and its unspent credit."""

    __slots__ = ("credit_tokens", "waiting", "weight")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()
        self.credit_tokens = 0
        self.weight = 1

    @property
    def head(self) -> Waiting:
        return next(iter(self.waiting.values()))

    def turns_needed(self) -> int:
        """Turns until the credit covers the head, each of `weight` tokens; 0: it does."""
        lacking = self.head.cost_tokens - self.credit_tokens
        return max(0, -(-lacking // self.weight))


class FairQueue:
    """Requests that wait, in the order in which they should go."""

    def __init__(self, *, patience_s: float) -> None:
        self.patience_s = patience_s
        self.size_bytes = 0
        self._arrivals: OrderedDict[int, Waiting] = OrderedDict()
        self.arrivals: Final[Mapping[int, Waiting]] = self._arrivals
        """All of them, the oldest first; read only."""
        self._levels: dict[int, OrderedDict[str, _Flow]] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def push(self, waiting: Waiting) -> None:
        """Adds a request at the end of its tenant's line."""
        level = self._levels.setdefault(waiting.priority, OrderedDict())
        flow = level.get(waiting.tenant)
        if flow is None:
            flow = level[waiting.tenant] = _Flow()
        flow.weight = waiting.weight
        flow.waiting[id(waiting)] = waiting
        self._arrivals[id(waiting)] = waiting
        self.size_bytes += waiting.size_bytes

    def remove(self, waiting: Waiting) -> bool:
        """Takes a request out, wherever it stands; False: it is not here."""
        if self._arrivals.pop(id(waiting), None) is None:
            return False
        self.size_bytes -= waiting.size_bytes
        level = self._levels[waiting.priority]
        flow = level[waiting.tenant]
        del flow.waiting[id(waiting)]
        if not flow.waiting:  # credit is not saved up by those who ask for nothing
            del level[waiting.tenant]
        if not level:
            del self._levels[waiting.priority]
        return True

    def pop(self, now_s: float) -> Waiting | None:
        """The request that goes next, taken out; None: nothing waits."""
        if not self._arrivals:
            return None
        oldest = next(iter(self._arrivals.values()))
        chosen = oldest if now_s - oldest.since_s > self.patience_s else self._fair()
        self.remove(chosen)
        return chosen

    def overdue(self, now_s: float, limit_s: float) -> list[Waiting]:
        """Those that have waited longer than `limit_s`, oldest first; they stay."""
        found = []
        for waiting in self._arrivals.values():
            if now_s - waiting.since_s <= limit_s:
                break
            found.append(waiting)
        return found

    def _fair(self) -> Waiting:
        level = self._levels[max(self._levels)]
        # All turns that pass before somebody can go are given at once: a prompt must not cost a loop over its tokens.
        turns = min(flow.turns_needed() for flow in level.values())
        for flow in level.values():
            flow.credit_tokens += turns * flow.weight
        for tenant, flow in level.items():
            if not flow.turns_needed():
                head = flow.head
                flow.credit_tokens -= head.cost_tokens
                level.move_to_end(tenant)
                return head
        raise AssertionError("a flow whose turns have passed can go")
