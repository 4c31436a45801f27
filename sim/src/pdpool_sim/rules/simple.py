"""Rules that know nothing of prefixes: round robin, random, least in flight, power of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_sim.rule import Chosen, Load, Reports

if TYPE_CHECKING:
    from random import Random

    from pdpool_sim.rule import Setting
    from pdpool_sim.workload import Call


def least_in_flight(load: Load, rng: Random) -> str:
    """Fewest requests in flight, ties by chance."""
    least = min(load.inflight.values())
    return rng.choice([uid for uid, count in load.inflight.items() if count == least])


def power_of_two(load: Load, rng: Random) -> str:
    """The less loaded of two by chance."""
    uids = list(load.by_uid)
    first, second = rng.sample(uids, 2) if len(uids) > 1 else (uids[0], uids[0])
    return first if load.inflight[first] <= load.inflight[second] else second


class RoundRobin(Reports):
    """Each in turn."""

    def __init__(self, setting: Setting) -> None:
        self._prefill, self._decode = list(setting.prefill.by_uid), list(setting.decode.by_uid)
        self._planned = self._placed = 0

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        del call
        self._planned += 1
        return Chosen(self._prefill[self._planned % len(self._prefill)])

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        self._placed += 1
        return self._decode[self._placed % len(self._decode)]


class RandomChoice(Reports):
    """Any, by chance."""

    def __init__(self, setting: Setting) -> None:
        self._prefill, self._decode = list(setting.prefill.by_uid), list(setting.decode.by_uid)
        self._rng = setting.rng

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        del call
        return Chosen(self._rng.choice(self._prefill))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        return self._rng.choice(self._decode)


class LeastInFlight(Reports):
    """Fewest requests in flight."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        del call
        return Chosen(least_in_flight(self._setting.prefill, self._setting.rng))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        return least_in_flight(self._setting.decode, self._setting.rng)


class PowerOfTwo(Reports):
    """The less loaded of two."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        del call
        return Chosen(power_of_two(self._setting.prefill, self._setting.rng))

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        return power_of_two(self._setting.decode, self._setting.rng)
