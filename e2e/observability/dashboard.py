"""The Grafana dashboard of pools: service level first, then roles, transfer, prefixes, queues, scaling and GPUs.

Boundary: pure; `__main__.py` writes the file. Every query is made of names of the catalogue, of the engines' own
metrics, or of DCGM's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from pdpool_api import metrics
from pdpool_api.engines.vllm import metrics as engine

if TYPE_CHECKING:
    from pdpool_api.metrics import Metric

UID: Final = "pdpool-pools"
_POOL: Final = 'namespace=~"$namespace",pdpool_io_pool=~"$pool"'
_OF_OPERATOR: Final = 'namespace=~"$namespace",pool=~"$pool"'
_DCGM: Final = 'exported_namespace=~"$namespace",exported_pod=~"($pool)-.*"'
_RECONCILES: Final = f"rate({metrics.RECONCILE.name}_bucket[$__rate_interval])"
_TICKS: Final = f"rate({metrics.TICK.name}_bucket[$__rate_interval])"
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: its title, unit, and queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _rate(metric: Metric, by: str = "", also: str = "") -> str:
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric.name}{{{_POOL}{also}}}[$__rate_interval]))"


def _quantile(metric: Metric, share: float) -> str:
    buckets = f"sum by (le) (rate({metric.name}_bucket{{{_POOL}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets})"


def _quantiles(metric: Metric) -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(metric, share), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


def _sum(metric: Metric, by: str) -> str:
    return f"sum by ({by}) ({metric.name}{{{_POOL}}})"


def _engine(metric: engine.Metric, how: str = "sum") -> str:
    """Of the engines themselves, under every name that their versions use."""
    either = " or ".join(f"{name}{{{_POOL}}}" for name in metric.names)
    return f"{how} by (pdpool_io_role) ({either})"


ROWS: Final = (
    Row(
        "Service level",
        (
            Panel("Time to first token", "s", _quantiles(metrics.TTFT)),
            Panel("Gap between tokens", "s", _quantiles(metrics.ITL)),
            Panel("Requests by status", "reqps", ((_rate(metrics.REQUESTS, "code"), "{{code}}"),)),
            Panel("Whole requests", "s", _quantiles(metrics.E2E)),
        ),
    ),
    Row(
        "Roles",
        (
            Panel("Endpoints", "short", ((_sum(metrics.ENDPOINTS, "role, state"), "{{role}} {{state}}"),)),
            Panel("In flight by endpoint", "short", ((_sum(metrics.INFLIGHT, "role, endpoint"), "{{endpoint}}"),)),
            Panel("Running in engines", "short", ((_engine(engine.RUNNING), "{{pdpool_io_role}}"),)),
            Panel(
                "KV blocks in use",
                "percentunit",
                ((_engine(engine.KV_USAGE, how="max"), "{{pdpool_io_role}} (most)"),),
            ),
            Panel("Tokens", "short", ((_rate(metrics.TOKENS, "kind"), "{{kind}}/s"),)),
        ),
    ),
    Row(
        "Transfer",
        (
            Panel("Prefill leg", "s", _quantiles(metrics.HANDOFF)),
            Panel(
                "Prompts computed by decode",
                "reqps",
                ((_rate(metrics.LOCAL_PREFILL, "reason"), "{{reason}}"),),
                "no_prefill and no_kv mean trouble; every other reason is a choice",
            ),
            Panel(
                "Lost",
                "reqps",
                (
                    (_rate(metrics.ORPHANED_PREFILLS), "KV pulled by nobody"),
                    (_rate(metrics.TRUNCATED_STREAMS), "streams that broke"),
                    (_rate(metrics.RETRIES, "leg"), "retries: {{leg}}"),
                ),
            ),
        ),
    ),
    Row(
        "Prefixes",
        (
            Panel(
                "Share of prompt tokens found",
                "percentunit",
                ((f"{_rate(metrics.PREFIX_HIT_TOKENS)} / {_rate(metrics.PREFIX_QUERY_TOKENS)}", "hit rate"),),
            ),
            Panel(
                "Predicted and actual cached tokens",
                "short",
                (
                    (_rate(metrics.PREDICTED_CACHED_TOKENS), "predicted/s"),
                    (_rate(metrics.ACTUAL_CACHED_TOKENS), "actual/s"),
                ),
            ),
            Panel(
                "Index",
                "short",
                (
                    (_sum(metrics.KV_INDEX_BLOCKS, "endpoint"), "{{endpoint}}"),
                    (_rate(metrics.KV_INDEX_EVICTIONS), "evictions/s"),
                ),
            ),
            Panel(
                "Events",
                "short",
                (
                    (_rate(metrics.KV_EVENT_GAPS), "gaps/s"),
                    (f"max ({metrics.KV_EVENTS_MISSING.name}{{{_POOL}}})", "missing"),
                    (f"max ({metrics.INDEX_APPROXIMATE.name}{{{_POOL}}})", "index approximate"),
                ),
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel("Waiting at the router", "short", ((_sum(metrics.QUEUED, "model"), "{{model}}"),)),
            Panel("Sent and not begun", "short", ((_sum(metrics.UNSTARTED, "role"), "{{role}}"),)),
            Panel(
                "Prompt tokens not yet prefilled",
                "short",
                ((_sum(metrics.UNSTARTED_PROMPT_TOKENS, "role"), "{{role}}"),),
            ),
            Panel("Waiting in engines", "short", ((_engine(engine.WAITING), "{{pdpool_io_role}}"),)),
            Panel("The router's own time", "s", _quantiles(metrics.OVERHEAD)),
        ),
    ),
    Row(
        "Scaling",
        (
            Panel(
                "Replicas wanted",
                "short",
                ((f"max by (pool, role) ({metrics.DESIRED_REPLICAS.name}{{{_OF_OPERATOR}}})", "{{pool}} {{role}}"),),
            ),
            Panel(
                "Replicas that each signal asks for",
                "short",
                ((f"max by (role, signal) ({metrics.DEMAND.name}{{{_OF_OPERATOR}}})", "{{role}} {{signal}}"),),
            ),
            Panel(
                "Scaling active",
                "short",
                ((f"min by (pool, role) ({metrics.SCALING_ACTIVE.name}{{{_OF_OPERATOR}}})", "{{pool}} {{role}}"),),
            ),
        ),
    ),
    Row(
        "GPU (from the DCGM exporter)",
        (
            Panel(
                "Tensor cores active", "percentunit", ((f"avg (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_DCGM}}})", "mean"),)
            ),
            Panel("Memory active", "percentunit", ((f"avg (DCGM_FI_PROF_DRAM_ACTIVE{{{_DCGM}}})", "mean"),)),
        ),
    ),
    Row(
        "The operator",
        (
            Panel(
                "Reconciles and decisions about sizes",
                "s",
                (
                    (f"histogram_quantile(0.95, sum by (le) ({_RECONCILES}))", "reconcile p95"),
                    (f"histogram_quantile(0.95, sum by (le) ({_TICKS}))", "tick p95"),
                ),
            ),
            Panel(
                "Writes and errors",
                "short",
                (
                    (f"sum (rate({metrics.CHILD_WRITES.name}[$__rate_interval]))", "writes/s"),
                    (f"sum (rate({metrics.RECONCILE_ERRORS.name}[$__rate_interval]))", "errors/s"),
                ),
            ),
            Panel("Acting replicas", "short", ((f"sum ({metrics.LEADING.name})", "leading"),)),
        ),
    ),
)


def queries() -> list[str]:
    """Every query of every panel."""
    return [query for row in ROWS for panel in row.panels for query, _ in panel.queries]


def text() -> str:
    """The dashboard as Grafana imports it."""
    board = (
        dashboard.Dashboard("pdpool: pools")
        .uid(UID)
        .tags(["pdpool", "generated"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .editable()
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus"))
        .with_variable(_variable("namespace", f"label_values({metrics.ENDPOINTS.name}, namespace)"))
        .with_variable(
            _variable("pool", f'label_values({metrics.ENDPOINTS.name}{{namespace=~"$namespace"}}, pdpool_io_pool)')
        )
    )
    for row in ROWS:
        board = board.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            board = board.with_panel(_graph(panel, 24 // min(len(row.panels), 3)))
    return json.dumps(json.loads(json.dumps(board.build(), cls=JSONEncoder)), indent=1, sort_keys=True) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(_source())
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
    )


def _graph(panel: Panel, width: int) -> timeseries.Panel:
    graph = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.about)
        .unit(panel.unit)
        .datasource(_source())
        .min(0)
        .span(width)
        .height(_HEIGHT)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
    )
    for letter, (query, legend) in zip("ABCDEF", panel.queries, strict=False):
        graph = graph.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter))
    return graph


def _source() -> DataSourceRef:
    return DataSourceRef(type_val="prometheus", uid="$datasource")
