"""Scaling rules on simulated days: books that balance, rules worked out by hand, and no growth without load."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from pdpool_sim.generators import GENERATORS
from pdpool_sim.hardware import shapes
from pdpool_sim.run import Slo
from pdpool_sim.scaling.agreement import BOUND, agreement
from pdpool_sim.scaling.bench import DEFAULTS, OURS, RULES, dominated
from pdpool_sim.scaling.clairvoyant import bridged, cheapest
from pdpool_sim.scaling.days import Day, Slot, days, of_workload
from pdpool_sim.scaling.fluid import Flows, Fluid
from pdpool_sim.scaling.ours import Signals, Tick
from pdpool_sim.scaling.replay import replay
from pdpool_sim.scaling.replicas import Replicas
from pdpool_sim.scaling.rivals import RIVALS
from pdpool_sim.scaling.scaler import Seen
from pdpool_sim.scaling.simulation import DRAIN_S, Site

SLO = Slo(ttft_s=2, itl_s=0.05)
LOAD = Slot(20, 2500, 250)


def site() -> Site:
    return Site(*shapes(), SLO)


def flat(seconds: int, load: Slot = LOAD, **more: object) -> Day:
    """A day on which nothing changes."""
    return replace(Day("flat", (load,) * (seconds // 15)), **more)  # type: ignore[arg-type]


def replicas(ready: int, start_s: float = 100.0) -> Replicas:
    made = Replicas(start_s, None, DRAIN_S)
    made.begin(ready)
    return made


def seen(flows: Flows | None, prefill: int = 4, decode: int = 4, now: float = 600.0) -> Seen:
    return Seen(now, replicas(prefill), replicas(decode), flows, 2500, 250)


def test_the_fluid_loses_nothing() -> None:
    """What came is waiting, at decode, or done; the queue grows by what is not got through."""
    prefill, decode = shapes()
    fluid = Fluid(prefill, decode, SLO, 0.7)
    done = 0.0
    for _ in range(100):
        before = fluid.running
        waiting = fluid.waiting
        flows = fluid.second(LOAD, 1, 4)
        through = waiting + flows.arrived - fluid.waiting
        done += before + through - fluid.running
    assert fluid.waiting + fluid.running + done == pytest.approx(100 * LOAD.rate)
    assert fluid.waiting > 0


@pytest.mark.parametrize("sizes", [(2, 1), (2, 2), (3, 2)])
def test_the_fluid_says_what_the_iteration_model_says(sizes: tuple[int, int]) -> None:
    """A load like the trace's, on too few and on enough engines of either role: 3 points of attainment at most."""
    workload = GENERATORS["trace-like"](Random(1), 1500).scaled(3)
    found = agreement(workload, Slo(ttft_s=10, itl_s=0.05), *sizes)
    assert found.apart <= BOUND
    assert (found.iteration > 0.9) is (sizes == (3, 2))


def test_more_engines_never_serve_fewer() -> None:
    """Attainment of a steady load rises with either role's engines, from nothing to all."""
    prefill, decode = shapes()
    heavy = Slot(45, 2500, 250)

    def met(prefills: int, decodes: int) -> float:
        fluid = Fluid(prefill, decode, SLO, 0.7)
        return [fluid.second(heavy, prefills, decodes) for _ in range(240)][-1].met / heavy.rate

    for met_by in ([met(n, 8) for n in range(1, 9)], [met(8, n) for n in range(1, 9)]):
        assert all(later >= earlier - 1e-9 for earlier, later in pairwise(met_by))
        assert met_by[0] < 0.5
        assert met_by[-1] > 0.95


def test_replicas_start_serve_drain_and_cost() -> None:
    """Two more take their start delay, one less drains; seconds of all are paid, those that no node takes are not."""
    role = Replicas(10, 4, 5)
    role.begin(2)
    role.resize(5, 0)
    assert (role.wanted, len(role.starting), role.pending) == (5, 2, 1)
    assert [role.second(float(at)) for at in (1, 9, 10)] == [2, 2, 4]
    assert role.spent_s == 3 * 4
    role.resize(1, 11)
    assert (role.wanted, role.pending, len(role.leaving)) == (1, 0, 3)
    assert role.second(12) == 1
    assert role.spent_s == 12 + 4
    role.second(20)
    assert role.spent_s == 12 + 4 + 1
    assert role.changes == 2


@pytest.mark.parametrize(
    ("rule", "flows", "expected"),
    [
        ("queue HPA", Flows(prefill_waiting=32, decode_waiting=17), (8, 4)),  # 8 a pod / 4; 4.25 / 4 is within 10 %
        ("queue HPA", Flows(prefill_waiting=400), (8, 0)),  # at most twice, or 4 more
        ("thresholds", Flows(prefill_waiting=60, kv_usage=0.7, decode_running=100), (5, 4)),
        ("thresholds", Flows(prefill_waiting=1, kv_usage=0.5, decode_running=100), (3, 3)),
        ("SLA reactive", Flows(ttft_s=3, itl_s=0.06, prefill_busy=1, kv_usage=0.5), (5, 5)),
        ("SLA reactive", Flows(ttft_s=0.1, itl_s=0.01, prefill_busy=0.3, kv_usage=0.5), (3, 3)),
        ("saturation v1", Flows(prefill_busy=0.95, kv_usage=0.75), (5, 5)),
        ("saturation v1", Flows(prefill_busy=0.2, kv_usage=0.2), (3, 3)),
        # 4 + 100,000 / 341,430 = 4.29 replicas' tokens / 0.85 = 5.05; 262,500 / 341,430 / 0.7 = 1.1
        ("saturation v2", Flows(prefill_busy=1.0, prefill_waiting=40, decode_running=100), (6, 2)),
    ],
)
def test_rivals_choose_as_documented(rule: str, flows: Flows, expected: tuple[int, int]) -> None:
    """Sizes worked out by hand from four and four replicas."""
    bounds = site().bounds(flat(60))
    assert RIVALS[rule](bounds).sizes(seen(flows)) == expected


def test_rates_are_divided_by_what_a_replica_does() -> None:
    """Token velocity and the predictive rule: tokens a second over a replica's, rounded up."""
    bounds = site().bounds(flat(60))
    can = bounds.rates
    flows = Flows(arrived=20, prompt_rate=2.5 * can.prefill_tokens_s, output_rate=1.5 * can.decode_tokens_s)
    assert RIVALS["token velocity"](bounds).sizes(seen(flows)) == (3, 2)
    assert RIVALS["SLA predictive"](bounds).sizes(seen(flows))[0] == 3


@pytest.mark.parametrize("rule", [OURS, DEFAULTS, "tick, queues and SLO"])
def test_no_growth_without_load_whatever_metrics_do(rule: str) -> None:
    """A pool without requests never asks for more than it began with: readings lost, noisy, or gone for good."""
    empty = Slot(0.0, 2500, 250)
    for day in (flat(3600, empty), flat(3600, empty, lost=0.5), flat(3600, empty, metric_noise=0.9)):
        began = sum(len(each.ready) for each in site().begin(day, site().bounds(day)))
        assert site().run(day, RULES[rule]).most_size <= began
    blind = flat(3600, blackout=(0.0, 3600.0))
    found = site().run(blind, RULES[rule])
    assert found.changes == 0


def test_the_tick_serves_a_day_and_gives_back_at_night() -> None:
    """A compressed day: nearly all inside the SLO, and fewer GPU-hours than its largest size for the whole time."""
    day = days(3, hours=3)[0]
    found = site().run(day, RULES[OURS])
    assert found.attainment > 0.97
    assert found.gpu_hours < 0.8 * found.most_size * 3
    assert found == site().run(day, RULES[OURS])


def test_the_defaults_do_not_shrink_a_prefill_role_into_a_queue() -> None:
    """A steady load without a queue: what is needed stays, where the size that follows queues alone swings."""
    steady = flat(3600)
    found, swings = (site().run(steady, RULES[rule]) for rule in (DEFAULTS, "queue HPA"))
    assert found.attainment > 0.95
    assert found.changes < swings.changes / 4


def test_short_valleys_are_bridged_and_long_ones_are_not() -> None:
    """A start costs two slots: a valley of two is kept, one of three is left."""
    assert bridged([2, 1, 1, 2], 2) == [2, 2, 2, 2]
    assert bridged([2, 1, 1, 1, 2], 2) == [2, 1, 1, 1, 2]
    assert bridged([3, 1, 2, 1, 1, 1, 3], 2) == [3, 2, 2, 1, 1, 1, 3]


def test_who_knows_the_day_pays_least() -> None:
    """The clairvoyant plan has at least the attainment that is asked for, for fewer GPU-hours than the tick."""
    day = days(1, hours=1)[0]
    ours = site().run(day, partial(Tick, signals=Signals.RATES))
    plan = cheapest(site(), day, ours.attainment)
    assert plan.attainment >= ours.attainment - 0.01
    assert plan.gpu_hours <= ours.gpu_hours


def test_dominated_means_more_for_less() -> None:
    """Only a rival with both counts, and only on its day."""

    def row(rule: str, attainment: float, hours: float) -> dict[str, object]:
        return {"day": "d", "rule": rule, "attainment": attainment, "gpu_hours": hours}

    ours = row(OURS, 0.99, 10.0)
    assert dominated([ours, row("queue HPA", 0.995, 11), row("thresholds", 0.98, 5)]) == []
    assert dominated([ours, row("queue HPA", 0.995, 9)]) == ["d (queue HPA)"]


def test_a_trace_is_replayed_request_by_request_under_the_tick() -> None:
    """A load that grows: replicas are added, serve, and are paid for from the moment they are asked for."""
    even = GENERATORS["trace-like"](Random(1), 600).scaled(2)
    span_s = even.calls[-1].arrival_s
    calls = tuple(replace(call, arrival_s=math.sqrt(call.arrival_s * span_s)) for call in even.calls)
    workload = replace(even, calls=calls)
    day = of_workload(workload, 1.0, 15, 0.85)
    where = Site(*shapes(), Slo(ttft_s=10, itl_s=0.05))
    found = replay(where, workload, day, RULES[DEFAULTS])
    began = sum(len(each.ready) for each in where.begin(day, where.bounds(day)))
    assert found.attainment > 0.9
    assert found.most_size > began
    assert began * span_s / 3600 < found.gpu_hours < found.most_size * (span_s + 1) / 3600
    assert found == replay(where, workload, day, RULES[DEFAULTS])
