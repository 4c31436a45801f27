"""What stands for the release before this one: the chart with other labels and a definition of pools with other fields.

Boundary: a copy of the chart in a folder, with the images of this release. Nothing was released yet; once it was, its
archive belongs here.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import yaml

from e2e.chart.helm import CHART
from e2e.documents import documents
from pdpool_api.names import CRD_NAME

if TYPE_CHECKING:
    from pathlib import Path

ADDED: Final = "maxGpus"
"""An optional field that the release before lacks."""
REMOVED: Final = "formerly"
"""An optional field that it has, and that is gone since."""
NEEDED: Final = frozenset({"prefill"})
"""Of a spec, besides what its schema requires: a rule does."""


def release_before(folder: Path, *, bare: bool = False) -> Path:
    """Its chart, made in a folder. `bare`: pools have only what they need, so that this release adds the rest."""
    chart = folder / "pdpool"
    shutil.copytree(CHART, chart)
    file = chart / "files" / f"{CRD_NAME}.yaml"
    (crd,) = documents(file.read_text())
    properties: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec = properties["spec"] = _bare(properties["spec"], NEEDED) if bare else _without(properties["spec"], ADDED)
    spec["properties"][REMOVED] = {"type": "string"}
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


def _without(schema: dict[str, Any], field: str) -> dict[str, Any]:
    properties = {name: each for name, each in schema["properties"].items() if name != field}
    rules = [each for each in schema.get("x-kubernetes-validations", ()) if field not in each["rule"]]
    return {**schema, "properties": properties, "x-kubernetes-validations": rules}


def _bare(schema: dict[str, Any], needed: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Without rules and defaults too, which speak of fields that are gone."""
    kept = needed | set(schema.get("required", ()))
    properties = {name: _bare(each) for name, each in schema.get("properties", {}).items() if name in kept}
    gone = ("default", "properties", "x-kubernetes-validations")
    rest = {key: value for key, value in schema.items() if key not in gone}
    return {**rest, "properties": properties} if properties else rest
