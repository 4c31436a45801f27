"""Alert rules, each with its runbook, and what makes it fire and what does not.

Boundary: pure; `__main__.py` writes the file. Thresholds are for pages, not for tuning: a pool that is a little slow
is the dashboard's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import metrics

if TYPE_CHECKING:
    from pdpool_api.metrics import Metric

RUNBOOKS: Final = "docs/runbooks"
"""Where their pages are in the repository; `alertRules.runbooks` of the chart makes links to where they are read."""
POOL: Final = "namespace, pdpool_io_pool"
_SUBJECT: Final = "{{ $labels.namespace }}/{{ $labels.pdpool_io_pool }}"
_SCALED: Final = "{{ $labels.namespace }}/{{ $labels.pool }}"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    expr: str
    hold: str
    """How long it must be true."""
    severity: str
    summary: str

    @property
    def runbook(self) -> str:
        """Its page, in the repository."""
        return f"{RUNBOOKS}/{self.name}.md"


def _rate(metric: Metric, window: str = "10m") -> str:
    return f"sum by ({POOL}) (rate({metric.name}[{window}]))"


def _sum(metric: Metric) -> str:
    return f"sum by ({POOL}) ({metric.name})"


_REQUESTS: Final = _rate(metrics.REQUESTS, "5m")
_FAILED: Final = f'sum by ({POOL}) (rate({metrics.REQUESTS.name}{{code=~"5.."}}[5m]))'

ALERTS: Final = (
    Alert(
        "PdpoolOperatorNotLeading",
        f"(sum({metrics.LEADING.name}) or vector(0)) < 1",
        "5m",
        "critical",
        "No replica of the operator acts: pools serve, and nothing about them changes.",
    ),
    Alert(
        "PdpoolReconcileErrors",
        f"sum(rate({metrics.RECONCILE_ERRORS.name}[10m])) > 0.01",
        "15m",
        "warning",
        "The operator keeps failing to do what it planned.",
    ),
    Alert(
        "PdpoolRouterDown",
        f'sum by ({POOL}) (up{{pdpool_io_role="router"}}) < 1',
        "2m",
        "critical",
        f"No router of {_SUBJECT} answers Prometheus.",
    ),
    Alert(
        "PdpoolNoEndpoint",
        f"sum by ({POOL}, role) ({metrics.ENDPOINTS.name}) > 0 unless "
        f'sum by ({POOL}, role) ({metrics.ENDPOINTS.name}{{state="ready"}}) > 0',
        "2m",
        "critical",
        f"No {{{{ $labels.role }}}} endpoint of {_SUBJECT} can serve.",
    ),
    Alert(
        "PdpoolRequestsFail",
        f"{_FAILED} > 0.05 * {_REQUESTS}",
        "5m",
        "critical",
        f"More than 5 % of the requests to {_SUBJECT} are answered 5xx.",
    ),
    Alert(
        "PdpoolStreamsBreak",
        f"{_rate(metrics.TRUNCATED_STREAMS)} > 0.01 * {_rate(metrics.REQUESTS)}",
        "10m",
        "warning",
        f"More than 1 % of the streams of {_SUBJECT} break after they began.",
    ),
    Alert(
        "PdpoolRetries",
        f"{_rate(metrics.RETRIES)} > 0.05 * {_rate(metrics.REQUESTS)}",
        "10m",
        "warning",
        f"More than 5 % of the requests to {_SUBJECT} need a second try.",
    ),
    Alert(
        "PdpoolQueue",
        f"{_sum(metrics.QUEUED)} > 0",
        "10m",
        "warning",
        f"Requests to {_SUBJECT} have been waiting for room for ten minutes.",
    ),
    Alert(
        "PdpoolPrefillSkipped",
        f'sum by ({POOL}) (rate({metrics.LOCAL_PREFILL.name}{{reason=~"no_prefill|no_kv"}}[10m])) > 0.1 * '
        f"{_rate(metrics.REQUESTS)}",
        "10m",
        "warning",
        f"Decode of {_SUBJECT} computes prompts that prefill should compute.",
    ),
    Alert(
        "PdpoolOrphanedPrefills",
        f"{_rate(metrics.ORPHANED_PREFILLS)} > 0.05 * {_rate(metrics.REQUESTS)}",
        "10m",
        "warning",
        f"More than 5 % of what prefill of {_SUBJECT} computes is pulled by nobody.",
    ),
    Alert(
        "PdpoolStaleEndpoints",
        f"{_sum(metrics.STALE_ENDPOINTS)} > 0",
        "10m",
        "warning",
        f"Engines of {_SUBJECT} tell the router no metrics; it balances by what it sent itself.",
    ),
    Alert(
        "PdpoolKvEventsMissing",
        f"max by ({POOL}) ({metrics.KV_EVENTS_MISSING.name}) > 0",
        "10m",
        "warning",
        f"Engines of {_SUBJECT} publish no KV events: prompts go where their prefix is not.",
    ),
    Alert(
        "PdpoolScalingInactive",
        f"min by (namespace, pool, role) ({metrics.SCALING_ACTIVE.name}) < 1",
        "10m",
        "warning",
        f"{{{{ $labels.role }}}} of {_SCALED} holds its size: none of its signals is known.",
    ),
)


def rules() -> dict[str, Any]:
    """The groups, as Prometheus reads them from a file and as a PrometheusRule holds them."""
    return {"groups": [{"name": "pdpool", "rules": [_rule(each) for each in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": alert.runbook},
    }
