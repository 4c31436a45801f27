"""`python -m e2e.observability.drawing RECORD FILE`: a record of the dashboard's panels as a picture.

Boundary: from a file to a file. Needs matplotlib, which only the benchmark's dependency group has: what takes minutes
to measure is recorded first, and does not depend on it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.observability import dashboard
from e2e.observability.answers import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


def draw(record: Record, file: Path) -> None:
    """Every panel that was recorded, in the dashboard's rows.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see the module's boundary
    from matplotlib.figure import Figure  # noqa: PLC0415

    recorded = [(row, [panel for panel in row.panels if record.has(row, panel)]) for row in dashboard.ROWS]
    rows = [(row, panels) for row, panels in recorded if panels]
    across = max(len(row.panels) for row, _ in rows)
    figure = Figure(figsize=(4.0 * across, 2.7 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    for line, (row, panels) in zip(figure.subplots(len(rows), across, squeeze=False), rows, strict=True):
        for place, axes in enumerate(line):
            if place >= len(panels):
                axes.axis("off")
                continue
            panel = panels[place]
            for legend, points in record.of(row, panel).items():
                axes.plot(*zip(*points, strict=True), label=legend)
            axes.set_title(f"{row.title}: {panel.title} ({panel.unit})", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.tick_params(labelsize=7)
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize=6, loc="upper left")
    figure.savefig(file, dpi=70)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what was recorded."""
    parser = argparse.ArgumentParser(prog="python -m e2e.observability.drawing", description=main.__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    draw(Record.read(given.record), given.file)
    print(given.file)


if __name__ == "__main__":
    main()
