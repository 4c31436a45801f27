"""What a Prometheus answers to the dashboard: which panels have a series, and what they show over a time.

Boundary: asks one Prometheus, with the dashboard's variables filled in as Grafana does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from e2e.observability import dashboard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from e2e.observability.dashboard import Panel

Series = dict[str, "Sequence[tuple[float, float]]"]
"""Legend → seconds of the epoch and value."""


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

    def shown(self, panel: Panel, start_s: float, end_s: float, step_s: float) -> Series:
        """What a panel draws between two times.

        Raises:
            httpx.HTTPError: Prometheus refuses a query, or is not there.
        """
        drawn: Series = {}
        with httpx.Client(base_url=self.url, timeout=30) as client:
            for query, legend in panel.queries:
                asked: dict[str, str | float] = {
                    "query": self.filled(query),
                    "start": start_s,
                    "end": end_s,
                    "step": step_s,
                }
                answer = client.get("/api/v1/query_range", params=asked).raise_for_status()
                for each in answer.json()["data"]["result"]:
                    drawn[_named(legend, each["metric"])] = [(float(at), float(value)) for at, value in each["values"]]
        return drawn


def _named(legend: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend
