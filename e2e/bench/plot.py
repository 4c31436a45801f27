"""The table as a picture: what each router costs beside the best of the peers with two legs.

Boundary: needs matplotlib, which only the benchmark's dependency group has; it is imported when a picture is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from e2e.bench.report import Row


def draw(rows: Sequence[Row], titles: Mapping[str, str], path: Path) -> None:
    """Writes a picture: a panel for each figure, a bar for each router.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see the module's boundary
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [row for row in rows if any(row.median(one) is not None for one in titles)]
    columns = 4
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(4.4 * columns, 2.4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for panel in panels[len(rows) :]:
        panel.set_visible(False)
    for panel, row in zip(panels, rows, strict=False):
        shown = [(titles[one], row.median(one), one) for one in reversed(list(titles)) if row.median(one) is not None]
        colours = ["tab:blue" if name.startswith("ours") else "tab:gray" for _, _, name in shown]
        bars = panel.barh([title for title, _, _ in shown], [value for _, value, _ in shown], color=colours)
        panel.bar_label(bars, fmt="%.4g", fontsize=7)
        panel.set_title(f"{row.title}: {row.unit}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.margins(x=0.15)
    figure.savefig(path, dpi=110)
