"""The generated CRD: current, small, structural, documented, and bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from e2e.documents import documents
from pdpool_api import crd
from pdpool_api.crd import core
from pdpool_api.crd.__main__ import main
from pdpool_api.crd.structural import structural
from pdpool_api.pool import InferencePool
from pdpool_api.schema import ApiModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "crds/inferencepools.pdpool.io.yaml"

NEVER = {
    "$ref", "$defs", "$core", "const", "title", "examples", "deprecated", "propertyNames", "prefixItems", "uniqueItems",
    "readOnly", "without", "oneOf", "allOf", "not", "x-kubernetes-unions", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-group-version-kind",
}  # fmt: skip


_text = cache(crd.text)


@cache
def _schema() -> dict[str, Any]:
    version = crd.document()["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from _nodes(each, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from _nodes(schema[key], path + mark)


CORE_ROOTS = (
    ".env[]", ".resources", ".volumes[]", ".volumeMounts[]", ".securityContext", ".podSecurityContext", ".affinity",
    ".tolerations[]", ".topologySpreadConstraints[]", ".resourceClaims[]", ".imagePullSecrets[]",
)  # fmt: skip


def _is_inside_core(path: str) -> bool:
    return any(f"{root}{after}" in path for root in CORE_ROOTS for after in (".", "[", "{")) or path.endswith("[]")


def test_the_file_is_what_the_models_give() -> None:
    """The committed file is never behind the models."""
    assert FILE.read_text() == _text()


def test_the_text_is_deterministic() -> None:
    """Another process, with another hash seed, writes the same bytes."""
    code = "import sys; from pdpool_api import crd; sys.stdout.write(crd.text())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout == _text()


def test_it_fits_a_client_side_apply() -> None:
    """Compact JSON stays below 200,000 bytes, far from the limit of an annotation."""
    assert len(json.dumps(documents(FILE.read_text())[0], separators=(",", ":"))) < 200_000


def test_the_yaml_holds_no_anchor() -> None:
    """Equal parts are written out: few tools keep anchors."""
    assert "&id" not in _text()


def test_nothing_stands_in_it_that_the_api_server_refuses() -> None:
    """Keywords of JSON schema that a structural schema cannot hold are gone."""
    found = {(path, key) for path, node in _nodes(_schema()) for key in node.keys() & NEVER}
    assert not found


def test_alternatives_exist_only_as_int_or_string() -> None:
    """`anyOf` with types is allowed in that one form."""
    nodes = [(path, node) for path, node in _nodes(_schema()) if "anyOf" in node]
    assert nodes
    assert not [path for path, node in nodes if not node.get("x-kubernetes-int-or-string")]


def test_no_default_is_null_or_empty() -> None:
    """Empty says the same as absent, and would keep `required` from biting."""
    found = [path for path, node in _nodes(_schema()) if "default" in node and node["default"] in (None, "", [], {})]
    assert not found


def test_a_default_of_an_object_is_its_full_value() -> None:
    """Rules are checked against a default before nested defaults are filled in, so nothing may be missing."""
    for path, node in _nodes(_schema()):
        if isinstance(node.get("default"), dict):
            inner = {name: each["default"] for name, each in node["properties"].items() if "default" in each}
            assert node["default"] == inner, path


def test_descriptions_tell_plain_defaults() -> None:
    """`kubectl explain` shows no default by itself."""
    decode = _schema()["properties"]["spec"]["properties"]["decode"]["properties"]
    assert decode["drainSeconds"]["description"].endswith("Default: 300.")
    assert decode["replicas"]["description"].endswith("Default: 1.")


def test_an_unwritten_status_has_no_defaults() -> None:
    """Zeros that nobody counted would be lies."""
    status = _schema()["properties"]["status"]
    assert not [path for path, node in _nodes(status) if "default" in node]


def test_keys_of_map_lists_are_required() -> None:
    """The API server insists that the keys of a list-map are there."""
    for path, node in _nodes(_schema()):
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node.get("items", {}).get("required", [])), path


def test_every_field_of_ours_is_documented() -> None:
    """`kubectl explain` has a sentence for each field."""
    bare = [
        path
        for path, node in _nodes(_schema())
        if not _is_inside_core(path) and not path.endswith("{}") and "description" not in node
    ]
    assert set(bare) <= {".apiVersion", ".kind", ".metadata"}


def test_everything_of_ours_is_bounded() -> None:
    """Text, lists, maps and numbers have limits: rules that loop need them, and hostile input has no room."""
    limit = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",), "integer": ("maximum", "format")}
    for path, node in _nodes(_schema()):
        ours = path.startswith((".spec", ".status")) and not any(f"{root}" in path for root in CORE_ROOTS)
        kind = "string" if node.get("x-kubernetes-int-or-string") else node["type"]
        if ours and kind in limit:
            assert set(limit[kind]) & node.keys(), path
        if ours and "additionalProperties" in node:
            assert "maxProperties" in node, path
        assert node.get("maxItems", 0) <= 256, path


def test_the_schema_holds_the_fields_that_something_acts_on() -> None:
    """The top level of a spec, so that a field cannot slip in unnoticed."""
    spec = _schema()["properties"]["spec"]
    assert list(spec["properties"]) == [
        *("model", "engine", "mode", "transfer", "prefill", "decode", "maxGpus", "autoscaling"),
        *("workload", "slo", "router", "monitoring"),
    ]
    assert spec["required"] == ["model", "decode"]


def test_there_is_a_status_subresource_and_no_scale() -> None:
    """A pool has two sizes, so one scale subresource would lie (Q24)."""
    (version,) = crd.document()["spec"]["versions"]
    assert version["subresources"] == {"status": {}}


def test_columns_of_the_contract() -> None:
    """What `kubectl get pdp` shows, and what `-o wide` adds."""
    columns = crd.document()["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [each["name"].upper() for each in columns if not each.get("priority")]
    wide = [each["name"].upper() for each in columns if each.get("priority")]
    assert narrow == ["MODEL", "MODE", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
    assert wide == ["URL", "REVISION", "GPUS"]


def test_every_status_field_is_in_the_schema() -> None:
    """What the operator writes is never pruned (Q21)."""
    properties = _schema()["properties"]["status"]["properties"]
    assert set(properties["decode"]["properties"]) >= {
        "desiredReplicas",
        "readyReplicas",
        "unschedulableReplicas",
        "ready",
    }
    assert properties["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_core_pieces_are_typed_to_the_bottom() -> None:
    """A misspelt field deep inside a core/v1 value is a typing error, not free text."""
    reference = core.definition("EnvVar")["properties"]["valueFrom"]["properties"]["secretKeyRef"]
    assert reference["required"] == ["key"]
    assert set(reference["properties"]) == {"name", "key", "optional"}


def test_a_part_of_a_core_piece_can_be_left_out() -> None:
    """What nothing acts on is not offered."""
    assert "claims" not in core.definition("ResourceRequirements", without=("claims",))["properties"]


def test_a_snapshot_keeps_fields_that_are_called_like_prose() -> None:
    """Only keywords are dropped; a property named `description` stays."""
    schema = {
        "description": "prose",
        "type": "object",
        "properties": {"description": {"type": "string", "default": ""}},
    }
    taken = core.snapshot({"components": {"schemas": {"io.k8s.api.core.v1.Odd": schema}}}, ["Odd"])
    assert taken["components"]["schemas"]["io.k8s.api.core.v1.Odd"] == {
        "type": "object",
        "properties": {"description": {"type": "string"}},
    }


def test_check_prints_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make verify` fails on a stale file and shows what differs; after `make generate` it is silent."""
    file = tmp_path / "crd.yaml"
    assert main(["--file", str(file)]) == 0
    assert main(["--file", str(file), "--check"]) == 0
    file.write_text(file.read_text().replace("maximum: 4096", "maximum: 4095", 1))
    assert main(["--file", str(file), "--check"]) == 1
    shown = capsys.readouterr().out
    assert "maximum: 4095" in shown
    assert "maximum: 4096" in shown


def test_model_and_schema_agree_on_required_fields() -> None:
    """A pool that the schema takes, the models take as well."""
    smallest = {"metadata": {"name": "p"}, "spec": {"model": {"id": "m"}, "prefill": {}, "decode": {}}}
    assert InferencePool.parse(smallest, strict=True).name == "p"


def test_a_snapshot_of_the_server_can_be_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved answer of an API server becomes the package's own copy; renewing it from itself changes nothing."""
    own = Path(core.__file__).with_name(core.SNAPSHOT_FILE)
    monkeypatch.setattr(core, "__file__", str(tmp_path / "core.py"))
    assert main(["--snapshot", str(own), "--file", str(tmp_path / "crd.yaml")]) == 0
    assert (tmp_path / core.SNAPSHOT_FILE).read_text() == own.read_text()


def test_a_crd_that_is_too_large_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit of a client-side apply is held when generating, not when a user applies."""
    monkeypatch.setattr("pdpool_api.crd.__main__.SIZE_LIMIT_BYTES", 1000)
    assert main(["--file", str(tmp_path / "crd.yaml")]) == 1
    assert "the limit is 1000" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_exclusive_bounds_are_written_as_openapi_3_0_has_them() -> None:
    """`exclusiveMinimum` and `exclusiveMaximum` are numbers in JSON schema and switches in a structural schema."""

    class Odd(ApiModel):
        """A model."""

        ratio: Annotated[float, Field(gt=0, lt=1)]
        """A number."""

    ratio = structural(Odd)["properties"]["ratio"]
    assert (ratio["minimum"], ratio["exclusiveMinimum"]) == (0, True)
    assert (ratio["maximum"], ratio["exclusiveMaximum"]) == (1, True)
    for path, node in _nodes(_schema()):
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert node.get(bound) in (None, True) or isinstance(node[bound], dict), path
