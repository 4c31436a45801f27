"""The size of a role as its workload shows it."""

from __future__ import annotations

from typing import Any

import pytest

from pdpool_api import names
from pdpool_api.names import Role
from pdpool_operator.observe import workload
from pdpool_operator.records import ChildKey, Observed, PoolRef

OURS = {names.ANNOTATION_DRAINING: "t", names.ANNOTATION_DELETION_COST: "-1000000"}
SPENT = {names.ANNOTATION_DRAINING: "t", names.ANNOTATION_DELETION_COST: "-2000000"}
BY_HAND = {names.ANNOTATION_DRAINING: "t"}
GOING = "going"
LABELS = {names.LABEL_ROLE: "decode"}


def observed(asked: list[int], pods: list[Any], status: dict[str, Any]) -> Observed:
    live = {
        ChildKey("Deployment", f"d{number}"): {"metadata": {"labels": LABELS}, "spec": {"replicas": each}}
        for number, each in enumerate(asked)
    }
    raw = []
    for each in pods:
        metadata: dict[str, Any] = {"labels": LABELS, "annotations": None if each == GOING else each}
        raw.append({"metadata": metadata | ({"deletionTimestamp": "t"} if each == GOING else {}), "status": {}})
    return Observed(PoolRef("n", "p"), {"status": status}, live, tuple(raw))


@pytest.mark.parametrize(
    ("asked", "pods", "size"),
    [
        ([], [], None),
        ([3], [], 3),
        ([3], [{}, {}, {}], 3),
        ([3], [{}, {}, OURS], 2),
        ([3], [{}, OURS, SPENT], 1),
        ([3], [{}, {}, BY_HAND], 3),
        # Its Deployment asks for it no more, and Kubernetes has not removed it yet.
        ([2], [{}, {}, SPENT], 2),
        ([2], [{}, OURS, SPENT], 1),
        ([2], [{}, {}, GOING], 2),
        ([0], [OURS], 0),
        ([1, 2], [{}, OURS, {}], 7),
    ],
    ids=repr,
)
def test_what_leaves_is_not_part_of_a_size(asked: list[int], pods: list[Any], size: int | None) -> None:
    """Marked pods count in their Deployment and not in the role's size; beside another revision the status says it."""
    found = workload.size(observed(asked, pods, {"decode": {"desiredReplicas": 7}}), Role.DECODE)
    assert found == size
