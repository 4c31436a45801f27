"""What a Prometheus answers to the dashboard: which panels have a series, and a record of what they show over a time.

Boundary: asks one Prometheus, with the dashboard's variables filled in as Grafana does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from e2e.observability import dashboard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from e2e.observability.dashboard import Panel, Row

Series = dict[str, "Sequence[tuple[float, float]]"]
"""Legend → seconds since the record began, and value."""
STEP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Record:
    """What panels showed over a time."""

    panels: Mapping[str, Series]

    def has(self, row: Row, panel: Panel) -> bool:
        """Whether a panel was recorded, with or without a series."""
        return _key(row, panel) in self.panels

    def of(self, row: Row, panel: Panel) -> Series:
        """What a panel showed."""
        return self.panels[_key(row, panel)]

    def write(self, file: Path) -> None:
        """Keep it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.panels))

    @classmethod
    def read(cls, file: Path) -> Record:
        """One that was kept."""
        return cls(json.loads(file.read_text()))


@dataclass(frozen=True, slots=True)
class Board:
    """The dashboard, opened on one pool."""

    url: str
    namespace: str
    pool: str
    window: str = "30s"
    """Grafana's `$__rate_interval`: some scrapes long."""

    def filled(self, query: str) -> str:
        """The query as it is sent."""
        for name, value in (("namespace", self.namespace), ("pool", self.pool), ("__rate_interval", self.window)):
            query = query.replace(f"${name}", value)
        return query

    def unanswered(self) -> list[str]:
        """Every query of every panel that gives no series now.

        Raises:
            httpx.HTTPError: Prometheus refuses one, or is not there.
        """
        with httpx.Client(base_url=self.url, timeout=10) as client:
            return [query for query in dashboard.queries() if not self._now(client, query)]

    def _now(self, client: httpx.Client, query: str) -> list[object]:
        answer = client.get("/api/v1/query", params={"query": self.filled(query)}).raise_for_status()
        found: list[object] = answer.json()["data"]["result"]
        return found

    def recorded(
        self, titles: Sequence[str], start_s: float, end_s: float, left_out: frozenset[str] = frozenset()
    ) -> Record:
        """What the panels of these rows showed between two times (seconds of the epoch), but for some.

        Raises:
            httpx.HTTPError: Prometheus refuses a query, or is not there.
        """
        with httpx.Client(base_url=self.url, timeout=60) as client:
            return Record(
                {
                    _key(row, panel): self._shown(client, panel, start_s, end_s)
                    for row in dashboard.ROWS
                    if row.title in titles
                    for panel in row.panels
                    if panel.title not in left_out
                }
            )

    def _shown(self, client: httpx.Client, panel: Panel, start_s: float, end_s: float) -> Series:
        shown: Series = {}
        for query, legend in panel.queries:
            asked: dict[str, str | float] = {
                "query": self.filled(query),
                "start": start_s,
                "end": end_s,
                "step": STEP_S,
            }
            answer = client.get("/api/v1/query_range", params=asked).raise_for_status()
            for each in answer.json()["data"]["result"]:
                points = [(float(at) - start_s, float(value)) for at, value in each["values"]]
                shown[_named(legend, each["metric"])] = points
        return shown


def _key(row: Row, panel: Panel) -> str:
    return f"{row.title}: {panel.title}"


def _named(legend: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend
