"""The Helm chart as a tool sees it: rendered into `manifests/install.yaml`, installed, upgraded and removed.

Boundary: runs helm; what the chart says is under `charts/pdpool`.
"""

from e2e.chart.helm import (
    CHART,
    HELM3,
    HELM4,
    INSTALL_FILE,
    NAMESPACE,
    OPERATOR,
    RELEASE,
    Helm,
    lint,
    package,
    render,
)
from e2e.documents import documents

__all__ = [
    "CHART",
    "HELM3",
    "HELM4",
    "INSTALL_FILE",
    "NAMESPACE",
    "OPERATOR",
    "RELEASE",
    "Helm",
    "documents",
    "lint",
    "package",
    "render",
]
