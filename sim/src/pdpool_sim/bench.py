"""`make bench-sim`: every routing rule on the trace and on generated workloads, in one table, one plot, one JSON.

Boundary: which cells are run, and printing. Load is a share of saturation: the arrival scale at which least-loaded
first leaves 5 % of requests outside the SLO, found anew for each workload and cache.

    TRACE=conversation.jsonl make bench-sim     # Mooncake's; absent: a workload with its statistics
    QUICK=1 make bench-sim                      # fewer requests and workloads, within 50 s
    JSON=out.json PLOT=out.png make bench-sim
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pdpool_sim import asked, plot
from pdpool_sim.contestants import CONTESTANTS, LEAST_LOADED, OURS, OWN
from pdpool_sim.experiment import Scene, Task, figures_at, limit, run_all
from pdpool_sim.figure import Figure, as_text, write_json
from pdpool_sim.report import Row, figures, goal_lines, goals, table
from pdpool_sim.run import Slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_sim.run import Figures

LOADS: Final = (0.6, 0.8, 0.95)
CACHE_SHARE: Final = 0.03
"""Of the trace's distinct blocks, in each prefill engine."""
TRACE_SLO: Final = Slo(ttft_s=30, itl_s=0.1)
"""Wide, since its longest prompt alone takes 12 s and 1 % of its prompts take more than 6 s."""
GENERATED_SLO: Final = Slo(ttft_s=2, itl_s=0.05)
PROFILE: Final = "of the profile"
SHARE: Final = f"{CACHE_SHARE:.0%} of blocks each"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    trace_requests: int
    generated: Sequence[str]
    generated_requests: int
    generated_loads: Sequence[float]
    limits: bool
    """Find every rule's own limit too."""


def size(*, quick: bool) -> Size:
    """A full run, or one within 50 s."""
    if quick:
        return Size(1500, ("agents", "rag"), 600, (0.95,), limits=False)
    return Size(0, ("chat", "agents", "rag", "shared-prompt", "bursts", "tenants"), 4000, (0.8, 0.95), limits=True)


def main() -> int:
    """Runs, prints, writes; 0 also where goals are missed: they are reported, not enforced."""
    began = time.monotonic()
    chosen = size(quick=asked.quick())
    trace = os.environ.get("TRACE", "") or "trace-like"
    on_trace = Scene(trace, chosen.trace_requests or (0 if trace != "trace-like" else 12_000), TRACE_SLO)
    scenes = [
        (on_trace, PROFILE, LOADS),
        (replace(on_trace, cache_share=CACHE_SHARE), SHARE, LOADS),
        *(
            (Scene(name, chosen.generated_requests, GENERATED_SLO), PROFILE, chosen.generated_loads)
            for name in chosen.generated
        ),
    ]
    saturations = cast("list[float]", run_all([Task(limit, (scene, LEAST_LOADED)) for scene, _, _ in scenes]))
    rows = _rows(scenes, saturations)
    told = goals(rows, ours=OURS, least_loaded=LEAST_LOADED, on_trace=frozenset({Path(trace).stem}))
    _say(table(rows) + "\n\n" + goal_lines(told))
    conditions = [
        Figure("requests of the trace", len(on_trace.loaded().calls)),
        *(
            Figure(f"{_title(scene)}, {cache}: scale of arrivals at saturation", scale)
            for (scene, cache, _), scale in zip(scenes, saturations, strict=True)
        ),
        *(
            Figure(f"{_title(scene)}, {cache}: TTFT p99 without waiting", scene.lone_ttft_p99_s(), "s")
            for scene, cache, _ in scenes
        ),
        *(_limits(scenes[:2]) if chosen.limits else []),
    ]
    _say("\n" + as_text(conditions))
    _say(f"{time.monotonic() - began:.0f} s")
    write_json((*told, *conditions, *figures(rows)), asked.file("JSON"))
    if file := asked.file("PLOT"):
        plot.draw([row for row in rows if row.workload == Path(trace).stem], file)
    return 0


def _rows(scenes: Sequence[tuple[Scene, str, Sequence[float]]], saturations: Sequence[float]) -> list[Row]:
    cells = [
        (scene, cache, load, rule, scale)
        for (scene, cache, loads), scale in zip(scenes, saturations, strict=True)
        for load in loads
        for rule in CONTESTANTS
    ]
    found = cast(
        "list[Figures]",
        run_all([Task(figures_at, (scene, rule, scale * load)) for scene, _, load, rule, scale in cells]),
    )
    oracle = {id(scene): scene.oracle_hit_rate() for scene, _, _ in scenes}
    return [
        Row(_title(scene), cache, load, rule, rule in OWN, figures, oracle[id(scene)])
        for (scene, cache, load, rule, _), figures in zip(cells, found, strict=True)
    ]


def _limits(scenes: Sequence[tuple[Scene, str, Sequence[float]]]) -> list[Figure]:
    """Requests a second that each rule keeps inside the SLO."""
    wanted = [(scene, cache, rule) for scene, cache, _ in scenes for rule in CONTESTANTS]
    found = cast("list[float]", run_all([Task(limit, (scene, rule)) for scene, _, rule in wanted]))
    return [
        Figure(
            f"{_title(scene)}, {cache}: limit of {rule}",
            scale * len(scene.loaded().calls) / scene.loaded().span_s,
            "requests/s",
        )
        for (scene, cache, rule), scale in zip(wanted, found, strict=True)
    ]


def _title(scene: Scene) -> str:
    return Path(scene.workload).stem


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
