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

from pdpool_api import hardware
from pdpool_api.engines import engine
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool
from pdpool_operator import build
from pdpool_operator.records import DEPLOYMENTS, Desired, Images

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


@pytest.mark.parametrize("name", hardware.profiles())
def test_engines_on_a_profile_are_started_as_before(name: str) -> None:
    """Arguments and variables of each role, and the pod's place and resources, for every shipped profile."""
    golden = Path(__file__).with_name(f"profile-{name}.json")
    rendered = _on_profile(name)
    if os.environ.get("PDPOOL_UPDATE_GOLDEN"):
        golden.write_text(json.dumps(rendered, indent=2) + "\n")
    assert rendered == json.loads(golden.read_text())


def _on_profile(name: str) -> dict[str, Any]:
    """One pool on the profile, as two roles and as one."""
    role = {"hardware": name}
    raw = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"model": {"id": "org/model", "maxModelLen": 8192}, "prefill": role, "decode": role},
    }
    pool = InferencePool.parse(raw, strict=True)
    images = Images(engine="engine:default", router="router:default")
    found: dict[str, Any] = {}
    for spec in (pool.spec, pool.spec.in_mode("Aggregated")):
        desired = build.desired(pool.model_copy(update={"spec": spec}), images)
        assert isinstance(desired, Desired)
        for child in desired.children:
            if child.resource is DEPLOYMENTS and child.role is not None and child.role is not Role.ROUTER:
                found[child.role.value] = _placed(child.body["spec"]["template"]["spec"])
    return found


def _placed(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {
        **{field: pod[field] for field in ("nodeSelector", "tolerations") if field in pod},
        **{field: container[field] for field in ("args", "env", "resources")},
    }
