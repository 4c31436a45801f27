"""What stands for the release before this one: the chart with other labels and a definition of pools with other fields.

Boundary: a copy of the chart in a folder, with the images of this release. Nothing was released yet; once it was, its
archive belongs here.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import yaml

from e2e.chart.helm import CHART, documents
from pdpool_api.names import CRD_NAME

if TYPE_CHECKING:
    from pathlib import Path

ADDED: Final = "maxGpus"
"""An optional field that the release before lacks."""
REMOVED: Final = "formerly"
"""An optional field that it has, and that is gone since."""


def release_before(folder: Path) -> Path:
    """Its chart, made in a folder."""
    chart = folder / "pdpool"
    shutil.copytree(CHART, chart)
    file = chart / "files" / f"{CRD_NAME}.yaml"
    (crd,) = documents(file.read_text())
    spec: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"][REMOVED] = {"type": "string"}
    del spec["properties"][ADDED]
    rules = spec.get("x-kubernetes-validations", [])
    spec["x-kubernetes-validations"] = [each for each in rules if ADDED not in each["rule"]]
    file.write_text(yaml.safe_dump(crd))
    about = chart / "Chart.yaml"
    told = yaml.safe_load(about.read_text())
    version = f"{told['version']}-before"
    about.write_text(yaml.safe_dump({**told, "version": version, "appVersion": version}))
    values = chart / "values.yaml"
    defaults = yaml.safe_load(values.read_text())
    for image in ("image", "routerImage"):
        defaults[image]["tag"] = told["appVersion"]
    values.write_text(yaml.safe_dump(defaults))
    return chart
