"""Which reference pages there are, and where each of them comes from.

Boundary: reads the sources and writes Markdown into a folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.chart import CHART, documents
from e2e.docs.reference import fields, metrics_page, page

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
CRD: Final = ROOT / "crds" / "inferencepools.pdpool.io.yaml"
ROUTER_SCHEMA: Final = ROOT / "crds" / "router-config.schema.json"
KUBERNETES: Final = frozenset(
    [
        "affinity",
        "emptyDir",
        "env",
        "envFrom",
        "hostPath",
        "imagePullSecrets",
        "parentRefs",
        "persistentVolumeClaim",
        "podSecurityContext",
        "resourceClaims",
        "resources",
        "securityContext",
        "tolerations",
        "topologySpreadConstraints",
        "volumeMounts",
        "volumes",
    ]
)
"""Fields whose types are of Kubernetes itself: `kubectl explain` and its own reference say what is in them."""


def pages() -> Mapping[str, str]:
    """Text by file name."""
    (crd,) = documents(CRD.read_text(encoding="utf-8"))
    pool = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    router: dict[str, Any] = json.loads(ROUTER_SCHEMA.read_text(encoding="utf-8"))
    values: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return {
        "inferencepool-spec.md": page(
            "InferencePool: spec",
            "`inferencepools.pdpool.io/v1alpha1`. The same text is under `kubectl explain pdp.spec`. Parts whose types "
            "are of Kubernetes itself (volumes, affinity, …) are named and not repeated.",
            fields(pool["spec"], {}, typed=KUBERNETES),
        ),
        "inferencepool-status.md": page(
            "InferencePool: status",
            "What the operator says of a pool. Conditions have [a page of their own](../conditions.md).",
            fields(pool["status"], {}),
        ),
        "router-config.md": page(
            "Router configuration",
            "The file behind `pdpool-router --config`, hot-reloaded. In a cluster the operator writes it. "
            "Its JSON schema is `crds/router-config.schema.json`. See also [the router](../router.md).",
            fields(router, router.get("$defs", {})),
        ),
        "chart-values.md": page(
            "Values of the chart",
            "`charts/pdpool/values.yaml`; a misspelt value is refused.",
            fields(values, values["definitions"], typed=KUBERNETES),
        ),
        "metrics.md": metrics_page(),
    }


def write(folder: Path) -> None:
    """Write every page into the folder, and leave files alone that hold the same already: builds stay incremental."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
