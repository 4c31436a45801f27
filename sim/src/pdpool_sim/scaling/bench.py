"""`make bench-scaling`: the operator's real tick beside rivals' scaling rules, on generated days and the trace.

Boundary: which days are run, and printing. Days are run on the fluid model; the trace's load too, slot by slot, and the
first minutes of the trace at fixed sizes on the iteration model as well, to show how far the two are apart.

    TRACE=conversation.jsonl make bench-scaling     # also the load of the trace
    QUICK=1 make bench-scaling                      # three days of three hours
    HOURS=6 make bench-scaling                      # days of six hours, in a quarter of the time
    JSON=out.json PLOT=out.png make bench-scaling
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from pdpool_sim import asked
from pdpool_sim.experiment import Task, run_all
from pdpool_sim.figure import Figure, write_json
from pdpool_sim.hardware import shapes
from pdpool_sim.run import Slo
from pdpool_sim.scaling import agreement
from pdpool_sim.scaling.clairvoyant import cheapest
from pdpool_sim.scaling.days import Day, days, of_workload
from pdpool_sim.scaling.ours import Signals, Tick
from pdpool_sim.scaling.replay import replay
from pdpool_sim.scaling.rivals import RIVALS
from pdpool_sim.scaling.simulation import DayFigures, Site
from pdpool_sim.workload import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pdpool_sim.scaling.agreement import Agreement
    from pdpool_sim.scaling.scaler import Bounds, Scaler
    from pdpool_sim.workload import Workload

SLO: Final = Slo(ttft_s=2, itl_s=0.05)
TRACE_SLO: Final = Slo(ttft_s=10, itl_s=0.05)
TRACE: Final = "trace"
"""The day that is a trace's."""
TRACE_SCALE: Final = 2.0
TRACE_UNCACHED: Final = 0.85
"""Share of the trace's prompt tokens that engines compute (see `bench-sim`)."""
OURS: Final = f"tick, {Signals.RATES}"
DEFAULTS: Final = f"tick, {Signals.DEFAULT}"
RULES: Final[Mapping[str, Callable[[Bounds], Scaler]]] = {
    **{f"tick, {each}": partial(Tick, signals=each) for each in (Signals.RATES, Signals.DEFAULT, Signals.SLO)},
    **RIVALS,
}
DELAYS_S: Final = (30.0, 60.0, 600.0)
_UNITS: Final = {"attainment": "", "gpu_hours": "h", "changes": "", "recovery_s": "s", "most_size": ""}
COST_BOUND: Final = 1.25
"""Our GPU-hours over the clairvoyant plan's at a start delay of 60 s, at most."""


def all_days(*, hours: float, trace: str) -> list[Day]:
    """Every day, the trace's load included where it is given."""
    found = days(0, hours)
    if trace:
        found.append(of_workload(_trace(trace), TRACE_SCALE, 60, TRACE_UNCACHED))
    return found


@lru_cache(maxsize=2)
def _day(name: str, hours: float, trace: str, start_s: float) -> Day:
    found = next(each for each in all_days(hours=hours, trace=trace) if each.name == name)
    return replace(found, start_s=start_s) if start_s else found


def _site(name: str) -> Site:
    return Site(*shapes(), TRACE_SLO if name == TRACE else SLO)


def one(name: str, hours: float, trace: str, start_s: float, rule: str) -> DayFigures:
    """One day under one rule; the trace request by request, on the iteration model."""
    site, day = _site(name), _day(name, hours, trace, start_s)
    if name == TRACE:
        return replay(site, _trace(trace).scaled(TRACE_SCALE), day, RULES[rule])
    return site.run(day, RULES[rule])


def fluid_one(name: str, hours: float, trace: str, start_s: float, rule: str) -> DayFigures:
    """One day under one rule on the fluid model, as the clairvoyant plan is."""
    return _site(name).run(_day(name, hours, trace, start_s), RULES[rule])


def plan_of(name: str, hours: float, trace: str, start_s: float, attainment: float) -> DayFigures:
    """The clairvoyant plan of a day."""
    return cheapest(_site(name), _day(name, hours, trace, start_s), attainment)


def agreed(trace: str, prefills: int, decodes: int) -> Agreement:
    """Both models on the first minutes of a trace."""
    return agreement.agreement(_trace(trace), TRACE_SLO, prefills, decodes)


@lru_cache(maxsize=1)
def _trace(trace: str) -> Workload:
    return read_trace(Path(trace), Random(0))  # noqa: S311 - reproducible by its seed


def main() -> int:
    """Runs, prints, writes; 0 also where goals are missed: they are reported, not enforced."""
    quick = asked.quick()
    hours, trace = float(os.environ.get("HOURS", "3" if quick else "24")), os.environ.get("TRACE", "")
    names = [day.name for day in all_days(hours=hours, trace=trace)]
    names = names[:3] if quick else names
    cells = [(name, hours, trace, 0.0, rule) for name in names for rule in RULES]
    delays = [("diurnal", hours, trace, delay, OURS) for delay in DELAYS_S]
    planned = [*((name, hours, trace, 0.0, OURS) for name in names), *delays]
    found = cast(
        "list[DayFigures]",
        run_all([Task(one, cell) for cell in cells] + [Task(fluid_one, cell) for cell in planned]),
    )
    by_cell = dict(zip(cells, found[: len(cells)], strict=True))
    on_fluid = found[len(cells) :]
    plans = cast(
        "list[DayFigures]",
        run_all([Task(plan_of, (*cell[:4], ours.attainment)) for cell, ours in zip(planned, on_fluid, strict=True)]),
    )
    rows: list[dict[str, Any]] = [
        {"day": name, "rule": rule, **asdict(by_cell[name, hours, trace, 0.0, rule])}
        for name in names
        for rule in RULES
    ]
    costs = [
        {
            "day": cell[0],
            "start_s": cell[3] or _day(cell[0], hours, trace, 0.0).start_s,
            "clairvoyant_gpu_hours": plan.gpu_hours,
            "ratio": ours.gpu_hours / plan.gpu_hours,
        }
        for cell, ours, plan in zip(planned, on_fluid, plans, strict=True)
    ]
    models = cast(
        "list[Agreement]", run_all([Task(agreed, (trace, *each)) for each in agreement.SIZES]) if trace else []
    )
    beaten = dominated(rows)
    _say(table(rows) + "\n\nour GPU-hours over the cheapest plan that knew the day, for the same attainment:")
    for cost in costs:
        _say(f"  {cost['day']:20} start {cost['start_s']:4.0f} s  {cost['ratio']:.2f}")
    _say("a rival with more attainment for fewer GPU-hours: " + (", ".join(beaten) or "none"))
    _say("than the defaults: " + (", ".join(dominated(rows, DEFAULTS)) or "none"))
    if models:
        _say("attainment of the trace's first 20 minutes at fixed sizes, iteration model and fluid:")
    for each in models:
        _say(f"  {each.prefills} prefill, {each.decodes} decode  {each.iteration:.4f}  {each.fluid:.4f}")
    write_json((*goals(costs, beaten, models), *_figures(rows, costs, models)), asked.file("JSON"))
    if file := asked.file("PLOT"):
        _draw(rows, file)
    return 0


def goals(costs: Sequence[Mapping[str, Any]], beaten: Sequence[str], models: Sequence[Agreement] = ()) -> list[Figure]:
    """What the figures are held to; NaN is what was not measured."""
    apart = max((each.apart for each in models), default=math.nan)
    at_sixty = max(cost["ratio"] for cost in costs if cost["start_s"] == 60)  # noqa: PLR2004 - the delay that is judged
    return [
        Figure("days on which a rival has more for less", len(beaten), goal=0),
        Figure("GPU-hours over the clairvoyant plan's at 60 s", at_sixty, goal=COST_BOUND),
        Figure("attainment by the fluid and by the iteration model, most apart", apart, goal=agreement.BOUND),
    ]


def _figures(
    rows: Sequence[Mapping[str, Any]], costs: Sequence[Mapping[str, Any]], models: Sequence[Agreement]
) -> Iterator[Figure]:
    """Everything that has no goal by itself."""
    for row in rows:
        for name, unit in _UNITS.items():
            yield Figure(f"{row['day']}: {name} of {row['rule']}", float(row[name]), unit)
    for cost in costs:
        where = f"{cost['day']}, start {cost['start_s']:.0f} s: "
        yield Figure(f"{where}GPU-hours of the clairvoyant plan", cost["clairvoyant_gpu_hours"], "h")
        yield Figure(f"{where}GPU-hours over the clairvoyant plan's", cost["ratio"])
    for each in models:
        where = f"{each.prefills} prefill, {each.decodes} decode: attainment by the "
        yield Figure(f"{where}iteration model", each.iteration)
        yield Figure(f"{where}fluid model", each.fluid)


def dominated(rows: Sequence[Mapping[str, Any]], rule: str = OURS) -> list[str]:
    """Days on which a rival has both more attainment (by more than chance) and fewer GPU-hours than a rule of ours."""
    found = []
    for day in dict.fromkeys(row["day"] for row in rows):
        ours = next(row for row in rows if row["day"] == day and row["rule"] == rule)
        found += [
            f"{day} ({row['rule']})"
            for row in rows
            if row["day"] == day
            and row["rule"] in RIVALS
            and row["attainment"] > ours["attainment"] + 1e-4
            and row["gpu_hours"] < ours["gpu_hours"]
        ]
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as aligned text."""
    lines = [f"{'day':20} {'rule':22} {'in SLO':>8} {'GPU-h':>7} {'changes':>8} {'recovery s':>11} {'most':>5}"]
    lines += [
        f"{row['day']:20} {row['rule']:22} {row['attainment']:8.4f} {row['gpu_hours']:7.1f} {row['changes']:8d}"
        f" {row['recovery_s']:11.0f} {row['most_size']:5d}"
        for row in rows
    ]
    return "\n".join(lines)


def _draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Attainment against GPU-hours, a panel for each day."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only the benchmark's group has it
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = list(dict.fromkeys(row["day"] for row in rows))
    figure = Figure(figsize=(5 * len(names), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for row in rows:
            if row["day"] == name:
                size = 90 if row["rule"] == OURS else 30
                panel.scatter(row["gpu_hours"], row["attainment"], s=size, label=row["rule"])
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("GPU-hours")
        panel.set_ylabel("inside the SLO")
    figure.axes[0].legend(fontsize=6)
    figure.savefig(path, dpi=110)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
