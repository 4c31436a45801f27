"""What each sample's engines are started with, compared with files that a reviewer can read.

A difference here rolls pods of everybody who upgrades: it must be wanted. With `PDPOOL_UPDATE_GOLDEN=1` the files are
written anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdpool_api.engines import engine
from pdpool_api.pool import InferencePool

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


def _rendered(file: Path) -> dict[str, Any]:
    pools = [each for each in yaml.safe_load_all(file.read_text()) if each and each["kind"] == "InferencePool"]
    return {pool.name: _of_pool(pool) for pool in (InferencePool.parse(each, strict=True) for each in pools)}


def _of_pool(pool: InferencePool) -> dict[str, Any]:
    spec = pool.spec.with_images(engine="engine:default", router="router:default")
    of = engine(spec)
    assert not of.reserved_arguments(spec)
    assert not of.disagreements(spec)
    return {
        "revision": of.revision(spec),
        **{
            role.value: {
                "args": of.arguments(spec, role),
                "env": of.environment(spec, role),
                "ports": of.ports(spec, role),
                "preStop": _without_script(of.pre_stop(spec, role)),
                "terminationGracePeriodSeconds": of.termination_grace_seconds(spec, role),
                **{name: _without_script(probe) for name, probe in of.probes(spec, role).items()},
            }
            for role in spec.roles
        },
    }


def _without_script(handler: dict[str, Any]) -> dict[str, Any]:
    """The handler with its script cut to the first line: the rest is read where it is written."""
    if "exec" not in handler:
        return handler
    command = [argument.partition("\n")[0] for argument in handler["exec"]["command"]]
    return {**handler, "exec": {"command": command}}


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.name)
def test_engines_of_a_sample_are_started_as_before(file: Path) -> None:
    """Arguments, environment, ports, probes, grace and the revision's hash are those of the golden file."""
    golden = Path(__file__).with_name(f"engine-{file.stem}.json")
    rendered = _rendered(file)
    if os.environ.get("PDPOOL_UPDATE_GOLDEN"):
        golden.write_text(json.dumps(rendered, indent=2) + "\n")
    assert rendered == json.loads(golden.read_text())
