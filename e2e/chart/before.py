"""What stands for the release before this one: the chart with other labels and a definition of pools with other fields.

Boundary: a copy of the chart in a folder, with the images of this release, and which chart's definition a cluster has.
Nothing was released yet; once it was, its archive belongs here.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import yaml

from e2e.chart.helm import CHART
from e2e.documents import documents
from pdpool_api.names import CRD_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REMOVED: Final = "formerly"
"""An optional field that it has at each level of a spec, and that is gone since."""
SMALLEST: Final[Mapping[str, Any]] = {"prefill": {}}
"""What each spec names, besides what its schema requires: a rule does."""

DEFINITION: Final = f"files/{CRD_NAME}.yaml"
"""Of pools, in a chart."""


def release_before(folder: Path, *specs: Mapping[str, Any]) -> Path:
    """Its chart, made in a folder.

    Its pools have the fields that `specs` name and those that are required, so that this release adds all others. Its
    rules and defaults are gone too, as they speak of fields that it lacks.
    """
    chart = folder / "pdpool"
    shutil.copytree(CHART, chart)
    file = chart / DEFINITION
    (crd,) = documents(file.read_text())
    properties: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = _earlier(properties["spec"], (SMALLEST, *specs))
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


def is_of_chart(stored: Mapping[str, Any], chart: Path) -> bool:
    """Whether a cluster's definition of pools has the very fields and rules of a chart's."""
    (told,) = documents((chart / DEFINITION).read_text())
    return bool(_schemas(stored) == _schemas(told))


def _schemas(crd: Mapping[str, Any]) -> list[Any]:
    return [each["schema"] for each in crd["spec"]["versions"]]


def _earlier(schema: dict[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """A schema with the fields of these values only; what is no object with named fields stays whole."""
    rest = {key: each for key, each in schema.items() if key not in ("default", "x-kubernetes-validations")}
    if "properties" not in schema:
        return rest
    objects = [each for each in values if isinstance(each, dict)]
    kept = set(schema.get("required", ())).union(*objects)
    properties = {
        name: _earlier(each, [value[name] for value in objects if name in value])
        for name, each in schema["properties"].items()
        if name in kept
    }
    return {**rest, "properties": {**properties, REMOVED: {"type": "string"}}}
