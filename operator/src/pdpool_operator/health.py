"""Whether KV moves as it should, and whether the routers see what they need: verdicts from readings.

Boundary: pure; the time is an argument. What no reading told is unknown, never well. Words do not move with every
reading: figures stand in a message as they were when the verdict turned.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

from pdpool_api.conditions import Reason
from pdpool_operator.records import HealthVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WINDOW_S: Final = 300.0
MOST_FAILED: Final = 0.01
"""Share of hand-offs in the window."""
LEAST_SPEED: Final = 0.1
"""Of what the configured link gives: transfers that fell back from RDMA to TCP are slower than that."""
SLOW_READINGS: Final = 2
"""So many readings in a row make a transfer slow: one may hold a single bad one."""
_BITS: Final = 8
_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True)
class Transfers:
    """Counters of one engine; all of them only grow in its life."""

    done: float = 0.0
    """Transfers that ended well, by decode."""
    seconds: float = 0.0
    """Time that they took."""
    bytes: float = 0.0
    """What they moved."""
    failed: float = 0.0
    """Transfers that did not."""
    expired: float = 0.0
    """Requests whose KV nobody pulled while prefill kept it."""

    def since(self, before: Transfers) -> Transfers:
        """What was added; a counter that fell began anew with its engine's process."""
        pairs = {each.name: (getattr(before, each.name), getattr(self, each.name)) for each in fields(self)}
        return Transfers(**{name: now - then if now >= then else now for name, (then, now) in pairs.items()})

    def plus(self, other: Transfers) -> Transfers:
        """Two engines together."""
        return Transfers(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    @property
    def handoffs(self) -> float:
        """Everything that prefill handed to decode, however it ended."""
        return self.done + self.failed + self.expired

    @property
    def gigabits_per_s(self) -> float | None:
        """Measured speed of a transfer; None: nothing moved."""
        return self.bytes * _BITS / _GIGA / self.seconds if self.seconds > 0 and self.bytes > 0 else None


@dataclass(frozen=True, slots=True)
class History:
    """Readings of a pool's engines in the window, and what was said of them last."""

    readings: Mapping[str, tuple[tuple[float, Transfers], ...]] = field(default_factory=dict)
    """By uid of the pod: when, and what it counted."""
    slow: int = 0
    """Readings in a row that were too slow."""
    verdict: HealthVerdict | None = None

    def with_reading(self, told: Mapping[str, Transfers], now: float) -> History:
        """One reading more. An engine that did not answer keeps what it said; one that is long silent is forgotten."""
        kept = {uid: _in_window(each, now) for uid, each in self.readings.items()}
        added = {uid: (*kept.get(uid, ()), (now, each)) for uid, each in told.items()}
        return replace(self, readings={uid: each for uid, each in {**kept, **added}.items() if each})

    @property
    def moved(self) -> Transfers:
        """What all engines did in the window."""
        total = Transfers()
        for each in self.readings.values():
            total = total.plus(_grown(each))
        return total


def _grown(readings: tuple[tuple[float, Transfers], ...]) -> Transfers:
    """Steps one by one, so that a restart in between loses nothing but what was not read."""
    total = Transfers()
    for (_, before), (_, after) in itertools.pairwise(readings):
        total = total.plus(after.since(before))
    return total


def _in_window(readings: tuple[tuple[float, Transfers], ...], now: float) -> tuple[tuple[float, Transfers], ...]:
    return tuple(each for each in readings if now - each[0] <= WINDOW_S)


def transfer(history: History, bandwidth_gbps: float | None) -> History:
    """The history with its verdict after the latest reading.

    Args:
        history: readings up to now.
        bandwidth_gbps: what the link gives (`transfer.bandwidthGbps`); None: speed is not judged.
    """
    moved = history.moved
    speed = moved.gigabits_per_s
    is_slow = bandwidth_gbps is not None and speed is not None and speed < bandwidth_gbps * LEAST_SPEED
    slow = history.slow + 1 if is_slow else 0
    if not moved.handoffs:
        verdict = HealthVerdict("Unknown", Reason.NO_TRAFFIC, "no hand-off was seen in the last five minutes")
    elif (moved.failed + moved.expired) / moved.handoffs > MOST_FAILED:
        words = f"of {moved.handoffs:g} hand-offs in five minutes {moved.failed:g} failed and {moved.expired:g} expired"
        verdict = HealthVerdict("False", Reason.HANDOFFS_FAIL, words)
    elif slow >= SLOW_READINGS:
        words = f"KV moved at {speed:.3g} Gbit/s, less than a tenth of the {bandwidth_gbps:g} Gbit/s of the link"
        verdict = HealthVerdict("False", Reason.TRANSFER_SLOW, words)
    else:
        verdict = HealthVerdict("True", Reason.TRANSFERRING, "")
    return replace(history, slow=slow, verdict=_kept(history.verdict, verdict))


def routing(told: Iterable[Mapping[str, float | None]], *, wants_events: bool) -> HealthVerdict:
    """What the routers' gauges say.

    Args:
        told: by name of the gauge, of each router that answered; None: that router does not have it.
        wants_events: the spec asks for an index of the engines' events.
    """
    pages = list(told)
    missing = [value for page in pages if (value := page.get("kv_events_missing")) is not None]
    approximate = [value for page in pages if (value := page.get("index_approximate")) is not None]
    if not missing and not approximate:
        return HealthVerdict("Unknown", Reason.ROUTERS_UNREAD, "no ready router says what it sees")
    if wants_events and any(missing):
        words = "KV events of some engines do not arrive: what they hold is guessed"
        return HealthVerdict("False", Reason.EVENTS_MISSING, words)
    if wants_events and any(approximate):
        words = "a router's index rests on its own decisions, not on the engines' events"
        return HealthVerdict("False", Reason.INDEX_APPROXIMATE, words)
    return HealthVerdict("True", Reason.ROUTING_INFORMED, "")


def _kept(before: HealthVerdict | None, now: HealthVerdict) -> HealthVerdict:
    return before if before is not None and before.reason == now.reason else now
