"""What is worth an Event: the differences between two statuses of a pool that a person wants to hear of.

Boundary: pure. Whatever decides a condition decides the Event too: nothing is told that the status does not say, and
a status that only counts on is no news.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from pdpool_api.conditions import ConditionType, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdpool_operator.records import Json


class NewsReason(StrEnum):
    """Reasons of Events that are no reason of a condition; documented in docs/conditions.md."""

    ROLLOUT_STARTED = "RolloutStarted"
    """Replicas are being created, updated or removed for this generation, or for another revision."""
    ROLLOUT_COMPLETED = "RolloutCompleted"
    """Everything that was wanted has arrived."""
    SCALED = "Scaled"
    """The wanted number of replicas of a role changed."""
    SPEC_ACCEPTED = "SpecAccepted"
    """A spec that was refused is acted on again."""
    REFERENCE_FOUND = "ReferenceFound"
    """What a pod refers to and was missing is there."""
    RECOVERED = "Recovered"
    """A condition that was not well is well again."""


@dataclass(frozen=True, slots=True)
class News:
    """One thing to tell."""

    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    """What the operator did or does about it, in CamelCase."""
    note: str


_TROUBLE: Final = (
    Reason.NAME_CONFLICT,
    Reason.APPLY_FAILED,
    Reason.MISSING_REFERENCE,
    Reason.UNSCHEDULABLE,
    Reason.REPLICAS_NOT_READY,
    Reason.ROUTER_NOT_READY,
)
"""Reasons of Ready=False that are told; a refusal is told by SpecValid, a rollout by Progressing."""
_WATCHED: Final = (ConditionType.SCALING_ACTIVE, ConditionType.TRANSFER_HEALTHY, ConditionType.ROUTING_HEALTHY)


def news(before: Json, after: Json) -> tuple[News, ...]:
    """What is new in a status.

    Args:
        before: the status as it was; empty for a new pool.
        after: the status as it is now.
    """
    was, now = _by_type(before), _by_type(after)
    return (
        *_of_spec(was, now),
        *_of_rollout(before, after),
        *_of_sizes(before, after),
        *_of_readiness(was, now),
        *(each for kind in _WATCHED for each in _of_health(kind, was, now)),
    )


def _of_spec(was: dict[str, Json], now: dict[str, Json]) -> Iterator[News]:
    old, new = _pair(ConditionType.SPEC_VALID, was, now)
    if new.get("status") == "False" and (old.get("status"), old.get("reason")) != ("False", new["reason"]):
        yield News("Warning", new["reason"], "Refuse", new["message"])
    elif new.get("status") == "True" and old.get("status") == "False":
        yield News("Normal", NewsReason.SPEC_ACCEPTED, "Accept", "the spec is acted on")


def _of_rollout(before: Json, after: Json) -> Iterator[News]:
    old, new = _pair(ConditionType.PROGRESSING, _by_type(before), _by_type(after))
    other = before.get("revision", "") != after.get("revision", "")
    if new.get("status") == "True" and (old.get("status") != "True" or other):
        to = f"revision {after['revision']}: " if after.get("revision") else ""
        yield News("Normal", NewsReason.ROLLOUT_STARTED, "RollOut", f"{to}{new['message']}")
    elif new.get("reason") == Reason.ROLLOUT_STALLED and old.get("reason") != Reason.ROLLOUT_STALLED:
        yield News("Warning", Reason.ROLLOUT_STALLED, "RollOut", new["message"])
    elif _completes(old, new):
        yield News("Normal", NewsReason.ROLLOUT_COMPLETED, "RollOut", f"revision {after.get('revision', '')}")


def _completes(old: Json, new: Json) -> bool:
    return new.get("reason") == Reason.COMPLETE and old.get("reason") in (Reason.ROLLING_OUT, Reason.ROLLOUT_STALLED)


def _of_sizes(before: Json, after: Json) -> Iterator[News]:
    for role in ("prefill", "decode"):
        old, new = before.get(role), after.get(role)
        if not old or not new or old["desiredReplicas"] == new["desiredReplicas"]:
            continue
        why = ": ".join(filter(None, (new.get("reason"), new.get("message"))))
        size = f"{role} from {old['desiredReplicas']} to {new['desiredReplicas']}"
        yield News("Normal", NewsReason.SCALED, "Scale", f"{size}, {why}" if why else size)


def _of_readiness(was: dict[str, Json], now: dict[str, Json]) -> Iterator[News]:
    old, new = _pair(ConditionType.READY, was, now)
    if old.get("reason") == new.get("reason"):
        return
    if new.get("status") == "False" and new["reason"] in _TROUBLE:
        yield News("Warning", new["reason"], "Wait", new["message"])
        return
    if old.get("reason") == Reason.MISSING_REFERENCE:
        yield News("Normal", NewsReason.REFERENCE_FOUND, "Continue", "nothing that pods refer to is missing any more")
    is_completed = _completes(*_pair(ConditionType.PROGRESSING, was, now))
    if new.get("status") == "True" and old.get("reason") in _TROUBLE and not is_completed:
        yield News("Normal", NewsReason.RECOVERED, "Serve", f"Ready again, after {old['reason']}")


def _of_health(kind: ConditionType, was: dict[str, Json], now: dict[str, Json]) -> Iterator[News]:
    old, new = _pair(kind, was, now)
    if new.get("status") == "False" and (old.get("status"), old.get("reason")) != ("False", new["reason"]):
        yield News("Warning", new["reason"], "Observe", new["message"])
    elif new.get("status") == "True" and old.get("status") == "False":
        yield News("Normal", NewsReason.RECOVERED, "Observe", f"{kind} again, after {old['reason']}")


def _pair(kind: ConditionType, was: dict[str, Json], now: dict[str, Json]) -> tuple[Json, Json]:
    return was.get(kind, {}), now.get(kind, {})


def _by_type(status: Json) -> dict[str, Json]:
    return {each["type"]: {"message": "", **each} for each in status.get("conditions", ())}
