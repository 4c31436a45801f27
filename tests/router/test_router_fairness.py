"""Order among waiting requests, and tenants' quotas."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_router.flow.fairness import FairQueue, Waiting
from pdpool_router.flow.quotas import Quota


def waiting(tenant: str = "a", *, weight: int = 1, priority: int = 0, cost: int = 100, since_s: float = 0.0) -> Waiting:
    return Waiting(tenant, weight, priority, cost, 10, since_s)


def drained(queue: FairQueue, now_s: float = 0.0) -> list[Waiting]:
    found = []
    while (one := queue.pop(now_s)) is not None:
        found.append(one)
    return found


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    """First come, first served, whatever each request costs."""
    queue = FairQueue(patience_s=60)
    asked = [waiting(cost=cost) for cost in (1, 900_000, 5, 40_000)]
    for one in asked:
        queue.push(one)
    assert drained(queue) == asked


def test_a_higher_priority_goes_first_until_patience_ends() -> None:
    """Priority orders; age breaks it, so that a low priority does not starve."""
    queue = FairQueue(patience_s=10)
    low, high = waiting(priority=0, since_s=0), waiting(priority=5, since_s=1)
    queue.push(low)
    queue.push(high)
    assert queue.pop(9.0) is high
    queue.push(high)
    assert queue.pop(10.5) is low


@pytest.mark.parametrize(("weights", "share"), [((1, 1), 0.5), ((3, 1), 0.75), ((1, 4), 0.2)])
def test_tenants_share_tokens_by_weight(weights: tuple[int, int], share: float) -> None:
    """A tenant of long prompts gets its weight's share of tokens, not of requests."""
    queue = FairQueue(patience_s=1e9)
    for _ in range(4000):
        queue.push(waiting("long", weight=weights[0], cost=3000))
        queue.push(waiting("short", weight=weights[1], cost=200))
    done: Counter[str] = Counter()
    while done.total() < 400_000:
        one = queue.pop(0.0)
        assert one is not None
        done[one.tenant] += one.cost_tokens
    assert done["long"] / done.total() == pytest.approx(share, abs=0.03)


def test_weights_count_from_the_first_request_on() -> None:
    """Also where few and short requests wait: of each four that go three are of the tenant of threefold weight."""
    queue = FairQueue(patience_s=1e9)
    for _ in range(12):
        queue.push(waiting("light", weight=1, cost=25))
        queue.push(waiting("heavy", weight=3, cost=25))
    gone = [one.tenant for one in drained(queue)]
    assert [gone[: 4 * rounds].count("heavy") for rounds in (1, 2, 3, 4)] == [3, 6, 9, 12]


def test_a_huge_prompt_delays_only_its_own_tenant() -> None:
    """Others with short prompts pass it until its tenant's credit has grown to its cost."""
    queue = FairQueue(patience_s=1e9)
    huge = waiting("rag", cost=100_000)
    queue.push(huge)
    shorts = [waiting("chat", cost=1000) for _ in range(40)]
    for one in shorts:
        queue.push(one)
    assert drained(queue)[:40] == shorts


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(1, 5), st.integers(-1, 2), st.integers(0, 300_000), st.booleans()
        ),
        max_size=40,
    )
)
def test_what_is_pushed_comes_out_once_and_the_account_ends_at_zero(
    asked: list[tuple[str, int, int, int, bool]],
) -> None:
    """Any mix of tenants, priorities, costs and cancellations: nothing is lost, doubled or left in the account."""
    queue = FairQueue(patience_s=5)
    stay = []
    for tenant, weight, priority, cost, cancelled in asked:
        one = waiting(tenant, weight=weight, priority=priority, cost=cost)
        queue.push(one)
        if cancelled:
            assert queue.remove(one)
            assert not queue.remove(one)
        else:
            stay.append(one)
    assert len(queue) == len(stay)
    assert queue.size_bytes == 10 * len(stay)
    assert Counter(map(id, drained(queue))) == Counter(map(id, stay))
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_the_overdue_are_named_oldest_first_and_stay() -> None:
    """Whoever holds the queue ends them; the queue only tells."""
    queue = FairQueue(patience_s=5)
    old, older, fresh = waiting(since_s=1), waiting("b", since_s=2), waiting(since_s=9)
    for one in (old, older, fresh):
        queue.push(one)
    assert queue.overdue(10.0, 7.0) == [old, older]
    assert len(queue) == 3


def test_a_rate_allows_its_burst_and_then_tells_when_to_come_back() -> None:
    """Two a second: two at once, the third after half a second."""
    quota = Quota(rate_per_s=2, concurrent=0)
    assert [quota.enter(5.0), quota.enter(5.0)] == [0, 0]
    assert quota.enter(5.0) == pytest.approx(0.5)
    assert quota.enter(5.5) == 0


def test_a_rate_below_one_a_second_still_lets_the_first_pass() -> None:
    """A bucket holds at least one request."""
    quota = Quota(rate_per_s=0.1, concurrent=0)
    assert quota.enter(0.0) == 0
    assert quota.enter(0.0) == pytest.approx(10)


def test_concurrency_counts_what_is_in_flight() -> None:
    """One place is free again when one request has ended; a refused one takes no place."""
    quota = Quota(rate_per_s=0, concurrent=1)
    assert quota.enter(0.0) == 0
    assert quota.enter(0.0) > 0
    quota.leave()
    assert quota.enter(0.0) == 0
    assert quota.inflight == 1


def test_without_limits_everything_passes() -> None:
    """0 is no limit."""
    quota = Quota(rate_per_s=0, concurrent=0)
    assert not any(quota.enter(0.0) for _ in range(1000))
