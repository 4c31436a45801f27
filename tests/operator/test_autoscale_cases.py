"""What people reported of autoscalers, on the tick with a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdpool_api.names import Role
from pdpool_operator import autoscale
from pdpool_operator.autoscale import Measure, Memory, Observation, PodReading, RoleReading
from tests.operator.scaling import PROMETHEUS, Clock, limits, of_load, pods, reading, starting

PREFILL, DECODE, ROUTER = Role.PREFILL, Role.DECODE, Role.ROUTER
QUEUE_10 = {"signals": [{"type": "QueueDepth", "target": 10}]}
KV_09 = {"signals": [{"type": "KvCacheUsage", "target": 0.9}]}
AGGREGATED = Role.AGGREGATED


def once(of: autoscale.Limits, observation: Observation, memory: Memory | None = None) -> autoscale.Decision:
    return autoscale.tick(observation, memory or Memory(), of, 1000.0)


def test_a_decode_that_waits_for_kv_grows_by_what_the_routers_know() -> None:
    """64 requests whose decode has not sent a byte are decode's queue, though its engine counts none (Q27)."""
    of = limits({"maxReplicas": 8}, {"maxReplicas": 16, "signals": [{"type": "QueueDepth", "target": 8}]})
    decode = reading(*pods(1, waiting=0, running=0, unstarted=64))
    seen = Observation({PREFILL: reading(*pods(1, waiting=0, unstarted=0)), DECODE: decode})
    clock = Clock(of, lambda _now, _sizes: seen)
    clock.run(16)
    assert clock.sizes[DECODE] == 8
    assert clock.sizes[PREFILL] == 1


def test_only_the_role_that_is_loaded_grows() -> None:
    """Prefill's queue grows prefill to its maximum, decode's KV grows decode; roles never mix (Q28)."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, {"minReplicas": 1, "maxReplicas": 8})
    two = {DECODE: reading(*pods(2, waiting=0, kv_usage=0.2)), PREFILL: reading(*pods(2, waiting=40))}
    clock = Clock(of, lambda _now, _sizes: Observation(two))
    assert clock.run(31)[PREFILL] == 8
    assert clock.sizes[DECODE] == 2
    two = {DECODE: reading(*pods(2, waiting=0, kv_usage=0.95)), PREFILL: reading(*pods(2, waiting=0))}
    mirrored = Clock(of, lambda _now, _sizes: Observation(two))
    mirrored.run(31)
    assert (mirrored.sizes[PREFILL], mirrored.sizes[DECODE]) == (2, 3)


def test_a_latency_without_traffic_holds_nothing_up() -> None:
    """After the load the queue is 0 and no latency is measured: prefill returns to its minimum in its window (Q29)."""
    signals = [{"type": "QueueDepth", "target": 10}, {"type": "Ttft", "target": 500}]
    of = limits({"maxReplicas": 8, "signals": signals}, 1)

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        busy = now < 1300
        size = sizes.get(PREFILL, 1)
        waiting = 70 / size if busy else 0
        gateway = {Measure.TTFT_MS: 480.0} if busy else {}
        return Observation({PREFILL: reading(*pods(size, waiting=waiting))}, gateway)

    clock = Clock(of, observe)
    assert clock.run(300)[PREFILL] == 7
    assert clock.run(360)[PREFILL] == 1


@pytest.mark.parametrize("words", ["an empty result", "answered 503", "no answer in 5 s", "NaN"])
def test_unknown_is_not_zero(words: str) -> None:
    """Whatever keeps a reading away, the size holds and the reason is said; a true 0 shrinks after its window (Q30)."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1, autoscaling=PROMETHEUS)
    known = {"now": 70.0}

    def observe(_now: float, sizes: dict[Role, int]) -> Observation:
        size = sizes.get(PREFILL, 1)
        if "now" in known:
            return Observation({PREFILL: reading(*pods(size, waiting=known["now"] / size))})
        faults = {Measure.WAITING: f"http://prometheus:9090: {words}"}
        return Observation({PREFILL: reading(*pods(size), faults=faults)})

    clock = Clock(of, observe)
    assert clock.run(60)[PREFILL] == 7
    del known["now"]
    assert clock.run(600)[PREFILL] == 7
    assert clock.last is not None
    said = clock.last.roles[PREFILL]
    assert (said.reason, words in said.message, words in said.unknown) == ("SignalsUnknown", True, True)
    known["now"] = 0.0
    assert clock.run(240)[PREFILL] == 7
    assert clock.run(120)[PREFILL] == 1
    known["now"] = 80.0
    assert clock.run(30)[PREFILL] == 8


def test_pods_on_their_way_are_bought() -> None:
    """Two pods at 20 against 10 need four; while the other two load for five minutes nothing more is bought (Q32)."""
    of = limits({"maxReplicas": 16, **QUEUE_10}, 1)

    def observe(_now: float, sizes: dict[Role, int]) -> Observation:
        wanted = sizes.get(PREFILL, 2)
        return Observation({PREFILL: reading(*pods(2, waiting=20), *starting(wanted - 2), size=wanted)})

    clock = Clock(of, observe)
    clock.run(300)
    assert clock.changes(PREFILL) == [4]


@pytest.mark.parametrize(("began", "changes"), [(2, [2]), (4, [4, 2])])
@pytest.mark.parametrize("target", [0.8, 0.9])
def test_survivors_get_the_load(began: int, changes: list[int], target: float) -> None:
    """A constant KV load of 1.4 is two replicas, from above and from where it is; nothing swings in an hour (Q34)."""
    of = limits(1, {"maxReplicas": 8, "signals": [{"type": "KvCacheUsage", "target": target}]})

    def observe(_now: float, sizes: dict[Role, int]) -> Observation:
        size = sizes.get(DECODE, began)
        return Observation({DECODE: reading(*pods(size, kv_usage=1.4 / size))})

    clock = Clock(of, observe)
    clock.run(3600)
    assert clock.changes(DECODE) == changes


@pytest.mark.parametrize("also", [[], [{"type": "QueueDepth", "target": 4}]])
def test_a_busy_gpu_buys_nothing(also: list[dict[str, object]]) -> None:
    """Utilization is near 1 on every pod that exists, also on new ones: it never grows a role (Q36)."""
    signals = [*also, {"type": "GpuUtilization", "target": 0.8}]
    of = limits(1, {"maxReplicas": 8, "signals": signals}, autoscaling=PROMETHEUS)
    kind = {"gpu_utilization": 0.95, "waiting": 0.0}
    clock = Clock(of, lambda _now, sizes: Observation({DECODE: reading(*pods(sizes.get(DECODE, 1), **kind))}))
    clock.run(1800)
    assert clock.changes(DECODE) == [1]


def test_a_busy_gpu_holds_what_there_is_and_follows_the_queue() -> None:
    """GPU signals never ask for more than the size, or than another signal does."""
    signals = [{"type": "QueueDepth", "target": 4}, {"type": "GpuTensorActive", "target": 0.5}]
    of = limits(1, {"maxReplicas": 8, "signals": signals}, autoscaling=PROMETHEUS)
    busy = Observation({DECODE: reading(*pods(2, waiting=6, gpu_tensor=1.0))})
    assert once(of, busy).memory.roles[DECODE].size == 3


def test_a_pool_of_one_unknown_signal_says_which() -> None:
    """GPU series that name no pod of the pool give a reason of their own."""
    of = limits(1, {"signals": [{"type": "GpuTensorActive", "target": 0.5}]}, autoscaling=PROMETHEUS)
    found = once(of, Observation({DECODE: reading(*pods(2), unattributed=True)})).roles[DECODE]
    assert (found.reason, found.size, found.unattributed) == ("GpuMetricsUnattributed", 2, True)
    assert found.unknown


def test_a_gauge_that_is_missing_everywhere_shrinks_nothing() -> None:
    """Neither name of the KV gauge is there: no ready replica is given up, and its absence is said (Q25)."""
    of = limits(1, {"scaleDown": {"stabilizationSeconds": 0}})
    clock = Clock(of, lambda _now, _sizes: Observation({DECODE: reading(*pods(3, waiting=0))}))
    assert clock.run(60)[DECODE] == 3
    assert clock.last is not None
    assert "KvCacheUsage" in clock.last.roles[DECODE].missing
    assert clock.last.roles[DECODE].unknown == ""


def test_what_is_said_of_an_unknown_signal_ends_when_it_is_known() -> None:
    """The size is the same, for another reason: the words are those of the reading."""
    of = limits(1, {"scaleDown": {"stabilizationSeconds": 0}})
    told: dict[str, float | None] = {"waiting": 0, "kv_usage": None}
    clock = Clock(of, lambda _now, _sizes: Observation({DECODE: reading(*pods(3, **told))}))
    clock.run(30)
    assert clock.last is not None
    assert clock.last.roles[DECODE].message == "KvCacheUsage unknown"
    told["kv_usage"] = 0.7
    clock.run(30)
    assert clock.last.roles[DECODE].message == "2.1 of KV in use / 0.8 per replica"


def test_pods_that_are_not_ready_never_block_shrinking() -> None:
    """Six replicas that load or find no node tell nothing, and are given up with the rest."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    idle = Observation(
        {PREFILL: reading(*pods(1, waiting=0), *starting(3), *starting(3, first=200, unschedulable=True))}
    )
    clock = Clock(of, lambda _now, _sizes: idle)
    assert clock.run(330)[PREFILL] == 1


def test_an_outage_of_every_replica_is_no_lack_of_demand() -> None:
    """No replica is ready, and nothing waits because nothing is accepted: the size holds."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    out = Observation({PREFILL: reading(*starting(5))}, {Measure.QUEUED: 0.0})
    clock = Clock(of, lambda _now, _sizes: out)
    assert clock.run(900)[PREFILL] == 5
    out = Observation({PREFILL: reading(*starting(5))}, {Measure.QUEUED: 70.0})
    assert clock.run(30)[PREFILL] == 7


def test_a_restart_holds_until_a_window_is_full() -> None:
    """After a restart the live size stands until the window holds fresh readings only."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    clock = Clock(of, lambda _now, sizes: Observation({PREFILL: reading(*pods(sizes.get(PREFILL, 6), waiting=0))}))
    clock.run(290)
    clock.restart()
    assert clock.run(285)[PREFILL] == 6
    assert clock.run(30)[PREFILL] == 1


def test_a_lost_scrape_does_not_begin_the_window_anew() -> None:
    """Readings that come and go let a role shrink all the same."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        lost = int(now / 15) % 3 == 0
        return Observation({PREFILL: reading(*pods(sizes.get(PREFILL, 6), waiting=None if lost else 0))})

    assert Clock(of, observe).run(345)[PREFILL] == 1


def test_a_manual_edit_is_corrected() -> None:
    """Somebody scales the workload: the size that was decided stands."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    edited = {"to": 3}
    clock = Clock(of, lambda _now, _sizes: Observation({PREFILL: reading(*pods(3, waiting=10), size=edited["to"])}))
    assert clock.run(30)[PREFILL] == 3
    edited["to"] = 7
    clock.run(30)
    assert clock.changes(PREFILL) == [3]


def test_a_paused_role_holds() -> None:
    """Paused: whatever demand says, the size stays, and status says so."""
    of = limits({"maxReplicas": 8, "paused": True, **QUEUE_10}, 1)
    clock = Clock(of, lambda _now, _sizes: Observation({PREFILL: reading(*pods(2, waiting=40))}))
    assert clock.run(60)[PREFILL] == 2
    assert clock.last is not None
    assert clock.last.roles[PREFILL].reason == "Paused"


def test_a_dry_run_says_what_it_would_do() -> None:
    """Dry run: the size stays and the message tells the decision; a human's edit is not corrected."""
    of = limits({"maxReplicas": 8, "dryRun": True, **QUEUE_10}, 1)
    live = {"size": 2}
    clock = Clock(of, lambda _now, _sizes: Observation({PREFILL: reading(*pods(2, waiting=20), size=live["size"])}))
    assert clock.run(60)[PREFILL] == 2
    assert clock.last is not None
    said = clock.last.roles[PREFILL]
    assert said.reason == "QueueDepth"
    assert said.message == "dry run, would be 4 instead of 2: 40 waiting / 10 per replica"
    live["size"] = 3
    assert clock.run(15)[PREFILL] == 3


def test_words_change_with_decisions_only() -> None:
    """The message of a size stays while readings move and the size does not."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    clock = Clock(of, of_load(PREFILL, Measure.WAITING, lambda now: 31 + (now % 7)))
    clock.run(15)
    assert clock.last is not None
    said = clock.last.roles[PREFILL]
    assert said.reason == "QueueDepth"
    assert said.message.endswith("waiting / 10 per replica")
    clock.run(150)
    assert clock.last.roles[PREFILL].message == said.message
    assert clock.last.roles[PREFILL].scaled_at == said.scaled_at == 1000.0


def test_a_size_that_new_bounds_change_says_so() -> None:
    """Demand asks for one all the time, and the window would hold four: it is the bounds that move the size."""
    clock = Clock(limits({"maxReplicas": 8, **QUEUE_10}, 1), of_load(PREFILL, Measure.WAITING, lambda _now: 5))
    clock.run(30)
    said = []
    for bounds in ({"minReplicas": 4, "maxReplicas": 8}, {"minReplicas": 1, "maxReplicas": 2}):
        clock.limits = limits({**bounds, **QUEUE_10}, 1)
        clock.run(15)
        assert clock.last is not None
        each = clock.last.roles[PREFILL]
        said.append((each.size, each.reason, each.message))
    assert said == [(4, "MinReplicas", "minReplicas is 4"), (2, "MaxReplicas", "maxReplicas is 2")]


def test_a_limit_is_named() -> None:
    """Demand beyond the maximum is said beside the signal."""
    of = limits({"maxReplicas": 3, **QUEUE_10}, 1)
    clock = Clock(of, of_load(PREFILL, Measure.WAITING, lambda _now: 90.0))
    clock.run(30)
    assert clock.last is not None
    assert clock.last.roles[PREFILL].message == "90 waiting / 10 per replica, limited by maxReplicas 3"


def test_growth_waits_for_what_leaves() -> None:
    """Within the cap a role shrinks first; the other grows when its pods are gone, leaving ones counted."""
    gpus = {"maxGpus": 8}
    role = {"maxReplicas": 8, "scaleDown": {"stabilizationSeconds": 0}}
    of = limits({**role, **QUEUE_10}, {**role, **KV_09}, **gpus)
    left: list[PodReading] = []

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        prefill, decode = sizes.get(PREFILL, 6), sizes.get(DECODE, 2)
        leaving = [PodReading(f"l{number}", leaving=True) for number in range(6 - prefill)] if now < 1060 else []
        left[:] = leaving
        roles = {
            PREFILL: reading(*pods(prefill, waiting=0), *leaving, size=prefill),
            DECODE: reading(*pods(decode, kv_usage=5.0 / decode)),
        }
        return Observation(roles)

    clock = Clock(of, observe)
    clock.run(60)
    assert (clock.sizes[PREFILL], clock.sizes[DECODE]) == (1, 2)
    clock.run(30)
    assert (clock.sizes[PREFILL], clock.sizes[DECODE]) == (1, 6)


def test_a_short_budget_goes_to_the_bottleneck() -> None:
    """Both roles want more than there is: each gets its share by need, after the loser's window, without swinging."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, {"maxReplicas": 8, **KV_09}, maxGpus=8)

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        prefill, decode = sizes.get(PREFILL, 6), sizes.get(DECODE, 2)
        wobble = 2 * (int(now / 15) % 2)
        roles = {
            PREFILL: reading(*pods(prefill, waiting=(78 + wobble) / prefill)),
            DECODE: reading(*pods(decode, kv_usage=7.2 / decode)),
        }
        return Observation(roles)

    clock = Clock(of, observe)
    clock.run(1800)
    assert clock.changes(PREFILL) == [6, 4]
    assert clock.changes(DECODE) == [2, 4]


def test_unschedulable_pods_give_their_budget_back() -> None:
    """Replicas that no node takes leave their share of a short budget to the other role, which keeps it."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, {"maxReplicas": 8, **KV_09}, maxGpus=8)

    def observe(_now: float, sizes: dict[Role, int]) -> Observation:
        prefill, decode = sizes.get(PREFILL, 6), sizes.get(DECODE, 2)
        stuck = starting(max(0, prefill - 2), unschedulable=True)
        roles = {
            PREFILL: reading(*pods(min(2, prefill), waiting=30), *stuck, size=prefill),
            DECODE: reading(*pods(decode, kv_usage=7.2 / decode)),
        }
        return Observation(roles)

    clock = Clock(of, observe)
    clock.run(600)
    assert (clock.sizes[PREFILL], clock.sizes[DECODE]) == (2, 6)
    assert clock.changes(PREFILL) == [2]


def test_a_ratio_bounds_prefill() -> None:
    """Prefill has as many replicas per decode replica as the ratio allows, and at least as many as it asks for."""
    role = {"maxReplicas": 16, "scaleUp": {"maxStep": 0}}
    ratio = {"ratio": {"minPrefillPerDecode": 0.5, "maxPrefillPerDecode": 2}}
    of = limits({**role, **QUEUE_10}, {**role, **KV_09}, autoscaling=ratio)

    def seen(waiting: float, kv: float) -> Observation:
        return Observation({PREFILL: reading(*pods(1, waiting=waiting)), DECODE: reading(*pods(1, kv_usage=kv))})

    sizes = once(of, seen(100, 1.8)).memory.roles
    assert (sizes[PREFILL].size, sizes[DECODE].size) == (4, 2)
    sizes = once(of, seen(0, 5.4)).memory.roles
    assert (sizes[PREFILL].size, sizes[DECODE].size) == (3, 6)


def test_growth_is_sized_for_when_it_will_be_ready() -> None:
    """With a lookahead four rising readings buy for the load at the end of a start; three do not."""
    role = {"maxReplicas": 32, "scaleUp": {"maxStep": 0, "lookaheadSeconds": 60}, **QUEUE_10}
    of = limits(role, 1)
    clock = Clock(of, lambda now, _sizes: Observation({PREFILL: reading(*pods(1, waiting=40 + (now - 1000)))}))
    assert clock.run(45)[PREFILL] == 7
    assert clock.run(15)[PREFILL] == 15


def test_the_start_time_is_learned() -> None:
    """Lookahead -1 looks as far ahead as this role's replicas take to start."""
    role = {"maxReplicas": 64, "scaleUp": {"maxStep": 0, "lookaheadSeconds": -1}, **QUEUE_10}

    def observe(now: float, _sizes: dict[Role, int]) -> Observation:
        pod = PodReading("p0", start_s=30.0, values={Measure.WAITING: 40 + (now - 1000)})
        return Observation({PREFILL: RoleReading(size=1, pods=(pod,))})

    clock = Clock(limits(role, 1), observe)
    assert clock.run(60)[PREFILL] == 12
    assert clock.memory.roles[PREFILL].start_s == 30.0


ZERO = {"minReplicas": 0, "maxReplicas": 4}
QUIET = {Measure.QUEUED: 0.0, Measure.INFLIGHT: 0.0, Measure.SERVED_TOKENS: 5.0}


def of_zero(gateway: dict[Measure, float], *, running: float = 0.0, ready: bool = True) -> Clock:
    def observe(_now: float, sizes: dict[Role, int]) -> Observation:
        def of(role: Role) -> RoleReading:
            size = sizes.get(role, 1)
            kind = pods(size, waiting=0, running=running, kv_usage=0) if ready else starting(size)
            return reading(*kind)

        return Observation({PREFILL: of(PREFILL), DECODE: of(DECODE)}, dict(gateway))

    return Clock(limits(ZERO, ZERO), observe)


def test_an_idle_pool_goes_to_zero_as_a_whole_and_wakes_as_a_whole() -> None:
    """Nothing asked for during the window: both roles to zero together; one held request wakes both in 2 s (Q38)."""
    gateway = dict(QUIET)
    clock = of_zero(gateway)
    assert clock.run(300)[DECODE] == 1
    clock.run(15)
    assert (clock.sizes[PREFILL], clock.sizes[DECODE]) == (0, 0)
    assert clock.last is not None
    assert clock.last.roles[DECODE].reason == "ScaledToZero"
    assert clock.last.roles[DECODE].unknown == ""
    assert autoscale.interval_s(clock.memory, clock.limits) == 2.0
    clock.run(600)
    assert clock.changes(DECODE) == [1, 0]
    gateway[Measure.QUEUED] = 1.0
    clock.run(2)
    assert (clock.sizes[PREFILL], clock.sizes[DECODE]) == (1, 1)
    assert clock.last.roles[DECODE].reason == "Waking"


def test_a_cancelled_request_lets_a_waking_pool_go_back() -> None:
    """The client left before any pod was ready: the pool goes back to zero after its window (Q38)."""
    gateway = {**QUIET, Measure.QUEUED: 1.0}
    clock = of_zero(gateway, ready=False)
    clock.memory = Memory(roles={role: autoscale.RoleMemory(0) for role in (PREFILL, DECODE, ROUTER)})
    clock.sizes = {PREFILL: 0, DECODE: 0}
    assert clock.run(2)[DECODE] == 1
    gateway[Measure.QUEUED] = 0.0
    assert clock.run(285)[DECODE] == 1
    assert clock.run(30)[DECODE] == 0


def test_a_router_that_is_not_heard_keeps_a_pool_above_zero() -> None:
    """It may hold requests, or run them, that nobody else knows of."""
    partial = {"is": True}
    idle = RoleReading(1, pods(1, waiting=0, running=0, kv_usage=0))
    seen = Observation({PREFILL: idle, DECODE: idle}, QUIET)
    clock = Clock(limits(ZERO, ZERO), lambda _now, _sizes: replace(seen, partial=partial["is"]))
    assert clock.run(900)[DECODE] == 1
    partial["is"] = False
    assert clock.run(330)[DECODE] == 0


@pytest.mark.parametrize("running", [0, 3])
def test_engines_alone_do_not_tell_that_a_busy_role_has_no_queue(running: int) -> None:
    """The queue stands in the routers, of which nobody tells: who runs something is kept, who does not may go."""
    of = limits(1, {"maxReplicas": 8, **QUEUE_10})
    faults = {Measure.QUEUED: "http://prometheus:9090: no series pdpool_router_queued of this pool"}
    seen = reading(*pods(4, waiting=0, running=running), *pods(2, first=4, waiting=0, running=0), faults=faults)
    clock = Clock(of, lambda _now, _sizes: Observation({DECODE: seen}))
    assert clock.run(600)[DECODE] == (4 if running else 1)
    assert clock.last is not None
    assert clock.last.roles[DECODE].unknown == ""
    assert clock.last.roles[DECODE].missing == f"QueueDepth of the routers ({faults[Measure.QUEUED]})"


def test_a_prefill_role_that_keeps_up_is_not_shrunk_into_a_queue() -> None:
    """Without a queue three of five replicas are busy whenever it is looked: three stay, and no queue is needed."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, {"maxReplicas": 8, **QUEUE_10})

    def observe(now: float, sizes: dict[Role, int]) -> Observation:
        first = int(now / 15)

        def of_role(role: Role) -> RoleReading:
            size = sizes.get(role, 5)
            busy = {(first + number) % size for number in range(min(3, size))}
            each = [pods(1, first=number, waiting=0, running=int(number in busy))[0] for number in range(size)]
            return reading(*each)

        return Observation({PREFILL: of_role(PREFILL), DECODE: of_role(DECODE)}, {Measure.QUEUED: 0.0})

    clock = Clock(of, observe)
    clock.run(1200)
    assert clock.changes(PREFILL) == [5, 3]
    assert clock.changes(DECODE) == [5, 1]


def test_a_queue_in_the_routers_grows_a_role_whose_engines_tell_nothing() -> None:
    """What is known asks for growth; what is not known keeps it from shrinking."""
    of = limits({"maxReplicas": 8, **QUEUE_10}, 1)
    assert once(of, Observation({PREFILL: reading(*pods(2))}, {Measure.QUEUED: 50.0})).roles[PREFILL].size == 5
    nothing = once(of, Observation({PREFILL: reading(*pods(2))}, {Measure.QUEUED: 0.0})).roles[PREFILL]
    assert (nothing.size, nothing.reason) == (2, "SignalsUnknown")


@pytest.mark.parametrize(
    ("gateway", "running"),
    [
        ({**QUIET, Measure.INFLIGHT: 1.0}, 0.0),
        ({**QUIET, Measure.QUEUED: 1.0}, 0.0),
        (QUIET, 1.0),
        ({Measure.SERVED_TOKENS: 5.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_a_pool_that_may_be_used_does_not_go_to_zero(gateway: dict[Measure, float], running: float) -> None:
    """A stream that still runs, a held request, or routers that tell nothing keep a pool above zero."""
    clock = of_zero(dict(gateway), running=running)
    clock.run(900)
    assert clock.changes(DECODE) == [1]


def test_requests_between_two_looks_are_seen() -> None:
    """Tokens that were served since the last look are activity, though nothing runs while it is looked."""
    gateway = dict(QUIET)
    clock = of_zero(gateway)
    for _ in range(4):
        clock.run(240)
        gateway[Measure.SERVED_TOKENS] += 3
    assert clock.changes(DECODE) == [1]


def test_routers_scale_by_requests_in_flight() -> None:
    """The number of routers follows their load, within its bounds."""
    of = limits(1, 1, router={"autoscaling": {"minReplicas": 2, "maxReplicas": 6, "targetInflight": 100}})
    gateway = {Measure.INFLIGHT: 380.0, Measure.QUEUED: 40.0}
    decision = once(of, Observation({ROUTER: reading(*pods(2))}, gateway))
    assert decision.roles[ROUTER].size == 5
    assert list(decision.roles) == [ROUTER]


def test_a_fixed_router_is_not_scaled() -> None:
    """MaxReplicas 0 says that the number is fixed."""
    of = limits(1, 1, router={"autoscaling": {"minReplicas": 2}})
    assert not of.scaled


def test_a_pool_at_zero_without_a_router_says_so() -> None:
    """Nobody could wake it: the role has no known signal."""
    clock = of_zero({})
    clock.memory = Memory(roles={role: autoscale.RoleMemory(0) for role in (PREFILL, DECODE, ROUTER)})
    clock.sizes = {PREFILL: 0, DECODE: 0}
    clock.run(4)
    assert clock.last is not None
    assert clock.last.roles[DECODE].unknown
