"""Conditions: how one is set, and in which order they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.conditions import Condition, ConditionType, Reason, SizeReason, in_order, set_condition, without

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"

Word = Literal["True", "False", "Unknown"]


def _ready(
    present: tuple[Condition, ...] = (), status: Word = "True", message: str = "", now: str = T0, generation: int = 1
) -> tuple[Condition, ...]:
    return set_condition(
        present, ConditionType.READY, status, Reason.AVAILABLE, message, generation=generation, now=now
    )


def test_time_moves_on_a_transition() -> None:
    """A changed status carries the time of the change."""
    (condition,) = _ready(_ready(), status="False", now=T1)
    assert (condition.status, condition.last_transition_time) == ("False", T1)


def test_time_stays_without_a_transition() -> None:
    """A new message or generation is no transition."""
    (condition,) = _ready(_ready(), message="2 of 3", now=T1, generation=2)
    assert (condition.last_transition_time, condition.message, condition.observed_generation) == (T0, "2 of 3", 2)


def test_setting_a_condition_again_changes_nothing() -> None:
    """Equal facts give an equal status, whatever the clock says: no write."""
    assert _ready(_ready(), now=T1) == _ready()


@given(st.permutations(list(ConditionType)))
def test_order_does_not_depend_on_the_order_of_setting(kinds: list[ConditionType]) -> None:
    """Conditions stand in one fixed order: another one would be a write without a change."""
    conditions: tuple[Condition, ...] = ()
    for kind in kinds:
        conditions = set_condition(conditions, kind, "True", Reason.VALID, "", generation=1, now=T0)
    assert [each.type for each in conditions] == [kind.value for kind in ConditionType]


def test_a_condition_of_another_writer_stays_last() -> None:
    """An unknown type is kept, behind the known ones."""
    foreign = Condition(type="example.com/Seen", status="True", last_transition_time=T0, reason="Seen")
    assert [each.type for each in in_order([foreign, *_ready()])] == ["Ready", "example.com/Seen"]


def test_stalled_can_be_taken_away() -> None:
    """`Stalled` is absent unless True."""
    both = set_condition(_ready(), ConditionType.STALLED, "True", Reason.INVALID_SPEC, "", generation=1, now=T0)
    assert without(both, ConditionType.STALLED) == _ready()


def test_a_message_over_the_limit_is_cut() -> None:
    """A long message must not make the API refuse the whole status."""
    (condition,) = _ready(message="x" * 40_000)
    assert len(condition.message) == 32_768


def test_reasons_are_camel_case() -> None:
    """The API's own form for reasons; each is documented where it is defined."""
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", reason.value) for reason in Reason)
    assert all(kind.value == kind for kind in ConditionType)


def test_every_type_and_reason_is_documented_for_users() -> None:
    """`docs/conditions.md` lists exactly what the code knows."""
    page = (Path(__file__).parents[2] / "docs/conditions.md").read_text()
    types, rest = page.split("## Reasons")
    reasons, rest = rest.split("## Why a role has its size")
    sizes, _ = rest.split("## Events")
    assert re.findall(r"^\| `(\w+)`", types, re.MULTILINE) == [kind.value for kind in ConditionType]
    assert re.findall(r"^\| `(\w+)`", reasons, re.MULTILINE) == [reason.value for reason in Reason]
    assert re.findall(r"^\| `(\w+)`", sizes, re.MULTILINE) == [reason.value for reason in SizeReason]
