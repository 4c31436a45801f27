"""The sum: more cached never costs more, more load never attracts, order does not matter, and the hop is weighed."""

from __future__ import annotations

import random
from collections import Counter
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_router.records import (
    Decision,
    Endpoint,
    Load,
    LocalPrefill,
    Match,
    Prompt,
    Request,
    Snapshot,
    Way,
)
from pdpool_router.schedule.interface import Asked
from pdpool_router.schedule.policies import POLICIES
from pdpool_router.schedule.scorers.balance import Balance
from pdpool_router.schedule.scorers.burden import Burden
from pdpool_router.schedule.scorers.compute import Compute
from pdpool_router.schedule.scorers.disturb import Disturb
from pdpool_router.schedule.scorers.inflight import Inflight
from pdpool_router.schedule.scorers.lateness import Lateness
from pdpool_router.schedule.scorers.pull import Pull
from pdpool_router.schedule.scorers.running import Running
from pdpool_router.schedule.scorers.wait import Wait
from pdpool_router.state.loads import Guess, Loads, Report

SCORERS = (Wait(), Compute(), Burden(), Lateness(), Balance(), Pull(), Running(), Disturb(), Inflight())
PROMPT = Prompt(keys=[1, 2], whole=3, text_bytes=600, conversation=11)
SCORING = sorted(set(POLICIES) - {"RoundRobin"})


class Known:
    """Knowledge that says what the test wants."""

    version = 0

    def __init__(self, tokens: int, cached: dict[str, int]) -> None:
        self.found = Match(tokens, cached)

    def match(self, prompt: Prompt) -> Match:
        del prompt
        return self.found

    def match_ids(self, prompt: Prompt, ids: Any) -> Match:
        del prompt, ids
        return self.found


def endpoint(uid: str, role: Role) -> Endpoint:
    return Endpoint(uid=uid, name=uid, role=role, host="10.0.0.1", port=8000)


def view(
    loads: dict[str, Load],
    tokens: int = 1000,
    cached: dict[str, int] | None = None,
    rule: LocalPrefill = LocalPrefill(0),  # noqa: B008 - frozen
    *,
    order: random.Random | None = None,
) -> Snapshot:
    """A pool of the endpoints that loads are given for: `p…` prefill, `d…` decode, `a…` aggregated."""

    def of(letter: str, role: Role) -> tuple[Endpoint, ...]:
        found = [endpoint(uid, role) for uid in sorted(loads) if uid.startswith(letter)]
        if order is not None:
            order.shuffle(found)
        return tuple(found)

    return Snapshot(
        prefill=of("p", Role.PREFILL),
        decode=of("d", Role.DECODE),
        aggregated=of("a", Role.AGGREGATED),
        inflight=MappingProxyType({uid: load.requests for uid, load in loads.items()}),
        local_prefills={},
        max_local_prefills=4,
        local_allowed=True,
        one_revision=True,
        loads=loads,
        knowledge=Known(tokens, cached or {}),
        local_prefill=rule,
    )


def idle(*uids: str, **figures: float) -> dict[str, Load]:
    return {uid: Load(uid, **figures) for uid in uids}  # type: ignore[arg-type]


FIGURES = st.builds(
    Load,
    uid=st.just(""),
    requests=st.integers(0, 50),
    others=st.floats(0, 20),
    fixed_ms=st.floats(0, 20),
    wait_ms=st.floats(0, 1000),
    token_ms=st.floats(0.001, 2),
    pull_ms=st.floats(0.0001, 0.2),
    step_ms=st.floats(0.1, 100),
    running_ms=st.floats(0, 3000),
    recent_ms=st.floats(0, 30_000),
)


@st.composite
def pools(draw: st.DrawFn) -> tuple[dict[str, Load], int, dict[str, int], LocalPrefill]:
    uids = [f"{role}{n}" for role in "pd" for n in range(draw(st.integers(1, 4)))]
    loads = {uid: msgspec.structs.replace(draw(FIGURES), uid=uid) for uid in uids}
    tokens = draw(st.integers(1, 20_000))
    cached = {uid: draw(st.integers(0, tokens - 1)) for uid in uids if draw(st.booleans())}
    return loads, tokens, cached, draw(st.sampled_from((LocalPrefill(0), LocalPrefill())))


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda one: one.name)
@given(FIGURES, st.integers(1, 10_000), st.data())
def test_more_cached_never_costs_more_and_more_load_never_less(scorer: Any, load: Load, tokens: int, data: Any) -> None:
    """Each term by itself: it never grows with cached tokens, never shrinks with load, and is never negative."""
    load = msgspec.structs.replace(load, uid="e")
    held = data.draw(st.integers(0, tokens - 1))
    more = data.draw(st.integers(held, tokens - 1))
    opening = data.draw(st.integers(0, tokens))

    def term(cached: int, seen: Load) -> float:
        asked = Asked(tokens, {"e": cached}, {"e": seen.requests}, opening=opening)
        work_ms = (tokens - cached) * seen.token_ms
        return sum(scorer.terms(asked, [seen], [work_ms]))

    assert term(more, load) <= term(held, load)
    busier = msgspec.structs.replace(
        load,
        requests=load.requests + 1,
        others=load.others + 1,
        wait_ms=load.wait_ms + 1,
        running_ms=load.running_ms + 1,
        recent_ms=load.recent_ms + 1,
    )
    assert term(held, busier) >= term(held, load) >= 0


@pytest.mark.parametrize("name", SCORING)
@given(pool=pools(), seed=st.integers(0, 9), shuffle=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_choice_depends_on_no_order_and_repeats(name: str, pool: Any, seed: int, shuffle: random.Random) -> None:
    """Shuffled endpoints give the same choice wherever chance is not asked, and the same chance the same choice."""
    policy = POLICIES[name]()
    loads, tokens, cached, rule = pool
    request = Request("m", 10, prompt=PROMPT)
    first = policy.plan(request, view(loads, tokens, cached, rule), 0.0, random.Random(seed))
    assert first == policy.plan(request, view(loads, tokens, cached, rule), 0.0, random.Random(seed))
    other = policy.plan(request, view(loads, tokens, cached, rule, order=shuffle), 0.0, random.Random(seed))
    if name != "LeastLoaded":
        assert isinstance(first, Decision)
        assert isinstance(other, Decision)
        assert (first.way, first.endpoint, first.reason) == (other.way, other.endpoint, other.reason)


@given(pool=pools(), seed=st.integers(0, 9))
@settings(max_examples=100)
def test_load_never_attracts_a_request(pool: Any, seed: int) -> None:
    """An endpoint that was not chosen is not chosen because it has more to do."""
    loads, tokens, cached, _ = pool
    policy = POLICIES["KvAware"]()
    request = Request("m", 10, prompt=PROMPT)
    first = policy.plan(request, view(loads, tokens, cached), 0.0, random.Random(seed))
    assert isinstance(first, Decision)
    for uid in [one for one in loads if one.startswith("p") and one != first.endpoint.uid]:
        load = loads[uid]
        busier = loads | {uid: msgspec.structs.replace(load, wait_ms=load.wait_ms + 50, requests=load.requests + 1)}
        again = policy.plan(request, view(busier, tokens, cached), 0.0, random.Random(seed))
        assert isinstance(again, Decision)
        assert again.endpoint.uid != uid


def test_the_holder_is_chosen_until_its_queue_outweighs_the_prefix() -> None:
    """Cached tokens against waiting, in milliseconds."""
    policy = POLICIES["KvAware"]()
    request = Request("m", 10, prompt=PROMPT)
    for wait_ms, expected in ((0.0, "p0"), (60.0, "p0"), (120.0, "p1"), (500.0, "p1")):
        loads = idle("p0", "p1", "d0", token_ms=0.1, wait_ms=0.0, fixed_ms=0.0)
        loads["p0"].wait_ms = wait_ms
        made = policy.plan(request, view(loads, 1000, {"p0": 800}), 0.0, random.Random(1))
        assert isinstance(made, Decision)
        assert made.endpoint.uid == expected, wait_ms
        assert made.cached_tokens == (800 if expected == "p0" else 0)


def test_decode_is_chosen_by_what_it_lacks_and_runs() -> None:
    """The holder of the prefix, unless it runs so much more."""
    policy = POLICIES["KvAware"]()
    request = Request("m", 10, prompt=PROMPT)
    loads = idle("p0", "d0", "d1", pull_ms=0.05, step_ms=20)
    for running_ms, expected in ((0.0, "d0"), (20.0, "d0"), (80.0, "d1")):
        loads["d0"].running_ms = running_ms
        made = policy.place(request, None, view(loads, 1000, {"d0": 960}), 0.0, random.Random(1))
        assert made is not None
        assert made.endpoint.uid == expected, running_ms


RULE = LocalPrefill(512, 0.8)


@pytest.mark.parametrize(
    ("asked", "rule", "wait_ms", "expected"),
    [
        ((300, {}), RULE, 0, (Way.LOCAL, "short")),
        ((300, {}), LocalPrefill(0, 0.8), 0, (Way.REMOTE, "")),
        ((3000, {}), RULE, 0, (Way.REMOTE, "")),
        ((3000, {}), RULE, 10_000, (Way.REMOTE, "")),
        ((3000, {"d0": 2600}), RULE, 0, (Way.LOCAL, "cached")),
        ((8000, {"d0": 6500}), RULE, 0, (Way.REMOTE, "")),
        ((8000, {"d0": 6500}), RULE, 500, (Way.LOCAL, "cached")),
        ((8000, {"d0": 6300}), RULE, 500, (Way.REMOTE, "")),
        ((8000, {"d0": 6500, "p0": 7900}), RULE, 0, (Way.REMOTE, "")),
    ],
)
def test_the_hop_is_skipped_where_it_is_not_worth_it(
    asked: tuple[int, dict[str, int]], rule: LocalPrefill, wait_ms: float, expected: tuple[Way, str]
) -> None:
    """Short or mostly cached prompts are computed where they decode, as far as the rule allows and the sum agrees."""
    tokens, cached = asked
    loads = idle("p0", "d0", token_ms=0.1, wait_ms=5.0)
    loads["p0"].wait_ms += wait_ms
    # Decode is slow at prompts, so that the sum has something to weigh.
    loads["d0"].token_ms = 0.6 if tokens == 8000 else 0.1
    made = POLICIES["KvAware"]().plan(
        Request("m", 10, prompt=PROMPT), view(loads, tokens, cached, rule), 0.0, random.Random(1)
    )
    assert isinstance(made, Decision)
    assert (made.way, made.reason) == expected


def test_no_more_prompts_at_decode_than_allowed() -> None:
    """A decode endpoint that computes its share of prompts hops the next one."""
    loads = idle("p0", "d0")
    snapshot = msgspec.structs.replace(view(loads, 100, {}, RULE), local_prefills={"d0": 4})
    made = POLICIES["KvAware"]().plan(Request("m", 10, prompt=PROMPT), snapshot, 0.0, random.Random(1))
    assert isinstance(made, Decision)
    assert made.way is Way.REMOTE


# --- with real accounts ----------------------------------------------------------------------------------------------


def pool_of(count: int, role: Role = Role.PREFILL) -> tuple[Loads, list[Endpoint]]:
    letter = role.value[0]
    endpoints = [endpoint(f"{letter}{n}", role) for n in range(count)]
    loads = Loads()
    loads.keep([*endpoints, endpoint("d0", Role.DECODE)])
    return loads, endpoints


def test_a_burst_spreads_before_any_metric_tells() -> None:
    """64 different prompts at one instant over 4 endpoints: 16 each, give or take 4 (Q83)."""
    loads, _ = pool_of(4)
    policy, rng = POLICIES["KvAware"](), random.Random(5)
    placed: Counter[str] = Counter()
    for number in range(64):
        prompt = Prompt(keys=[number], whole=number, text_bytes=2000, conversation=number * 7919 + 1)
        made = policy.plan(Request("m", 10, prompt=prompt), view(loads.loads, 500), 0.0, rng)
        assert isinstance(made, Decision)
        loads.begin(made.endpoint, made.uncached_tokens)
        placed[made.endpoint.uid] += 1
    assert len(placed) == 4
    assert all(12 <= count <= 20 for count in placed.values()), placed


@pytest.mark.parametrize("name", ["KvAware", "Prefix"])
def test_a_shared_system_prompt_alone_does_not_pile_up(name: str) -> None:
    """64 in flight, all with the same long beginning: no endpoint has more than 40 % of them (Q81)."""
    loads, _ = pool_of(4)
    policy, rng = POLICIES[name](), random.Random(5)
    placed: Counter[str] = Counter()
    cached: dict[str, int] = {}
    works = []
    for number in range(1000):
        prompt = Prompt(keys=[1, 2, 3], whole=number, text_bytes=4200, conversation=number * 7919 + 1)
        made = policy.plan(Request("m", 10, prompt=prompt), view(loads.loads, 1050, dict(cached)), 0.0, rng)
        assert isinstance(made, Decision)
        works.append(loads.begin(made.endpoint, made.uncached_tokens))
        cached[made.endpoint.uid] = 1000
        placed[made.endpoint.uid] += 1
        if len(works) > 64:
            works.pop(0).end()
    assert max(placed.values()) <= 400, placed


@pytest.mark.parametrize("routers", [1, 2])
def test_turns_stay_together_while_loads_are_equal(routers: int) -> None:
    """Without knowledge of prefixes too: every router finds the same endpoint for a conversation (Q63)."""
    sites = [(POLICIES["KvAware"](), random.Random(n), pool_of(4)[0]) for n in range(routers)]
    moved = 0
    for conversation in range(1, 51):
        home = ""
        for turn in range(10):
            policy, rng, loads = sites[(turn + conversation) % routers]
            prompt = Prompt(keys=[], whole=turn, text_bytes=800 * (turn + 1), conversation=conversation * 104_729)
            made = policy.plan(Request("m", 10, prompt=prompt), view(loads.loads, 200 * (turn + 1)), 0.0, rng)
            assert isinstance(made, Decision)
            work = loads.begin(made.endpoint, made.uncached_tokens)
            loads.computed(made.endpoint, work, made.uncached_tokens, 20 + rng.random() * 30)
            work.end()
            if turn % 3 == 0:
                loads.settle(0.0, 1.0)
            home = home or made.endpoint.uid
            moved += made.endpoint.uid != home
    assert moved <= 0.1 * 450


def test_a_session_holds_requests_together_whatever_they_say() -> None:
    """`sessionHeader` counts before the text."""
    loads, _ = pool_of(4)
    policy = POLICIES["KvAware"]()
    homes = set()
    for number in range(20):
        prompt = Prompt(keys=[], whole=number, text_bytes=800, conversation=number + 1)
        made = policy.plan(Request("m", 10, prompt=prompt, session=99), view(loads.loads), 0.0, random.Random(1))
        assert isinstance(made, Decision)
        homes.add(made.endpoint.uid)
    assert len(homes) == 1


@pytest.mark.parametrize("name", ["KvAware", "LeastLoaded"])
def test_unknown_is_not_idle(name: str) -> None:
    """Of three, two report a queue and one nothing: it does not win; one that reports none does (Q54)."""
    policy, rng = POLICIES[name](), random.Random(3)
    for third, most, least in ((None, 0.4, 0.0), (Report(running=0, waiting=0), 1.0, 0.9)):
        loads, endpoints = pool_of(3)
        for one in endpoints[:2]:
            loads.report(one.uid, Report(running=3, waiting=5, kv_usage=0.6), 1.0, 0)
        if third is not None:
            loads.report(endpoints[2].uid, third, 1.0, 0)
        loads.settle(1.0, 1.0)
        placed: Counter[str] = Counter()
        for number in range(300):
            prompt = Prompt(keys=[number], whole=number, text_bytes=800, conversation=number + 1)
            made = policy.plan(Request("m", 10, prompt=prompt), view(loads.loads, 200), 0.0, rng)
            assert isinstance(made, Decision)
            placed[made.endpoint.uid] += 1
        assert least <= placed[endpoints[2].uid] / 300 <= most, placed


def test_an_explanation_adds_up() -> None:
    """Every candidate is listed with its terms, and the total is their sum; the first one is what is chosen."""
    loads, _ = pool_of(3)
    loads.begin(endpoint("p1", Role.PREFILL), 700)
    policy = POLICIES["KvAware"]()
    snapshot = view(loads.loads, 1000, {"p2": 640, "d0": 320}, LocalPrefill())
    told = policy.explain(Request("m", 10, prompt=PROMPT), snapshot, 0.0)
    assert set(told) == {"promptTokens", "exact", "knownText", "prefill", "decode", "local"}
    for rows in (told["prefill"], told["decode"], told["local"]):
        for row in rows:
            assert row["totalMilliseconds"] == pytest.approx(sum(row["terms"].values()), abs=0.01)
    made = policy.plan(Request("m", 10, prompt=PROMPT), snapshot, 0.0, random.Random(1))
    assert isinstance(made, Decision)
    assert told["prefill"][0]["endpoint"] == made.endpoint.name == "p2"
    assert told["prefill"][0]["cachedTokens"] == 640


def test_first_guesses_are_those_of_the_role_and_the_hardware() -> None:
    """Until more is known; an endpoint of slower hardware begins slower."""
    loads = Loads()
    loads.configure({Role.PREFILL: Guess(token_ms=0.5)}, {"l4": 4.0})
    slow = msgspec.structs.replace(endpoint("p1", Role.PREFILL), hardware="l4")
    loads.keep([endpoint("p0", Role.PREFILL), slow])
    assert loads.loads["p0"].token_ms == pytest.approx(0.5)
    assert loads.loads["p1"].token_ms == pytest.approx(2.0)


def test_what_only_a_conversation_has_is_waited_for_and_a_shared_prefix_is_not() -> None:
    """900 of 1,000 tokens held behind 300 ms: worth it where they are its own, not where all share them."""
    loads = {"p0": Load("p0", wait_ms=305.0), "p1": Load("p1", wait_ms=5.0), "d0": Load("d0")}
    snapshot = view(loads, 1000, {"p0": 900})

    def chosen(opening_bytes: int) -> str:
        prompt = Prompt(keys=[1, 2, 3], whole=9, text_bytes=4000, conversation=7, opening_bytes=opening_bytes)
        made = POLICIES["KvAware"]().plan(Request("m", 10, prompt=prompt), snapshot, 0.0, random.Random(1))
        assert isinstance(made, Decision)
        return made.endpoint.uid

    assert chosen(opening_bytes=200) == "p0"
    assert chosen(opening_bytes=0) == chosen(opening_bytes=4000) == "p1"


def test_a_prompt_that_is_slow_anyway_does_not_wait_as_well() -> None:
    """Half of 60,000 tokens held behind a line of 30 s: saving three seconds is not worth it."""
    loads = {"p0": Load("p0", wait_ms=30_000.0), "p1": Load("p1", wait_ms=5.0), "d0": Load("d0")}
    prompt = Prompt(keys=[1, 2, 3], whole=9, text_bytes=4000, conversation=7, opening_bytes=40)
    made = POLICIES["KvAware"]().plan(
        Request("m", 10, prompt=prompt), view(loads, 60_000, {"p0": 30_000}), 0.0, random.Random(1)
    )
    assert isinstance(made, Decision)
    assert made.endpoint.uid == "p1"


@given(st.lists(st.floats(0, 1e5), min_size=2, max_size=6), st.floats(0, 1e5), st.integers(1, 5000))
def test_who_did_more_lately_is_never_the_cheaper_for_it(recent: list[float], more: float, opening: int) -> None:
    """More recent work never lowers an endpoint's own term, and nothing is added where the work is equal."""
    asked = Asked(opening, {}, {}, opening=opening)
    loads = [Load(str(number), recent_ms=each) for number, each in enumerate(recent)]
    before = Balance().terms(asked, loads, ())
    loads[0].recent_ms += more
    after = Balance().terms(asked, loads, ())
    assert after[0] >= before[0] - 1e-9
    for load in loads:
        load.recent_ms = more
    assert Balance().terms(asked, loads, ()) == [pytest.approx(0.0, abs=1e-6)] * len(loads)


@pytest.mark.parametrize("name", ["KvAware", "Prefix"])
def test_new_conversations_with_one_beginning_are_spread_and_stay(name: str) -> None:
    """One after the other, nobody waiting: new conversations with one beginning are spread, and each stays (Q81)."""
    policy, rng = POLICIES[name](), random.Random(3)
    loads = Loads()
    pods = [endpoint(f"p{number}", Role.PREFILL) for number in range(4)]
    loads.keep([*pods, endpoint("d0", Role.DECODE)])
    known = Known(1200, {})
    snapshot = msgspec.structs.replace(view(loads.loads), knowledge=known)
    homes: list[str] = []
    for number in range(200):
        for turn in range(2):
            # 1,000 of the system prompt, 200 of the first question, then 400 of answer and second question.
            tokens, own = 1200 + 400 * turn, {homes[number]: 1200} if turn else {}
            known.found = Match(tokens, dict.fromkeys(homes, 1000) | own)
            prompt = Prompt(
                keys=[1, 2], whole=3, text_bytes=4 * tokens, conversation=100 + number, opening_bytes=4 * 1200
            )
            made = policy.plan(Request("m", 10, prompt=prompt), snapshot, 0.0, rng)
            assert isinstance(made, Decision)
            uid = made.endpoint.uid
            work = loads.begin(made.endpoint, tokens - known.found.cached.get(uid, 0))
            work.end()
            if turn:
                assert uid == homes[number]
            else:
                homes.append(uid)
    assert max(Counter(homes).values()) <= 0.4 * len(homes), Counter(homes)
