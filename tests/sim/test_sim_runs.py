"""Whole runs: every request ends once, equal seeds give equal runs, and the figures say what they mean."""

from __future__ import annotations

import json
import math
from random import Random
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pdpool_sim import report
from pdpool_sim.cli import simulate as command
from pdpool_sim.contestants import CONTESTANTS
from pdpool_sim.figure import Figure, as_json
from pdpool_sim.gaps import Gaps
from pdpool_sim.generators import GENERATORS
from pdpool_sim.generators.text import Blocks
from pdpool_sim.hardware import LLAMA_8B, served_model, shapes
from pdpool_sim.oracle import pooled_hit_rate
from pdpool_sim.pool import PoolShape
from pdpool_sim.run import Figures, Slo, finished_pool, simulate
from pdpool_sim.saturation import saturation
from pdpool_sim.workload import Call, TraceError, Workload, in_order, read_trace

if TYPE_CHECKING:
    from pathlib import Path

SLO = Slo(ttft_s=2, itl_s=0.05)


def pool_shape(prefills: int = 2, decodes: int = 2) -> PoolShape:
    """A small pool of H100."""
    prefill, decode = shapes()
    return PoolShape(prefill, decode, prefills, decodes)


@pytest.mark.parametrize("rule", list(CONTESTANTS))
def test_every_request_ends_once_and_nothing_is_left(rule: str) -> None:
    """Whatever the rule: each call has one outcome with both times, and no engine holds a block at the end."""
    workload = GENERATORS["chat"](Random(3), 150).scaled(30)
    pool = finished_pool(workload, pool_shape(), CONTESTANTS[rule], seed=1)
    assert sorted(outcome.call.number for outcome in pool.outcomes) == list(range(len(workload.calls)))
    for outcome in pool.outcomes:
        assert outcome.call.arrival_s < outcome.first_token_s <= outcome.end_s
        assert 0 <= outcome.cached_tokens < outcome.call.prompt_tokens
        assert bool(outcome.moved_tokens) == bool(outcome.prefill_uid)
    for load in (pool.prefill, pool.decode):
        assert set(load.inflight.values()) == set(load.inflight_tokens.values()) == {0}
        assert set(load.unprefilled_tokens.values()) == {0}
        assert all(engine.idle and engine.cache.in_use == 0 for engine in load.engines)


@pytest.mark.parametrize("rule", ["random", "pd-weights"])
def test_equal_seeds_give_equal_runs(rule: str) -> None:
    """The same seed gives the same figures to the last digit, another seed others."""
    workload = GENERATORS["rag"](Random(3), 120).scaled(40)

    def run(seed: int) -> Figures:
        return simulate(workload, pool_shape(), CONTESTANTS[rule], SLO, seed=seed)

    assert run(5) == run(5)
    assert run(5) != run(6)


@pytest.mark.parametrize("name", list(GENERATORS))
def test_generators_are_seeded_and_consistent(name: str) -> None:
    """Equal seeds give equal workloads, in order; every prompt has exactly its full blocks; reuse is by prefix."""
    workload = GENERATORS[name](Random(7), 200)
    assert workload == GENERATORS[name](Random(7), 200)
    assert workload != GENERATORS[name](Random(8), 200)
    arrivals = [call.arrival_s for call in workload.calls]
    assert arrivals == sorted(arrivals)
    parents: dict[int, int] = {}
    for call in workload.calls:
        assert len(call.blocks) == call.prompt_tokens // workload.block_tokens
        together = (call.prompt_tokens + call.output_tokens) // workload.block_tokens - len(call.blocks)
        assert len(call.answer_blocks) in {0, together}
        for parent, block in zip((-1, *call.blocks), call.blocks, strict=False):
            assert parents.setdefault(block, parent) == parent


def test_blocks_are_equal_exactly_as_far_as_contents_are() -> None:
    """A piece that differs makes its block and all later ones differ; cutting a piece elsewhere does not matter."""
    blocks = Blocks(10)
    one = blocks.ids([("a", 25), ("b", 30)])
    assert blocks.ids([("a", 25), ("b", 30)]) == one
    assert blocks.ids([("a", 25), ("c", 30)])[:2] == one[:2]
    assert set(blocks.ids([("a", 25), ("c", 30)])[2:]).isdisjoint(one)
    assert len(one) == 5


def test_the_oracle_is_one_lru_for_all() -> None:
    """Three prompts of two blocks in a cache of four: the first comes again after the third has pushed it out."""
    prompts = [(1, 2), (3, 4), (5, 6), (1, 2), (5, 6)]
    calls = [Call(n, float(n), 25, 1, blocks) for n, blocks in enumerate(prompts)]
    workload = in_order("w", 10, calls)
    assert pooled_hit_rate(workload, 4) == pytest.approx(20 / 125)
    assert pooled_hit_rate(workload, 100) == pytest.approx(40 / 125)


def test_a_trace_is_read_and_spread_within_its_steps(tmp_path: Path) -> None:
    """Rows become calls in their order, inside the three seconds of their step, with full blocks only."""
    rows = [
        {"timestamp": stamp, "input_length": 600, "output_length": 3, "hash_ids": [7, number]}
        for number, stamp in enumerate((0, 0, 3000, 6000, 6000))
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    workload = read_trace(path, Random(1))
    assert [call.blocks for call in workload.calls] == [(7,)] * 5
    assert [int(call.arrival_s // 3) for call in workload.calls] == [0, 0, 1, 2, 2]
    assert read_trace(path, Random(1), limit=2).calls == workload.calls[:2]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"timestamp": 1}',
        '{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": []}',
        '{"timestamp": 1, "input_length": 5000, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": "1", "input_length": 5, "output_length": 1, "hash_ids": [1]}',
    ],
)
def test_a_broken_trace_names_its_line(tmp_path: Path, line: str) -> None:
    """What is no row is refused, never guessed."""
    path = tmp_path / "t.jsonl"
    good = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}'
    path.write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(path, Random(1))


def test_saturation_is_where_the_slo_is_first_missed() -> None:
    """At the limit 95 % are inside the SLO, a few per cent above it they are not."""
    workload = GENERATORS["bursts"](Random(2), 250)
    shape = pool_shape(1, 1)
    scale = saturation(workload, shape, CONTESTANTS["least-in-flight"], SLO, start=20, precision=0.05)

    def attainment(factor: float) -> float:
        rule = CONTESTANTS["least-in-flight"]
        return simulate(workload.scaled(scale * factor), shape, rule, SLO).attainment

    assert attainment(1.0) >= 0.95 > attainment(1.08)


def test_step_costs_follow_from_profile_and_model() -> None:
    """8B on an H100, by hand: 2 x 8.03e9 operations a token at half of 989e12; weights at 80 % of 3.35 TB/s."""
    prefill, decode = shapes()
    model = served_model(LLAMA_8B)
    assert prefill.costs.seconds_per_token == pytest.approx(2 * 8.03e9 / (989e12 * 0.5))
    assert decode.costs.weights_s == pytest.approx(16.06e9 / (3.35e12 * 0.8))
    assert decode.costs.seconds_per_kv_token == pytest.approx(131_072 / (3.35e12 * 0.8))
    assert prefill.kv_tokens == int((80e9 * 0.9 - model.weight_bytes) / 131_072)
    assert (prefill.max_batched_tokens, decode.max_batched_tokens) == (16_384, 8_192)


def test_gaps_have_quantiles() -> None:
    """99 gaps of 10 ms and one of a second: the median is the former, the largest the latter, to the width of a bin."""
    gaps = Gaps()
    gaps.add(0.01, 99)
    gaps.add(1.0, 1)
    assert gaps.quantile(0.5) == pytest.approx(0.01, rel=0.02)
    assert gaps.quantile(1.0) == pytest.approx(1.0, rel=0.02)


def _row(rule: str, *, ours: bool, ttft: float, goodput: float, hit: float) -> report.Row:
    figures = Figures(10, hit, 1.1, 0.1, ttft, 0.02, 0.99, goodput, 0.0, 0)
    return report.Row("t", "c", 0.95, rule, ours, figures, 0.2)


def test_goals_compare_with_the_best_rival() -> None:
    """Each goal takes the best figure that any rival has, not those of one rival."""
    rows = [
        _row("mine", ours=True, ttft=4.0, goodput=10.0, hit=0.19),
        _row("a", ours=False, ttft=5.0, goodput=8.0, hit=0.1),
        _row("b", ours=False, ttft=9.0, goodput=9.5, hit=0.1),
    ]
    found = report.goals(rows, ours="mine", least_loaded="a", on_trace=frozenset({"t"}))
    values = {goal.name.split(": ")[1]: (round(goal.value, 3), goal.holds) for goal in found}
    assert values == {
        "hit rate / oracle": (0.95, True),
        "max/mean work": (1.1, True),
        "TTFT p99 / best rival": (0.8, True),
        "goodput / best rival": (1.053, False),
        "goodput / least-loaded": (1.25, True),
    }


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure("at the bound", 1.0, goal=1.0), True),
        (Figure("above", 1.1, goal=1.0), False),
        (Figure("at least", 1.1, goal=1.0, at_least=True), True),
        (Figure("too little", 0.9, goal=1.0, at_least=True), False),
        (Figure("no goal", 0.9), None),
        (Figure("not measured", math.nan, goal=1.0), None),
    ],
    ids=lambda each: each.name if isinstance(each, Figure) else "",
)
def test_every_figure_has_one_form_for_machines(figure: Figure, holds: bool | None) -> None:  # noqa: FBT001 - a column
    """`{name: {value, unit, goal, holds}}`, valid JSON where nothing was measured too: that neither holds nor fails."""
    told = as_json([figure])[figure.name]
    assert told["holds"] is holds
    assert list(told) == ["value", "unit", "goal", "holds"]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_the_command_prints_a_table_and_json() -> None:
    """`pdpool simulate` runs without a cluster; JSON has a row for each rule asked for."""
    args = [
        "--workload",
        "bursts",
        "--requests",
        "60",
        "--scale",
        "20",
        "--rule",
        "random",
        "--prefill",
        "2",
        "--decode",
        "2",
    ]
    told = CliRunner().invoke(command, args)
    assert told.exit_code == 0, told.output
    assert "random" in told.output.splitlines()[1]
    told = CliRunner().invoke(command, [*args, "-o", "json"])
    rows = json.loads(told.output)["rows"]
    assert [row["rule"] for row in rows] == ["random"]
    assert rows[0]["requests"] == 60


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    """A file that is no trace ends in a message with its line, and a model that does not fit in one with the sizes."""
    path = tmp_path / "t.jsonl"
    path.write_text("nothing\n", encoding="utf-8")
    told = CliRunner().invoke(command, ["--trace", str(path), "--rule", "random", "--scale", "1"])
    assert told.exit_code == 1
    assert "line 1" in told.output
    args = ["--rule", "random", "--scale", "1", "--requests", "5", "--prefill-hardware", "rtx-4090", "--model"]
    told = CliRunner().invoke(command, [*args, "meta-llama/Llama-3.3-70B-Instruct"])
    assert told.exit_code == 1
    assert "do not fit" in told.output


def test_a_workload_is_scaled_in_time_only() -> None:
    """Twice the rate: half the span, the same calls."""
    workload: Workload = GENERATORS["tenants"](Random(1), 50)
    faster = workload.scaled(2)
    assert faster.span_s == pytest.approx(workload.span_s / 2)
    assert [call.blocks for call in faster.calls] == [call.blocks for call in workload.calls]
    assert {call.tenant for call in workload.calls} > {"tenant-0"}
