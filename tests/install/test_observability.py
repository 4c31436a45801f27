"""Metrics, alerts, runbooks and the dashboard agree, and each alert fires when it should, in real promtool."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.chart import CHART
from e2e.cluster import Progress
from e2e.cluster.debian import unpacked
from e2e.observability import alerts, dashboard
from e2e.observability.__main__ import files, main
from pdpool_api.engines.vllm import metrics as engine
from pdpool_api.metrics import CATALOGUE, Kind, Metric
from pdpool_operator.telemetry import REGISTRY as OPERATOR
from tests.router.conftest import config, running

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from prometheus_client import Metric as Family

pytestmark = pytest.mark.xdist_group("chart")

ROOT = CHART.parents[1]
RUNBOOKS = ROOT / "docs" / "runbooks"
OF_OTHERS = {name for each in (engine.RUNNING, engine.WAITING, engine.KV_USAGE) for name in each.names} | {
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "up",
}
POOL = 'namespace="n",pdpool_io_pool="p"'

Series = list[tuple[str, str]]
# Per alert: series that make it fire, and series of a healthy pool with which it does not. Values are in promtool's
# notation, one a minute for half an hour.
CASES: dict[str, tuple[Series, Series]] = {
    "PdpoolOperatorNotLeading": (
        [("pdpool_operator_leading", "0x30")],
        [('pdpool_operator_leading{pod="a"}', "0x30"), ('pdpool_operator_leading{pod="b"}', "1x30")],
    ),
    "PdpoolReconcileErrors": (
        [("pdpool_operator_reconcile_errors_total", "0+5x30")],
        [("pdpool_operator_reconcile_errors_total", "7x30")],
    ),
    "PdpoolRouterDown": (
        [(f'up{{{POOL},pdpool_io_role="router",pod="a"}}', "0x30")],
        [
            (f'up{{{POOL},pdpool_io_role="router",pod="a"}}', "0x30"),
            (f'up{{{POOL},pdpool_io_role="router",pod="b"}}', "1x30"),
        ],
    ),
    "PdpoolNoEndpoint": (
        [
            (f'pdpool_router_endpoints{{{POOL},role="decode",state="failing"}}', "2x30"),
            (f'pdpool_router_endpoints{{{POOL},role="decode",state="ready"}}', "0x30"),
        ],
        [
            (f'pdpool_router_endpoints{{{POOL},role="decode",state="ready"}}', "0x30"),  # scaled to zero
            (f'pdpool_router_endpoints{{{POOL},role="prefill",state="failing"}}', "1x30"),
            (f'pdpool_router_endpoints{{{POOL},role="prefill",state="ready"}}', "1x30"),
        ],
    ),
    "PdpoolRequestsFail": (
        [
            (f'pdpool_router_requests_total{{{POOL},code="200"}}', "0+90x30"),
            (f'pdpool_router_requests_total{{{POOL},code="503"}}', "0+10x30"),
        ],
        [
            (f'pdpool_router_requests_total{{{POOL},code="200"}}', "0+99x30"),
            (f'pdpool_router_requests_total{{{POOL},code="502"}}', "0+1x30"),
            (f'pdpool_router_requests_total{{{POOL},code="404"}}', "0+50x30"),
        ],
    ),
    **{
        name: (
            [
                (f"{metric}{{{POOL}{label}}}", "0+20x30"),
                (f'pdpool_router_requests_total{{{POOL},code="200"}}', "0+99x30"),
            ],
            [
                (f"{metric}{{{POOL}{harmless}}}", wave),
                (f'pdpool_router_requests_total{{{POOL},code="200"}}', "0+99x30"),
            ],
        )
        for name, metric, label, harmless, wave in (
            ("PdpoolStreamsBreak", "pdpool_router_truncated_streams_total", "", "", "3x30"),
            ("PdpoolRetries", "pdpool_router_retries_total", ',leg="decode"', ',leg="decode"', "0+1x30"),
            (
                "PdpoolPrefillSkipped",
                "pdpool_router_local_prefill_total",
                ',reason="no_prefill"',
                ',reason="short"',
                "0+50x30",
            ),
            ("PdpoolOrphanedPrefills", "pdpool_router_orphaned_prefills_total", "", "", "0+1x30"),
        )
    },
    "PdpoolQueue": (
        [(f'pdpool_router_queued{{{POOL},model="m"}}', "3x30")],
        [(f'pdpool_router_queued{{{POOL},model="m"}}', "3 3 3 0x27")],
    ),
    "PdpoolStaleEndpoints": (
        [(f"pdpool_router_stale_endpoints{{{POOL}}}", "1x30")],
        [(f"pdpool_router_stale_endpoints{{{POOL}}}", "0x30")],
    ),
    "PdpoolKvEventsMissing": (
        [(f"pdpool_router_kv_events_missing{{{POOL}}}", "1x30")],
        [(f"pdpool_router_kv_events_missing{{{POOL}}}", "1 1 1 0x27")],
    ),
    "PdpoolScalingInactive": (
        [('pdpool_operator_scaling_active{namespace="n",pool="p",role="decode"}', "0x30")],
        [('pdpool_operator_scaling_active{namespace="n",pool="p",role="decode"}', "1x30")],
    ),
}


def exposed(families: Iterable[Family]) -> dict[str, Metric]:
    """What a plane exposes now, as the catalogue would say it; without labels where nothing was counted yet."""
    found = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = tuple(sorted({label for sample in family.samples for label in sample.labels} - {"le"}))
        found[name] = Metric(name, Kind(family.type), family.documentation, labels)
    return found


async def scraped() -> list[Family]:
    """What a whole router tells a scraper, after something of each kind was counted."""
    static = [{"role": role, "url": f"http://127.0.0.1:{port}"} for role, port in (("prefill", 1), ("decode", 2))]
    async with running(config(static)) as router, httpx.AsyncClient() as client:
        router.telemetry.requests["tiny", 200] += 1
        router.telemetry.retries["decode"] += 1
        router.telemetry.local_prefills["no_kv"] += 1
        router.telemetry.queued["tiny"] = 1
        answer = await client.get(f"http://127.0.0.1:{router.admin_port}/metrics")
    return list(text_string_to_metric_families(answer.text))


def _stand_in_the_catalogue(families: Iterable[Family]) -> None:
    for name, metric in exposed(families).items():
        assert name in CATALOGUE, f"{name} is missing in pdpool_api.metrics"
        known = CATALOGUE[name]
        assert known.kind == metric.kind
        assert not metric.labels or set(metric.labels) == set(known.labels), name


async def test_what_the_router_exposes_stands_in_the_catalogue() -> None:
    """Each metric of a scrape is in the catalogue, with its kind and its labels, and each of the catalogue is there."""
    families = await scraped()
    _stand_in_the_catalogue(families)
    assert set(exposed(families)) == {name for name in CATALOGUE if name.startswith("pdpool_router_")}


def test_what_the_operator_exposes_stands_in_the_catalogue() -> None:
    """The same of the operator."""
    families = list(OPERATOR.collect())
    _stand_in_the_catalogue(families)
    assert set(exposed(families)) == {name for name in CATALOGUE if name.startswith("pdpool_operator_")}


def test_the_catalogue_is_well_formed() -> None:
    """Counters end in `_total` and nothing else does; every entry says what it is, in a sentence."""
    for name, metric in CATALOGUE.items():
        assert name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert metric.help[0].isupper() or metric.help[0].isdigit()
        assert metric.help.endswith(".")


def _named(query: str) -> set[str]:
    words = re.findall(r"\b((?:pdpool|vllm:|DCGM)[\w:]*|up(?=\{))", re.sub(r'"[^"]*"|by \([^)]*\)', "", query))
    return {word for word in words if not word.startswith("pdpool_io_")}


def _base(name: str) -> str:
    return name.removesuffix("_bucket").removesuffix("_count")


@pytest.mark.parametrize("query", [*dashboard.queries(), *(each.expr for each in alerts.ALERTS)])
def test_queries_name_only_metrics_that_exist(query: str) -> None:
    """Every metric of every panel and alert is in the catalogue, or one of the engines' or of DCGM's."""
    named = _named(query)
    assert named
    assert {_base(each) for each in named} <= CATALOGUE.keys() | OF_OTHERS


def test_every_metric_is_looked_at_by_somebody() -> None:
    """A metric that neither dashboard nor alert shows would be found by nobody in need."""
    shown = {
        _base(name)
        for query in [*dashboard.queries(), *(each.expr for each in alerts.ALERTS)]
        for name in _named(query)
    }
    assert CATALOGUE.keys() - shown <= {
        "pdpool_operator_watch_restarts_total",
        "pdpool_operator_pools",
        "pdpool_router_prediction_error_seconds",
    }


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Dashboard and rules of the chart are what their sources make."""
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_dashboard_is_whole() -> None:
    """Unique panel ids inside the grid, each panel with a query of the chosen data source."""
    board = json.loads(files()["dashboard.json"])
    panels = [each for each in board["panels"] if each["type"] != "row"]
    assert len(panels) == sum(len(row.panels) for row in dashboard.ROWS)
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "namespace", "pool"}
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "$datasource"
        assert all(target["expr"] for target in panel["targets"])


def test_every_alert_has_its_runbook_and_the_other_way_round() -> None:
    """One page an alert: what it means, what to look at, what to do."""
    pages = {file.stem for file in RUNBOOKS.glob("Pdpool*.md")}
    assert pages == {each.name for each in alerts.ALERTS}
    for each in alerts.ALERTS:
        text = (ROOT / each.runbook).read_text()
        assert text.startswith(f"# {each.name}\n")
        for heading in ("## Meaning", "## Look", "## Do"):
            assert heading in text, each.name


@pytest.fixture(scope="module")
def promtool() -> Path:
    return unpacked("prometheus", "usr/bin/promtool", Progress("promtool"))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    file.write_text(files()["alerts.yaml"])
    return file


def test_the_cases_name_every_alert() -> None:
    """A new alert must say what makes it fire."""
    assert CASES.keys() == {each.name for each in alerts.ALERTS}


def test_every_alert_fires_when_it_should_and_only_then(promtool: Path, rules: Path) -> None:
    """Rules are evaluated by promtool over series of a sick and of a healthy pool; and once over nothing at all."""
    by_name = {each.name: each for each in alerts.ALERTS}
    groups: list[dict[str, Any]] = []
    for name, (sick, well) in CASES.items():
        groups += [_case(by_name[name], sick, fires=True), _case(by_name[name], well, fires=False)]
        nothing = name == "PdpoolOperatorNotLeading"  # whose absence is the alarm
        groups.append(_case(by_name[name], [], fires=nothing))
    test = rules.with_name("test.yaml")
    test.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": groups}))
    done = subprocess.run(
        [str(promtool), "test", "rules", str(test)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _case(alert: alerts.Alert, series: Series, *, fires: bool) -> dict[str, Any]:
    """One evaluation at the half hour; promtool compares labels and annotations whole, so only the count is asked."""
    query = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert.name} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [{"expr": query, "eval_time": "30m", "exp_samples": expected}],
    }
