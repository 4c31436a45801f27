"""What a GitOps tool sees of a pool, at rest and while sizes move: no difference, whichever way it applies."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pdpool_api import names
from tests.operator.answering import Workload, size, waiting
from tests.operator.harness import eventually, pool
from tests.operator.site import settled

if TYPE_CHECKING:
    from tests.operator.harness import Api, Json
    from tests.operator.site import Site

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator"), pytest.mark.xdist_group("pools")]

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
LOOKS = 5
WAYS = {
    "client-side": ["apply"],
    "server-side": ["apply", "--server-side", "--field-manager=gitops"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sample", ["llama-70b.yaml", "lora.yaml"])
def test_a_pool_at_rest_shows_no_difference(site: Site, api: Api, namespace: str, sample: str, way: str) -> None:
    """Applying the same manifest again changes nothing, no diff is seen, and only the status is ours (Q19)."""
    file = SAMPLES / sample
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    _kubectl(site, namespace, *WAYS[way], "--filename", str(file))
    settled(api, namespace, name)
    assert _diff(site, namespace, way, file) == ""

    def applied_again() -> Json:
        before = _pool(api, namespace, name)
        _kubectl(site, namespace, *WAYS[way], "--filename", str(file))
        after = _pool(api, namespace, name)
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        return after

    found = eventually(applied_again)  # until the status, which follows its children, comes to rest
    assert found["metadata"].get("finalizers", []) == []
    assert _owned(found) == {"f:status"}
    assert _diff(site, namespace, way, file) == ""


@pytest.mark.parametrize("way", WAYS)
def test_no_difference_is_seen_while_sizes_move(site: Site, api: Api, namespace: str, tmp_path: Path, way: str) -> None:
    """A role goes from one replica to four and back: at every look nothing differs, and a sync resets nothing (Q19)."""
    autoscaled = {
        "hardware": "cpu",
        "autoscaling": {
            "minReplicas": 1,
            "maxReplicas": 8,
            "signals": [{"type": "QueueDepth", "target": 10}],
            "scaleDown": {"stabilizationSeconds": 3},
        },
    }
    file = tmp_path / "pool.yaml"
    body = pool("tiny", namespace, prefill=autoscaled, decode={"hardware": "cpu"}, autoscaling={"intervalSeconds": 1})
    file.write_text(yaml.safe_dump(body))
    _kubectl(site, namespace, *WAYS[way], "--filename", str(file))
    generation = settled(api, namespace, "tiny")["metadata"]["generation"]
    looks: list[tuple[int, str]] = []

    def moved_to(count: int) -> None:
        looks.append((size(api, namespace, "prefill"), _diff(site, namespace, way, file)))
        assert looks[-1][0] == count

    with ExitStack() as stack:
        workload = Workload(api, namespace, stack)
        (first,) = workload.wait_pods("prefill", 1)
        workload.serve(first, waiting(40))
        eventually(lambda: moved_to(4), timeout_s=30)
        _kubectl(site, namespace, *WAYS[way], "--filename", str(file))
        moved_to(4)
        workload.show(first, waiting(0))
        eventually(lambda: moved_to(1), timeout_s=60)
        _kubectl(site, namespace, *WAYS[way], "--filename", str(file))
        moved_to(1)
    assert {now for now, _ in looks} >= {1, 4}
    assert {shown for _, shown in looks} == {""}
    found = _pool(api, namespace, "tiny")
    assert found["metadata"]["generation"] == generation
    assert "replicas" not in found["spec"]["prefill"]
    assert _owned(found) == {"f:status"}


def _pool(api: Api, namespace: str, name: str) -> Json:
    found = api.get("inferencepools", namespace, name)
    assert found is not None
    return found


def _kubectl(site: Site, namespace: str, *arguments: str) -> str:
    return site.cluster.kubectl("--namespace", namespace, *arguments)


def _diff(site: Site, namespace: str, way: str, file: Path) -> str:
    """What `kubectl diff` prints; it ends with 1 where there is a difference.

    kubectl reads twice, and shows a status that was written in between: only what it shows again and again is there.
    """
    arguments = ["--namespace", namespace, "diff", *WAYS[way][1:], "--filename", str(file)]
    for _ in range(LOOKS):
        done = subprocess.run(
            site.cluster.kubectl_command(*arguments), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        if done.returncode == 0:
            break
    return done.stdout


def _owned(pool: Json) -> set[str]:
    """Members of the pool that hold anything of the operator's."""
    fields: list[dict[str, Any]] = [
        each["fieldsV1"] for each in pool["metadata"]["managedFields"] if each["manager"] == names.FIELD_MANAGER
    ]
    assert fields
    return {member for each in fields for member in each}
