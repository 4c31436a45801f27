"""The report of `make bench-operator`; the run itself needs a control plane for a minute."""

from __future__ import annotations

import pytest

from e2e.bench.operator import __main__ as bench
from pdpool_sim.figure import as_json

GOOD = {"start_s": 1.0, "steady_writes": 0.0, "steady_cpu_share": 0.01, "rss_mb": 90.0, "edit_p99_ms": 400.0}


def test_goals_are_judged_at_the_largest_size() -> None:
    """Few pools may cost what they like; with all of them each figure with a goal says whether it holds."""
    bad = {**GOOD, "steady_writes": 1.0, "rss_mb": 301.0}
    found = as_json(bench.judged((50, 500), (bad, {**bad, "steady_cpu_share": 0.2})))
    assert found["steady_writes_50"] == {"value": 1.0, "unit": "", "goal": None, "holds": None}
    assert found["edit_p99_ms_50"]["unit"] == "ms"
    judged = {name: each["holds"] for name, each in found.items() if name.endswith("_500")}
    assert judged == {
        "start_s_500": None,
        "steady_writes_500": False,
        "steady_cpu_share_500": False,
        "rss_mb_500": False,
        "edit_p99_ms_500": True,
    }
    text = bench.table((50, 500), (GOOD, GOOD))
    assert text.count("yes") == 4
    assert "NO" not in text


@pytest.mark.parametrize(
    ("samples", "found"), [([1.0], 1.0), ([3.0, 1.0, 2.0], 3.0), ([float(i) for i in range(200)], 197.0)]
)
def test_p99_is_a_sample(samples: list[float], found: float) -> None:
    """By the nearest rank: one in a hundred may exceed it, and of few samples the largest counts."""
    assert bench._p99(samples) == found
