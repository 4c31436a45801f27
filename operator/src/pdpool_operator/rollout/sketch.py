"""The state of a rollout while its next step is thought out.

Boundary: pure; a draft over frozen members, which starts as they are. What it says in the end is how many replicas
each Deployment is asked for, and which pods are marked to leave, to stay after all, or as finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pdpool_api.names import Role
from pdpool_operator import ownership
from pdpool_operator.rollout.capacity import PLACES, Capacity, Pairing, bearable, capacity, needed, place
from pdpool_operator.rollout.members import Member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pdpool_operator.records import Desired
    from pdpool_operator.rollout.members import Replica


@dataclass(slots=True)
class Side:
    """One Deployment in the draft."""

    member: Member
    asked: int
    serving: list[Replica]
    """Ready, and chosen by routers."""
    waiting: list[Replica]
    """Started once, and not ready: they may serve again."""
    aside: list[Replica]
    """Ready, and not chosen any more."""
    counting: int
    """Serving replicas that surely go on: pods and the Deployment's count are watched apart, and the less counts."""
    template: str = ""
    """Hash of the desired template; empty: an older revision keeps what it has."""
    undo: str = ""
    """The template (`pod-template-hash`) that it is to go back to; empty: none."""
    marked: list[Replica] = field(default_factory=list)
    restored: list[Replica] = field(default_factory=list)
    spent: list[Replica] = field(default_factory=list)

    @property
    def place(self) -> Role:
        """The place that it fills."""
        return place(self.member.role)

    @property
    def held(self) -> int:
        """Replicas that take room, terminating ones apart."""
        return max(self.asked, self.member.live)

    @property
    def unready(self) -> int:
        """Replicas that are there or asked for and not ready, whomever one asks."""
        return max(0, self.held - self._ready)

    @property
    def idle(self) -> int:
        """Of those that are asked for, as many as are surely not ready."""
        return max(0, self.asked - self._ready)

    @property
    def _ready(self) -> int:
        return max(len(self.serving) + len(self.aside), self.member.ready_count)

    @property
    def going(self) -> int:
        """Pods that nobody asks for any more, and that Kubernetes has not removed yet."""
        return max(0, self.member.live - self.asked)

    @property
    def out(self) -> int:
        """Replicas that routers do not choose, ready or not."""
        return len(self.aside) + sum(1 for each in self.member.replicas if each.aside and not each.ready)

    @property
    def parting(self) -> int:
        """Ready ones among the pods that nobody asked for before this step: what is not ready is removed first."""
        surplus = max(0, self.member.live - self.member.asked)
        return max(0, surplus - max(0, self.member.live - self._ready))

    def ask_less(self, count: int = 1) -> None:
        """Lowers the size. Pods that are not ready go first, unless pods of several templates are mixed."""
        self.asked -= count
        if self.member.mixed:
            self.counting = max(0, self.counting - count)

    def mark(self, replica: Replica) -> None:
        """Takes a serving replica out of the rotation."""
        self.serving.remove(replica)
        self.aside.append(replica)
        if replica in self.restored:
            self.restored.remove(replica)  # it keeps the mark that it has
        else:
            self.marked.append(replica)
        self.counting = max(0, self.counting - 1)

    def restore(self, replica: Replica) -> None:
        """Puts a marked replica back into the rotation."""
        self.aside.remove(replica)
        self.spent = [each for each in self.spent if each is not replica]
        self.serving.append(replica)
        self.restored.append(replica)
        self.counting += 1


@dataclass(slots=True)
class Sketch:
    """The whole draft."""

    desired: Desired
    now_s: float
    current: dict[Role, Side]
    """By engine role of the desired mode, at the desired revision."""
    older: list[Side]
    """Everything else, those that serve least first."""
    need: Capacity

    @property
    def sides(self) -> Iterator[Side]:
        """Every Deployment."""
        yield from self.current.values()
        yield from self.older

    def capacity(self, pairing: Pairing, *, hopeful: bool = False, of: Iterable[Side] | None = None) -> Capacity:
        """What serves, by place. Older replicas whose partners are gone for good count for nothing.

        Args:
            pairing: what makes a replica count.
            hopeful: also what one of the two sources alone takes for ready.
            of: these Deployments only.
        """
        counts = (
            (side.member.revision, side.member.role, len(side.serving) if hopeful else side.counting)
            for side in (self.sides if of is None else of)
            if not self.is_widowed(side)
        )
        return capacity(counts, pairing, alone=self.desired.serves_alone)

    def is_widowed(self, side: Side) -> bool:
        """True for an older replica that nothing pairs with any more, and that does not serve alone."""
        partner = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}.get(side.member.role)
        if side.template or partner is None or (partner is Role.PREFILL and self.desired.serves_alone):
            return False
        of_revision = (each for each in self.older if each.member.revision == side.member.revision)
        return not any(each.held for each in of_revision if each.member.role is partner)

    def bears_loss(self, side: Side, pairing: Pairing, count: int = 1) -> bool:
        """True when so many serving replicas of a Deployment can go, by this way to count and every laxer one."""
        laxer = [each for each in Pairing if each.value >= pairing.value]
        before = [self.capacity(each, hopeful=True) for each in laxer]
        kept, side.counting = side.counting, max(0, side.counting - count)
        after = [self.capacity(each) for each in laxer]
        side.counting = kept
        return all(bearable(had, has, self.need) for had, has in zip(before, after, strict=True))

    def wanted(self, role: Role) -> int:
        """Desired replicas of a role."""
        return self.desired.replicas[role]

    def at(self, where: Role) -> Side | None:
        """The current Deployment of a place; None: the desired mode leaves it empty."""
        return next((side for side in self.current.values() if side.place is where), None)

    def older_at(self, where: Role) -> list[Side]:
        """Older Deployments of a place."""
        return [side for side in self.older if side.place is where]

    def free(self, where: Role) -> int:
        """Replicas that may be added in a place, by its size and surge."""
        current = self.at(where)
        if current is None:
            return 0
        role = current.member.role
        limit = self.wanted(role) + self.desired.paces[role].max_surge
        return limit - current.held - sum(side.held for side in self.older_at(where))

    def missing(self, where: Role) -> int:
        """Replicas of the desired revision that are not asked for yet."""
        current = self.at(where)
        return 0 if current is None else max(0, self.wanted(current.member.role) - current.asked)

    def arrived(self) -> bool:
        """True when the desired revision carries the whole load, and none of it is still changing."""
        return all(self._has_arrived(role, side) for role, side in self.current.items())

    def _has_arrived(self, role: Role, side: Side) -> bool:
        size = self.wanted(role)
        changing = self.changing(side)
        return side.asked >= size and side.counting >= size and not changing

    def changing(self, side: Side) -> bool:
        """True while pods of a Deployment of the desired revision are not all of the desired template."""
        if not side.member.alive:
            return False
        return side.member.mixed or not side.member.seen or side.member.template != side.template


def sketch(desired: Desired, members: tuple[Member, ...], now_s: float) -> Sketch:
    """The draft as things are."""
    engines = {child.key: child for child in desired.children if child.revision}
    by_key = {member.key: member for member in members if member.alive}
    current = {}
    for key, child in engines.items():
        assert child.role is not None
        # What is not made yet holds what the spec will give it.
        absent = Member(key, child.role, desired.revision, alive=False)
        side = _side(replace(by_key.get(key, absent), accelerators=desired.paces[child.role].accelerators))
        side.template = ownership.digest(ownership.without_none(child.body["spec"]["template"]))
        current[child.role] = side
    # Pods whose Deployment somebody took away are those of the one that is made, or taken back, now.
    ours = {(side.member.role, side.member.revision) for side in current.values()}
    others = (each for each in members if each.alive or (each.role, each.revision) not in ours)
    rest = [_side(member) for member in others if member.key not in engines]
    weight = {side.member.revision: 0 for side in rest}
    for side in rest:
        weight[side.member.revision] += side.counting
    rest.sort(key=lambda side: (weight[side.member.revision], side.member.revision, side.member.role))
    return Sketch(desired, now_s, current, rest, needed(desired))


def _side(member: Member) -> Side:
    serving = [each for each in member.replicas if each.serves]
    aside = [each for each in member.replicas if each.ready and each.aside]
    waiting = [each for each in member.replicas if each.started and not each.ready and not each.aside]
    reported = member.ready_count - len(aside)
    counting = max(0, min(len(serving), reported, member.asked)) if member.alive else 0
    return Side(member, member.asked, serving, waiting, aside, counting)


__all__ = ["PLACES", "Pairing", "Side", "Sketch", "sketch"]
