"""What holds of every tick, whatever is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_operator import autoscale
from pdpool_operator.autoscale import Limits, Measure, Memory, Observation, PodReading, RoleMemory, RoleReading
from pdpool_operator.autoscale import signals as all_signals
from pdpool_operator.autoscale.demand import View
from tests.operator.scaling import PROMETHEUS, limits

if TYPE_CHECKING:
    import random

PREFILL, DECODE = Role.PREFILL, Role.DECODE
ROLES = (PREFILL, DECODE)
NOW = 10_000.0
PER_POD = [each for each in Measure if autoscale.measures.source_of(each) in ("engines", "GPU metrics")]

role_specs = st.builds(
    lambda least, extra, up, down, step: {
        "minReplicas": least,
        "maxReplicas": least + extra,
        "scaleUp": {"stabilizationSeconds": up, "maxStep": step},
        "scaleDown": {"stabilizationSeconds": down, "maxStep": step},
    },
    st.integers(1, 3),
    st.integers(0, 9),
    st.sampled_from([0, 30, 120]),
    st.sampled_from([0, 60, 300]),
    st.integers(0, 5),
)


@st.composite
def bounded(draw: st.DrawFn) -> Limits:
    """Limits of two autoscaled roles, with and without a cap and a ratio."""
    prefill, decode = draw(role_specs), draw(role_specs)
    tensors = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 4)]))
    least = prefill["minReplicas"] * tensors[0] + decode["minReplicas"] * tensors[1]
    cap = draw(st.none() | st.integers(least, least + 16))
    found = limits(
        {**prefill, "signals": [{"type": "QueueDepth", "target": draw(st.sampled_from([1, 4, 10]))}]},
        {**decode, "signals": [{"type": "KvCacheUsage", "target": 0.8}, {"type": "GpuDramActive", "target": 0.5}]},
        autoscaling={**PROMETHEUS, "ratio": {"maxPrefillPerDecode": draw(st.sampled_from([0, 1, 2.5]))}},
        **({} if cap is None else {"maxGpus": cap}),
    )
    roles = {
        role: replace(each, gpus=dict(zip(ROLES, tensors, strict=True)).get(role, 0))
        for role, each in found.roles.items()
    }
    return replace(found, roles=roles)


def values(role: Role) -> st.SearchStrategy[dict[Measure, float]]:
    measures = (Measure.WAITING, Measure.UNSTARTED) if role is PREFILL else (Measure.KV_USAGE, Measure.GPU_DRAM)
    highest = 200.0 if role is PREFILL else 1.0
    return st.dictionaries(st.sampled_from(measures), st.floats(0, highest), max_size=2)


def readings(role: Role) -> st.SearchStrategy[RoleReading]:
    pod = st.builds(
        lambda name, kind, told: PodReading(
            name,
            ready=kind == "ready",
            leaving=kind == "leaving",
            unschedulable=kind == "unschedulable",
            values=told if kind in ("ready", "leaving") else {},
        ),
        st.uuids().map(str),
        st.sampled_from(["ready", "ready", "ready", "starting", "leaving", "unschedulable"]),
        values(role),
    )
    pods = st.lists(pod, max_size=6, unique_by=lambda each: each.name).map(tuple)
    return st.builds(lambda each, size: RoleReading(size=size, pods=each), pods, st.none() | st.integers(0, 12))


observations = st.builds(
    lambda prefill, decode, queued: Observation(
        {PREFILL: prefill, DECODE: decode}, {} if queued is None else {Measure.QUEUED: queued}
    ),
    readings(PREFILL),
    readings(DECODE),
    st.none() | st.floats(0, 100),
)


@st.composite
def memories(draw: st.DrawFn, of: Limits) -> Memory:
    """What earlier ticks may have left: a size within the bounds, a history of what was asked for."""
    roles = {}
    for role, each in of.roles.items():
        size = draw(st.integers(each.least, each.most))
        count = draw(st.integers(0, 25))
        asked = tuple(
            (NOW - 15.0 * (count - number), draw(st.integers(each.least, each.most))) for number in range(count)
        )
        roles[role] = RoleMemory(size, asked=asked, since=asked[0][0] if asked else None)
    return Memory(at=NOW - 15.0 if draw(st.booleans()) else None, roles=roles)


@st.composite
def ticks(draw: st.DrawFn) -> tuple[Limits, Memory, Observation]:
    of = draw(bounded())
    return of, draw(st.just(Memory()) | memories(of)), draw(observations)


def gpus(of: Limits, sizes: dict[Role, int]) -> int:
    return sum(of.roles[role].gpus * sizes[role] for role in ROLES)


def sizes(decision: autoscale.Decision) -> dict[Role, int]:
    return {role: each.size for role, each in decision.roles.items()}


@given(ticks())
def test_sizes_stay_within_their_bounds(case: tuple[Limits, Memory, Observation]) -> None:
    """From a size within the bounds a tick leads to one within them, never further than a step."""
    of, memory, seen = case
    decision = autoscale.tick(seen, memory, of, NOW)
    for role, each in decision.roles.items():
        if memory.roles:
            assert of.roles[role].least <= each.size <= of.roles[role].most
            step = of.roles[role].up_step
            assert not step or each.size <= each.before + step


@given(ticks())
def test_the_budget_is_never_exceeded(case: tuple[Limits, Memory, Observation]) -> None:
    """What is decided, and what is still there beside it, fits the cap; a pool above it never grows."""
    of, memory, seen = case
    if of.max_gpus is None:
        return
    decision = autoscale.tick(seen, memory, of, NOW)
    grown = {role: each for role, each in decision.roles.items() if each.size > each.before}
    held = {
        role: max(
            decision.roles[role].size,
            sum(1 for pod in seen.of(role).pods if not pod.leaving and not pod.unschedulable),
        )
        + sum(1 for pod in seen.of(role).pods if pod.leaving)
        for role in ROLES
    }
    if grown:
        assert gpus(of, held) <= of.max_gpus
    if memory.roles:
        assert gpus(of, sizes(decision)) <= max(of.max_gpus, gpus(of, {role: of.roles[role].least for role in ROLES}))


@given(ticks(), st.data())
def test_more_demand_never_gives_fewer_replicas(case: tuple[Limits, Memory, Observation], data: st.DataObject) -> None:
    """Raising one reading of one pod lowers no size of its role; without a cap or ratio that ties the roles."""
    of, memory, seen = case
    of = replace(of, max_gpus=None, most_ratio=0.0)
    role = data.draw(st.sampled_from(ROLES))
    told = [pod for pod in seen.of(role).pods if pod.values]
    if not told:
        return
    pod = data.draw(st.sampled_from(told))
    measure = data.draw(st.sampled_from(sorted(pod.values)))
    more = replace(pod, values={**pod.values, measure: pod.values[measure] + data.draw(st.floats(0, 100))})
    reading = replace(seen.of(role), pods=tuple(more if each is pod else each for each in seen.of(role).pods))
    raised = replace(seen, roles={**seen.roles, role: reading})
    before = sizes(autoscale.tick(seen, memory, of, NOW))
    after = sizes(autoscale.tick(raised, memory, of, NOW))
    assert after[role] >= before[role]


@given(ticks(), st.integers(2, 12))
def test_constant_readings_never_multiply(case: tuple[Limits, Memory, Observation], count: int) -> None:
    """However often the same is read while replicas are on their way, a role grows to what that load needs, no more."""
    of, memory, seen = case
    first = {role: max(each.size, 1) for role, each in memory.roles.items()} if memory.roles else {}
    needed: dict[Role, float] = {}
    now = NOW
    for _ in range(count):
        decision = autoscale.tick(seen, memory, of, now)
        for role, each in decision.roles.items():
            own = [total for kind, total in each.demands.items() if not kind.startswith("Gpu")]
            needed[role] = max(own, default=0.0)
            first.setdefault(role, each.before)
        memory = decision.memory
        now += 15.0
    for role in ROLES:
        history = [asked for _, asked in memory.roles[role].asked]
        most = max([needed[role] + 1, first[role], of.roles[role].least, *history[:-count]])
        assert memory.roles[role].size <= most


@given(ticks())
def test_unknown_neither_grows_nor_shrinks(case: tuple[Limits, Memory, Observation]) -> None:
    """A role that nobody tells anything about keeps its size, within its bounds and the cap."""
    of, memory, seen = case
    of = replace(of, max_gpus=None, most_ratio=0.0)
    silent = {
        role: replace(each, pods=tuple(replace(pod, values={}) for pod in each.pods))
        for role, each in seen.roles.items()
    }
    decision = autoscale.tick(Observation(silent), memory, of, NOW)
    for role, each in decision.roles.items():
        bounds = of.roles[role]
        assert each.size == min(max(each.before, bounds.least, 1), bounds.most)
        assert each.unknown


@given(ticks())
def test_a_role_never_shrinks_below_what_is_known(case: tuple[Limits, Memory, Observation]) -> None:
    """After a tick the load that is known fits the role, or the role did not shrink of its own accord."""
    of, memory, seen = case
    of = replace(of, max_gpus=None, most_ratio=0.0)
    decision = autoscale.tick(seen, memory, of, NOW)
    for role, each in decision.roles.items():
        if each.size < each.before and each.size < of.roles[role].most:
            own = [total for kind, total in each.demands.items()]
            assert each.size >= max(own) - 1e-6


@st.composite
def queues(draw: st.DrawFn) -> tuple[Observation, Observation]:
    """A prefill role that its replicas can carry, as everybody tells it, and as it looks when some tell nothing.

    An engine tells all of its page or nothing, and so does each of two routers. Who has been sent something runs.
    """
    pages, told = [], []
    for _ in range(draw(st.integers(1, 6))):
        running = draw(st.integers(0, 3))
        waiting = draw(st.integers(0, 4)) if running else 0
        pages.append({Measure.WAITING: float(waiting), Measure.RUNNING: float(running), Measure.KV_USAGE: 0.0})
        # What one pod has on target is 10: of waiting and sent requests the larger, and its share of the queue.
        told.append([float(draw(st.integers(0, 4))) if running else 0.0 for _ in range(2)])
    queued = [1.0 if all(page[Measure.RUNNING] for page in pages) else 0.0] * 2
    heard = [draw(st.booleans()) for _ in range(2)]
    silent = [draw(st.booleans()) for _ in pages]

    def seen(routers: list[bool], lost: list[bool]) -> Observation:
        pods = []
        for number, (page, sent) in enumerate(zip(pages, told, strict=True)):
            values = {} if lost[number] else dict(page)
            if any(routers):
                values[Measure.UNSTARTED] = sum(each for each, is_heard in zip(sent, routers, strict=True) if is_heard)
                values[Measure.UNSTARTED_PROMPT_TOKENS] = values[Measure.UNSTARTED]
            pods.append(PodReading(f"p{number}", values=values))
        total = sum(each for each, is_heard in zip(queued, routers, strict=True) if is_heard)
        gateway = {Measure.QUEUED: total, Measure.INFLIGHT: total} if any(routers) else {}
        return Observation({PREFILL: RoleReading(len(pods), tuple(pods))}, gateway, partial=not all(routers))

    return seen([True, True], [False for _ in pages]), seen(heard, silent)


@given(queues(), st.sampled_from(["QueueDepth", "QueuedPromptTokens"]))
def test_who_is_not_heard_shrinks_nothing(case: tuple[Observation, Observation], signal: str) -> None:
    """Of a load that fits, forgetting any engine or router gives up no replica that the whole would have kept."""
    whole, less = case
    of = limits(
        {"maxReplicas": 8, "scaleDown": {"stabilizationSeconds": 0}, "signals": [{"type": signal, "target": 10}]}
    )
    kept = {seen is whole: autoscale.tick(seen, Memory(), of, NOW).roles[PREFILL].size for seen in (whole, less)}
    assert kept[False] >= kept[True]


@given(st.sampled_from(all_signals.ALL), st.lists(st.floats(0, 50), min_size=1, max_size=5))
def test_a_router_that_is_not_heard_makes_every_signal_cautious(signal: all_signals.Signal, told: list[float]) -> None:
    """What its fellows tell may grow a role, and no ready replica is given up on it."""
    if any(autoscale.source_of(each) != "routers" for each in signal.NEEDS):
        return
    pods = tuple(PodReading(f"p{number}", values=dict.fromkeys(Measure, value)) for number, value in enumerate(told))
    view = View(PREFILL, RoleReading(len(pods), pods), dict.fromkeys(Measure, told[0]))
    whole, part = signal.demand(view, 20.0), signal.demand(replace(view, partial=True, blind=True), 20.0)
    assert whole is not None
    assert part is not None
    assert part.known == whole.known
    assert part.cautious >= max(whole.cautious, 20.0 * len(pods) - 1e-6)


@given(ticks(), st.randoms(use_true_random=False))
def test_the_order_of_pods_means_nothing(case: tuple[Limits, Memory, Observation], chance: random.Random) -> None:
    """Pods in another order give the same decision."""
    of, memory, seen = case
    mixed = {
        role: replace(each, pods=tuple(chance.sample(each.pods, len(each.pods)))) for role, each in seen.roles.items()
    }
    assert autoscale.tick(replace(seen, roles=mixed), memory, of, NOW) == autoscale.tick(seen, memory, of, NOW)


@given(st.sampled_from(all_signals.ALL), st.lists(st.floats(0, 1000), min_size=1, max_size=5), st.floats(0, 1000))
def test_every_signal_is_monotone_and_knows_unknown(signal: all_signals.Signal, told: list[float], more: float) -> None:
    """A signal grows with each reading, is cautious upwards only, and without any reading is unknown."""
    pods = [
        PodReading(f"p{number}", values=dict.fromkeys(Measure, value) if value else {})
        for number, value in enumerate(told)
    ]

    def view(of: list[PodReading], gateway: dict[Measure, float], query: float | None) -> View:
        return View(DECODE, RoleReading(size=len(of), pods=tuple(of), query=query), gateway)

    assert signal.demand(view([replace(pod, values={}) for pod in pods], {}, None), 2.0) is None
    gateway: dict[Measure, Any] = dict.fromkeys(Measure, told[0])
    low = signal.demand(view(pods, gateway, told[0]), 2.0)
    raised = [replace(pods[0], values=dict.fromkeys(Measure, told[0] + more)), *pods[1:]]
    high = signal.demand(view(raised, dict.fromkeys(Measure, told[0] + more), told[0] + more), 2.0)
    assert high is not None
    assert high.cautious >= high.known
    if low is not None:
        assert low.cautious >= low.known
        assert high.known >= low.known - 1e-9


def test_every_measure_is_needed_by_something() -> None:
    """Nothing is collected that nobody reads."""
    needed = frozenset().union(*(each.NEEDS for each in all_signals.ALL))
    assert needed | {Measure.SERVED_TOKENS} == frozenset(Measure)
