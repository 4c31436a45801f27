"""An engine's costs from measurements: what is measured of the simulated engine gives its own costs back."""

from __future__ import annotations

from random import Random

import pytest

from pdpool_sim.hardware import StepCosts
from pdpool_sim.measured import Ask, Measured, Settings, conversations, fitted, measure

SETTINGS = Settings(block_tokens=32, blocks=8192, max_seqs=8, max_batched_tokens=512)
KNOWN = Measured(
    StepCosts(
        seconds_per_token=4e-5,
        seconds_per_pair=3e-8,
        weights_s=0.0,
        seconds_per_kv_token=0.0,
        overhead_s=0.008,
        seconds_per_sequence=0.0007,
    ),
    front_s=0.006,
    worst=0.0,
)


def test_measured_costs_are_those_of_the_engine() -> None:
    """Costs that are known are found again by what clients see, up to the width of a bin of gaps."""
    found = measure(lambda asks: KNOWN.play(asks, SETTINGS), SETTINGS, Random(0), rounds=1)
    assert found.front_s == pytest.approx(KNOWN.front_s, rel=0.15)
    for name in ("seconds_per_token", "seconds_per_pair", "overhead_s", "seconds_per_sequence"):
        assert getattr(found.costs, name) == pytest.approx(getattr(KNOWN.costs, name), rel=0.15), name
    assert found.worst < 0.05
    asks = conversations(Random(1), 80, 6.0)
    real, simulated = KNOWN.play(asks, SETTINGS), found.play(asks, SETTINGS)
    for share in (0.5, 0.95):
        assert simulated.ttft_s(share) == pytest.approx(real.ttft_s(share), rel=0.05)
        assert simulated.gaps.quantile(share) == pytest.approx(real.gaps.quantile(share), rel=0.05)


def test_a_later_turn_finds_what_was_computed_before() -> None:
    """Only whole blocks that are equal from the root count, and never the last token."""
    first, other = tuple(range(300, 364)), tuple(range(400, 464))
    asks = [Ask(0.0, first, 4), Ask(5.0, first, 4), Ask(10.0, (*first, 7), 4), Ask(15.0, (*other, *first), 4)]
    assert [each.cached_tokens for each in KNOWN.play(asks, SETTINGS).answers] == [0, 32, 64, 0]


def test_no_factor_is_below_nothing() -> None:
    """A column that measurements speak against is left out, not counted backwards."""
    assert fitted([(1, 0), (1, 1), (1, 2)], [3.0, 2.0, 1.0])[1] == 0.0
    assert fitted([(1, 0), (1, 1), (1, 2)], [1.0, 3.0, 5.0]) == pytest.approx([1.0, 2.0])
