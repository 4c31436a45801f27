"""How kstatus, by which Flux waits for a pool, reads every combination of conditions; beside Argo CD's health check."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from e2e.kstatus import computed
from pdpool_api.conditions import ConditionType, Reason
from pdpool_api.names import API_VERSION, KIND
from tests.install.test_argocd import GENERATION, TABLE, health, pool

pytestmark = pytest.mark.xdist_group("chart")

Json = dict[str, Any]
MEANT: dict[str, set[str]] = {
    "Progressing": {"InProgress", "Terminating"},
    "Healthy": {"Current"},
    "Suspended": {"Current"},
    "Degraded": {"Failed", "InProgress", "Current"},
}
"""What kstatus may say where Argo CD says this: it knows no pool that serves, and serves badly."""
NOT_SEEN = {"new", "empty-status"}
"""A pool without a status: kstatus takes any object for arrived that says nothing of itself (docs/gitops.md)."""
NEVER_WRITTEN = {"without-ready"}
"""The operator writes Ready in every status."""


def whole(of: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": KIND, **of, "metadata": {"namespace": "n", **of["metadata"]}}


def expected(found: dict[str, str], *, stale: bool, deleting: bool) -> str:
    """The reading in words: what is being deleted, then what was not seen, then what is stuck, then Ready."""
    if deleting:
        return "Terminating"
    if stale:
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"


def test_every_combination_is_read_as_it_is_meant() -> None:
    """Seen or not, deleted or not, whatever the conditions say together: `Stalled` is failed, `Ready` is current."""
    kinds = [kind.value for kind in ConditionType]
    words = (None, "True", "False")
    objects, meant = [], []
    for values in itertools.product((*words, "Unknown"), *([words] * (len(kinds) - 1))):
        told = {kind: value for kind, value in zip(kinds, values, strict=True) if value}
        given = [(kind, value, Reason.AVAILABLE.value) for kind, value in told.items()]
        for stale, deleting in ((False, False), (True, False), (False, True)):
            mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
            objects.append(whole(pool(*given, observed=GENERATION - stale, **mark)))
            meant.append(expected(told, stale=stale, deleting=deleting))
    assert computed(objects) == meant


def test_it_agrees_with_argo_cd() -> None:
    """Each state of the table of Argo CD's health: who waits by the one or by the other waits for the same."""
    rows = {name: row for name, row in TABLE.items() if name not in NOT_SEEN | NEVER_WRITTEN}
    objects = [whole(of) for of, _ in rows.values()]
    for each in objects:
        if "deletionTimestamp" in each["metadata"]:
            each["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for name, said, of in zip(rows, computed(objects), objects, strict=True):
        state, _ = health(of)
        assert said in MEANT[state], name
        stalled = any(each["type"] == "Stalled" for each in of["status"]["conditions"])
        assert not stalled or said in ("Failed", "Terminating"), name


def test_a_pool_that_nobody_has_seen_says_nothing() -> None:
    """The one reading that is not ours to mend by conditions; the page says what to do about it."""
    assert computed([whole(TABLE[name][0]) for name in sorted(NOT_SEEN)]) == ["Current", "Current"]
