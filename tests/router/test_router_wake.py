"""When requests are held for a pool that wakes, and when they are refused because it is broken."""

from __future__ import annotations

from typing import Any

import pytest

from pdpool_api.names import ANNOTATION_DRAINING, LABEL_ROLE
from pdpool_router.feeds.pods import life_of
from pdpool_router.flow.wake import GRACE_S, REPLACED_S, Wake
from pdpool_router.records import Life


def pod(role: str = "decode", *, leaves: bool = False, drains: bool = False, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": {LABEL_ROLE: role}}
    if leaves:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if drains:
        metadata["annotations"] = {ANNOTATION_DRAINING: "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": {"phase": "Running", **status}}


STARTING = {"containerStatuses": [{"started": False, "restartCount": 0}]}
CRASHED = {"containerStatuses": [{"started": False, "restartCount": 1}]}
STARTED = {"containerStatuses": [{"started": True, "restartCount": 0}]}


@pytest.mark.parametrize(
    ("pods", "life"),
    [
        ([], Life.ABSENT),
        ([pod(leaves=True)], Life.ABSENT),
        ([pod(drains=True), pod("prefill", drains=True, **STARTED)], Life.ABSENT),  # the pool goes to zero
        ([pod(drains=True), pod("prefill", **STARTED)], Life.ABSENT),  # one write later the other role does too
        ([pod(**STARTED), pod("prefill", leaves=True)], Life.ABSENT),
        ([pod(drains=True), pod(**STARTED), pod("prefill", **STARTED)], Life.STARTED),  # one of two replicas leaves
        ([pod(drains=True), pod(phase="Pending")], Life.STARTING),
        ([pod("router")], Life.ABSENT),
        ([{}], Life.ABSENT),
        ([pod(phase="Pending")], Life.STARTING),
        ([pod(**STARTING)], Life.STARTING),
        ([pod(**STARTED), pod("prefill", **STARTING)], Life.STARTING),
        ([pod()], Life.STARTED),
        ([pod(**STARTED)], Life.STARTED),
        ([pod(**CRASHED)], Life.STARTED),
    ],
)
def test_what_pods_say_of_their_pool(pods: list[dict[str, Any]], life: Life) -> None:
    """Absent, starting for the first time, or started: a crash loop is no start."""
    assert life_of(pods) is life


def test_a_wake_lasts_from_zero_until_a_request_can_be_served() -> None:
    """Q38: also through the moment between a container's start and its readiness."""
    wake = Wake()
    assert wake.look(Life.ABSENT, serves=False, now_s=0)
    assert wake.look(Life.STARTING, serves=False, now_s=60)
    assert wake.look(Life.STARTED, serves=False, now_s=62)
    assert not wake.look(Life.STARTED, serves=True, now_s=65)


def test_a_pool_that_does_not_get_ready_after_its_start_is_broken() -> None:
    """Who waits is told so after the grace, and who comes is refused at once."""
    wake = Wake()
    assert wake.look(Life.ABSENT, serves=False, now_s=0)
    assert wake.look(Life.STARTED, serves=False, now_s=GRACE_S)
    assert not wake.look(Life.STARTED, serves=False, now_s=GRACE_S + 1)
    assert not wake.look(Life.STARTED, serves=False, now_s=GRACE_S + 2)


def test_a_replaced_pod_is_no_sleep() -> None:
    """A Deployment of one replica has no pod for a moment when it is deleted by hand."""
    wake = Wake()
    assert wake.look(Life.ABSENT, serves=False, now_s=10)
    assert not wake.look(Life.STARTING, serves=False, now_s=10 + REPLACED_S / 2)
    assert not wake.look(Life.STARTING, serves=False, now_s=90)


@pytest.mark.parametrize("life", [Life.STARTED, Life.STARTING])
def test_an_outage_of_a_running_pool_is_no_sleep(life: Life) -> None:
    """Q53, Q49: pods that are not ready, or being replaced: 503 at once."""
    wake = Wake()
    assert not wake.look(life, serves=True, now_s=100)
    assert not wake.look(life, serves=False, now_s=200)
