"""The table as a picture: how each rule does as load grows.

Boundary: needs matplotlib, which only the benchmark's dependency group has; it is imported when a picture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pdpool_sim.report import Row

_PANELS: Final[Sequence[tuple[str, Callable[[Row], float], bool]]] = (
    ("TTFT p99, s", lambda row: row.figures.ttft_p99_s, True),
    ("requests inside the SLO, 1/s", lambda row: row.figures.goodput_rps, False),
    ("hit rate", lambda row: row.figures.hit_rate, False),
    ("ITL p99, ms", lambda row: row.figures.itl_p99_s * 1000, True),
)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes a picture: a row of panels for each workload and cache, a line for each rule.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see the module's boundary
    from matplotlib.figure import Figure  # noqa: PLC0415

    groups = list(dict.fromkeys((row.workload, row.cache) for row in rows))
    figure = Figure(figsize=(4.2 * len(_PANELS), 3.6 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(groups), len(_PANELS), squeeze=False)
    for line, (workload, cache) in zip(axes, groups, strict=True):
        of_group = [row for row in rows if (row.workload, row.cache) == (workload, cache)]
        for panel, (title, value, logarithmic) in zip(line, _PANELS, strict=True):
            for rule in dict.fromkeys(row.rule for row in of_group):
                points = sorted((row.load * 100, value(row)) for row in of_group if row.rule == rule)
                ours = any(row.ours for row in of_group if row.rule == rule)
                width = 3.0 if ours else 1.2
                panel.plot(*zip(*points, strict=True), marker="o", linewidth=width, label=rule)
            panel.set_title(f"{workload}, {cache}: {title}", fontsize=9)
            panel.set_xlabel("load, % of saturation")
            if logarithmic:
                panel.set_yscale("log")
            panel.grid(visible=True, alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=110)
