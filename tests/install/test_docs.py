"""The documentation: links that lead somewhere, and reference pages that name every field. `make docs` builds it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.chart import INSTALL_FILE, documents
from e2e.cluster.binaries import ensure
from e2e.cluster.commands import run
from e2e.cluster.progress import Progress
from e2e.docs.pages import ROUTER_SCHEMA, pages
from e2e.docs.reference import UndescribedError, fields
from pdpool_api.conditions import Reason
from pdpool_api.metrics import CATALOGUE
from pdpool_api.names import ROUTER_METRICS_PREFIX
from pdpool_api.pool import InferencePool, InferencePoolSpec
from pdpool_api.router_config import from_mapping
from pdpool_router.edge import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "reference" not in page.parts]
BUILT = {f"reference/{name}" for name in pages()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file of the repository, or a page that the build makes; anchors exist in their page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        if goal.is_relative_to(ROOT / "docs") and str(goal.relative_to(ROOT / "docs")) in BUILT:
            continue
        assert goal.exists(), target
        if anchor:
            assert anchor in {_anchor(line) for line in goal.read_text().splitlines() if line.startswith("#")}, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")


def test_the_reference_names_every_field_of_a_pool() -> None:
    """Each field of the spec has a row with its meaning, down to where Kubernetes' own types begin."""
    text = pages()["inferencepool-spec.md"]
    for name in InferencePoolSpec.model_fields.values():
        assert f"| `{name.alias}" in text or name.alias is None
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", text, re.MULTILINE)
    assert len(rows) > 150
    assert all(about.strip() for _, about in rows)


def test_the_reference_of_metrics_is_the_catalogue() -> None:
    """Each metric has its row."""
    text = pages()["metrics.md"]
    assert all(f"| `{name}` |" in text for name in CATALOGUE)


def test_defaults_and_bounds_of_the_router_stand_in_its_reference() -> None:
    """A default of the schema is what the page says."""
    schema = json.loads(ROUTER_SCHEMA.read_text())
    found = {each.path: each for each in fields(schema, schema["$defs"])}
    assert "default `1024`" in found["limits.maxQueued"].rules
    assert found["tenants[].weight"].about


def _table(page: str, heading: str) -> str:
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    (text,) = [each for each in sections if each.startswith(f"{heading}\n")]
    return text


def test_the_page_of_the_router_names_every_error_and_every_metric() -> None:
    """Whoever meets a code, or a series, finds it."""
    told = set(re.findall(r"`([a-z_]+)`", _table("router.md", "Errors")))
    assert {shape.code for _, shape in errors._TABLE if shape.code} <= told
    named = set(re.findall(r"`(\w+)(?:\{[\w,]+\})?`", _table("router.md", "Metrics")))
    ours = {name.removeprefix(ROUTER_METRICS_PREFIX) for name in CATALOGUE if name.startswith(ROUTER_METRICS_PREFIX)}
    assert ours - named == set()


def test_the_defaults_on_the_page_of_the_router_are_those_of_its_file() -> None:
    """The block names every field of these sections, with the value that it has when nobody names it."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", _table("router.md", "Configuration file"), re.MULTILINE | re.DOTALL)
    written = yaml.safe_load(block)
    whole = from_mapping({key: written[key] for key in ("model", "endpoints")})
    for section in ("routing", "limits", "auth", "tls", "speeds"):
        assert written[section] == getattr(whole, section).model_dump(mode="json", by_alias=True), section


FINE = {"Available", "ScaledToZero", "Complete", "Valid", "Scaling", "Transferring", "NoTraffic", "RoutingInformed"}
FINE |= {"NothingToNote"}
"""Reasons of a pool that lacks nothing."""


def test_the_page_of_operations_says_what_to_do_about_each_reason() -> None:
    """Who is on call looks up what `kubectl get pdp` shows."""
    told = set(re.findall(r"`([A-Z]\w+)`", _table("operations.md", "What to do when")))
    assert {reason.value for reason in Reason} - FINE - told == set()


LOGGED = re.compile(r"(\b_log|get_logger\(.*\))\.(debug|info|warning|error|exception)\b|self\.(_feed\.)?_?warn$")
"""How a line is logged in both planes: by the module's logger, or by a method that says each thing once."""


def _events(plane: str) -> Iterator[tuple[str, set[str]]]:
    """What the sources of a plane log: event, and the fields that are named where it is logged."""
    for file in sorted((ROOT / plane / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and LOGGED.search(ast.unparse(node.func)):
                fields = {each.arg for each in node.keywords if each.arg}
                yield from ((each.value, fields) for each in node.args if isinstance(each, ast.Constant))


@pytest.mark.parametrize("plane", ["operator", "router"])
def test_the_page_of_logs_names_every_event_with_its_fields(plane: str) -> None:
    """Who meets a line finds it on the page, and no line stands there that nothing says any more."""
    sections = re.split(r"^## ", (ROOT / "docs" / "logs.md").read_text(), flags=re.MULTILINE)
    (text,) = [each for each in sections if each.lower().startswith(plane)]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {event: set(re.findall("`(.+?)`", row[3])) for row in rows for event in re.findall("`(.+?)`", row[1])}
    found = list(_events(plane))
    assert {event for event, _ in found} == told.keys()
    assert [(event, fields - told[event]) for event, fields in found if fields - told[event]] == []


def test_a_field_that_nobody_explains_is_an_error() -> None:
    """The build fails and names the field."""
    schema: dict[str, Any] = {"properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}
    with pytest.raises(UndescribedError, match="a has no description"):
        list(fields(schema, {}))


def test_the_examples_of_the_pages_are_valid() -> None:
    """Each block of YAML parses, and what it says of a pool a pool may say: it will be copied."""
    of_pools = 0
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            told = yaml.safe_load(block)
            if "spec" in told and page.name != "gitops.md":  # whose specs are of Flux's kinds
                spec = {"model": {"id": "m"}, "prefill": {}, "decode": {}, **told["spec"]}
                InferencePool.parse({"metadata": {"name": "p"}, **told, "spec": spec}, strict=True)
                of_pools += 1
    assert of_pools


def test_the_packages_that_a_page_installs_need_no_other_of_ours() -> None:
    """Ours are on no index: a folder that is missing beside `pip install ./…` ends the installation."""
    found = 0
    for page in PAGES:
        for command in re.findall(r"^pip install (\./.*)$", page.read_text(), re.MULTILINE):
            told = [tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"] for name in command.split()]
            needed = {name for each in told for name in each["dependencies"] if name.startswith("pdpool-")}
            assert needed <= {each["name"] for each in told}, (page.name, command)
            found += 1
    assert found


def test_the_kustomization_of_the_page_changes_both_images(tmp_path: Path) -> None:
    """The example of docs/installing.md over manifests/install.yaml, by the kustomize inside kubectl."""
    page = (ROOT / "docs" / "installing.md").read_text()
    (example,) = [
        each for each in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "kustomize" in each
    ]
    (tmp_path / "kustomization.yaml").write_text(example)
    shutil.copy(INSTALL_FILE, tmp_path)
    kubectl = ensure(["kubectl"], Progress("docs"))["kubectl"]
    made = documents(run([kubectl, "kustomize", tmp_path]))
    (container,) = [each["spec"]["template"]["spec"]["containers"][0] for each in made if each["kind"] == "Deployment"]
    assert container["image"].startswith("registry.example.com/pdpool-operator:")
    routers = [word for word in container["args"] if word.startswith("--router-image=")]
    assert routers == ["--router-image=registry.example.com/pdpool-router:0.1.0"]
    assert len(made) == len(documents(INSTALL_FILE.read_text()))


def test_pools_are_asked_for_by_a_name_that_means_ours_only() -> None:
    """Another project's kind has the same plural: pages, samples and notes say `pdp`, or the full name (Q23)."""
    files = [*PAGES, *(ROOT / "manifests").rglob("*.yaml"), ROOT / "charts" / "pdpool" / "templates" / "NOTES.txt"]
    for file in files:
        text = file.read_text()
        for command in re.findall(r"kubectl [^`\n|]*", text):
            assert not re.search(r"\binferencepools?\b(?!\.pdpool\.io)", command, re.IGNORECASE), (file, command)
