"""Replicas of one role: asked for, starting, ready, leaving; and what they cost.

Boundary: counting by the clock. A replica costs from the moment it is asked for and a node has taken it, until it has
drained. One that no node takes costs nothing and never becomes ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Replicas:
    """One role."""

    start_s: float
    most: int | None
    """No node takes more; None: no limit."""
    drain_s: float
    names: int = 0
    starting: list[tuple[str, float]] = field(default_factory=list)
    """Name, and when it will be ready."""
    ready: list[tuple[str, bool]] = field(default_factory=list)
    """Name, and whether it was started while the clock ran."""
    pending: int = 0
    """Asked for, taken by no node."""
    leaving: list[float] = field(default_factory=list)
    """When each has drained."""
    spent_s: float = 0.0
    changes: int = 0

    @property
    def wanted(self) -> int:
        """Replicas that stay."""
        return len(self.ready) + len(self.starting) + self.pending

    def begin(self, count: int) -> None:
        """So many are ready from the beginning."""
        self.ready = [(self._name(), False) for _ in range(count)]

    def resize(self, size: int, now: float) -> None:
        """Asks for a size; the youngest leave first."""
        if size == self.wanted:
            return
        self.changes += 1
        while self.wanted > size:
            if self.pending:
                self.pending -= 1
            elif self.starting:
                self.starting.pop()
            else:
                self.ready.pop()
                self.leaving.append(now + self.drain_s)
        while self.wanted < size:
            if self.most is not None and len(self.ready) + len(self.starting) >= self.most:
                self.pending += 1
            else:
                self.starting.append((self._name(), now + self.start_s))

    def second(self, now: float) -> int:
        """Lets a second pass; returns how many are ready."""
        while self.starting and self.starting[0][1] <= now:
            self.ready.append((self.starting.pop(0)[0], True))
        self.leaving = [end for end in self.leaving if end > now]
        self.spent_s += len(self.ready) + len(self.starting) + len(self.leaving)
        return len(self.ready)

    def _name(self) -> str:
        self.names += 1
        return f"r{self.names:05d}"
