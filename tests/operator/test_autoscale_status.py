"""What is said of autoscaled roles: sizes in the children, reasons, the condition, and nothing on a mere restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.names import Role
from pdpool_operator import telemetry
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import Images, Observed, Outcome, PoolRef
from pdpool_operator.sizes import Sizing
from pdpool_operator.status import status

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdpool_operator.sizes import Sizes

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="r:1")
GREW = Sizing(4, 2, "QueueDepth", "31 waiting / 4 per replica", scaled_at=1_767_225_600.0)


def scaled(raw: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The pool with both roles autoscaled."""
    roles = {role: {"hardware": "cpu", "autoscaling": {}} for role in ("prefill", "decode")}
    return {**raw, "spec": {**raw["spec"], **roles, **spec}}


def said(raw: dict[str, Any], sizes: Sizes, *, now: str = NOW) -> dict[str, Any]:
    observed = Observed(PoolRef("serving", "tiny"), raw, {}, ())
    plan = next_plan(observed, IMAGES, None, lambda _spec: sizes)
    return status(observed, plan, Outcome(), now=now)


def active(of: dict[str, Any]) -> dict[str, Any] | None:
    return next((each for each in of["conditions"] if each["type"] == "ScalingActive"), None)


def test_what_demand_asks_for_is_built_and_told(raw_pool: dict[str, Any]) -> None:
    """The tick's size is that of the workload; reason, message and time stand beside the counts."""
    observed = Observed(PoolRef("serving", "tiny"), scaled(raw_pool), {}, ())
    plan = next_plan(observed, IMAGES, None, lambda _spec: {Role.PREFILL: GREW})
    assert plan.desired is not None
    assert plan.desired.replicas == {Role.ROUTER: 1, Role.PREFILL: 4, Role.DECODE: 1}
    found = status(observed, plan, Outcome(), now=NOW)["prefill"]
    assert found["desiredReplicas"] == 4
    assert (found["reason"], found["message"]) == ("QueueDepth", "31 waiting / 4 per replica")
    assert found["lastScaleTime"] == NOW


def test_a_fixed_pool_says_nothing_of_scaling(raw_pool: dict[str, Any]) -> None:
    """No condition, no reason; a condition of earlier days goes."""
    first = said(scaled(raw_pool), {Role.PREFILL: GREW})
    assert active(first) is not None
    after = said({**raw_pool, "status": first}, {})
    assert active(after) is None
    assert after["prefill"]["reason"] == ""
    assert "lastScaleTime" not in after["prefill"]


def test_a_restart_alone_says_nothing_new(raw_pool: dict[str, Any]) -> None:
    """Until something was read, words, times and the condition stand as they were."""
    first = said(scaled(raw_pool), {Role.PREFILL: GREW, Role.DECODE: Sizing(1, 1, "MinReplicas", "minReplicas is 1")})
    unread = {Role.PREFILL: Sizing(4, 4, read=False), Role.DECODE: Sizing(1, 1, read=False)}
    again = said({**scaled(raw_pool), "status": first}, unread, now=LATER)
    assert again == first


@pytest.mark.parametrize(
    ("sizes", "word", "reason", "message"),
    [
        ({Role.PREFILL: GREW}, "True", "Scaling", ""),
        (
            {Role.PREFILL: GREW, Role.DECODE: Sizing(1, 1, unknown="KvCacheUsage (http://p:9090: answered 401)")},
            "False",
            "SignalsUnknown",
            "decode: KvCacheUsage (http://p:9090: answered 401)",
        ),
        ({Role.DECODE: Sizing(1, 1, missing="Ttft (x)")}, "True", "Scaling", "decode: Ttft (x)"),
        (
            {Role.DECODE: Sizing(1, 1, unknown="GpuDramActive (y)", unattributed=True)},
            "False",
            "GpuMetricsUnattributed",
            "decode: GpuDramActive (y)",
        ),
        (
            {Role.DECODE: Sizing(1, 1, missing="GpuDramActive (y)", unattributed=True)},
            "True",
            "GpuMetricsUnattributed",
            "decode: GpuDramActive (y)",
        ),
    ],
)
def test_the_condition_is_false_when_any_role_is_in_the_dark(
    raw_pool: dict[str, Any], sizes: Sizes, word: str, reason: str, message: str
) -> None:
    """It names the role and the source; signals that are missing beside known ones are told all the same."""
    found = active(said(scaled(raw_pool), sizes))
    assert found is not None
    assert (found["status"], found["reason"], found["message"]) == (word, reason, message)


def test_sizes_are_shown_as_metrics_while_the_pool_exists(raw_pool: dict[str, Any]) -> None:
    """Demand per signal, sizes and activity; an unknown signal has no series, and a pool that is gone has none."""
    del raw_pool
    ref = PoolRef("serving", "tiny")
    label = {"namespace": "serving", "pool": "tiny", "role": "decode"}
    value: Callable[..., float | None] = telemetry.REGISTRY.get_sample_value
    telemetry.tell_desired(ref, {Role.DECODE: 3})
    telemetry.tell_sizes(ref, {Role.DECODE: Sizing(3, 3, demands={"QueueDepth": 2.5})})
    assert value("pdpool_operator_desired_replicas", label) == 3
    assert value("pdpool_operator_demand", {**label, "signal": "QueueDepth"}) == 2.5
    assert value("pdpool_operator_scaling_active", label) == 1
    telemetry.tell_sizes(ref, {Role.DECODE: Sizing(3, 3, unknown="why")})
    assert value("pdpool_operator_demand", {**label, "signal": "QueueDepth"}) is None
    assert value("pdpool_operator_scaling_active", label) == 0
    telemetry.forget(ref)
    assert value("pdpool_operator_desired_replicas", label) is None
