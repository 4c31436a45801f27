"""The models of the InferencePool: reading, defaults, and the rules that one object can be judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from pdpool_api import hardware
from pdpool_api.names import Role
from pdpool_api.pool import (
    MAX_DATA_PARALLEL,
    InferencePool,
    InferencePoolStatus,
    PoolError,
    RoleSpec,
    RoleStatus,
)
from pdpool_api.scaling_spec import SignalType

ROOT = Path(__file__).parents[2]


def _pool(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"model": {"id": "m"}, "prefill": {}, "decode": {}, **spec}}


QUEUE = {"type": "QueueDepth", "target": 4}


def _scaled(**autoscaling: Any) -> dict[str, Any]:
    return {"prefill": {"autoscaling": autoscaling}}


def _signals(*each: dict[str, Any]) -> dict[str, Any]:
    return _scaled(signals=list(each))


def _signal(**signal: Any) -> dict[str, Any]:
    return _signals(signal)


def test_a_small_pool_gets_the_defaults_of_the_contract() -> None:
    """A pool that names a model and two roles is complete."""
    spec = InferencePool.parse(_pool(), strict=True).spec
    assert (spec.mode, spec.engine.name, spec.engine.startup_timeout_seconds) == ("Disaggregated", "VLLM", 1800)
    assert (spec.transfer.lease_seconds, spec.transfer.on_failure) == (30, "Fail")
    assert (spec.decode.drain_seconds, spec.router.drain_seconds) == (300, 600)
    assert (spec.prefill.desired_replicas, spec.decode.desired_replicas, spec.router.desired_replicas) == (1, 1, 1)


def test_zero_replicas_are_not_absent_replicas() -> None:
    """`replicas: 0` is a size; only an absent field becomes 1."""
    assert InferencePool.parse(_pool(decode={"replicas": 0})).spec.decode.desired_replicas == 0


def test_the_served_name_is_the_id_unless_given() -> None:
    """Clients ask for the id where no name is given, and for the given names otherwise."""
    assert InferencePool.parse(_pool()).spec.model.names == ("m",)
    assert InferencePool.parse(_pool(model={"id": "m", "servedNames": ["b", "a"]})).spec.model.names == ("b", "a")


def test_stored_objects_are_read_leniently() -> None:
    """What a newer CRD stored is read by an older operator: unknown fields are passed over."""
    raw = _pool(workload={"requestsPerSecond": 6}, decode={"replicas": 2, "newest": {}})
    assert InferencePool.parse(raw).spec.decode.replicas == 2


def test_files_are_read_strictly() -> None:
    """A misspelt field of a file is refused with its path."""
    with pytest.raises(PoolError, match=r"spec\.engine\.imgae: Extra inputs are not permitted"):
        InferencePool.parse(_pool(engine={"imgae": "x"}), strict=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"id": ""}}, r"spec\.model\.id: String should have at least 1 character"),
        ({"model": {"id": "--port"}}, r"spec\.model: .*id must be a hub id or an absolute path"),
        ({"model": {"id": "a b"}}, r"spec\.model: .*id must be a hub id or an absolute path"),
        ({"model": {"id": "m", "servedNames": ["a", "a"]}}, r"spec\.model: .*servedNames must not repeat a name"),
        (
            {"model": {"id": "m", "servedNames": ["-a"]}},
            r"spec\.model: .*a name in servedNames must have no white space",
        ),
        ({"model": {"id": "m", "maxModelLen": 0}}, r"spec\.model\.maxModelLen: .*greater than or equal to 1"),
        (
            {"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}},
            r"spec\.engine\.env: .*a value or a valueFrom, not both",
        ),
        ({"prefill": {"replicas": -1}}, r"spec\.prefill\.replicas: .*greater than or equal to 0"),
        (
            {"prefill": {"parallelism": {"tensor": 2}}, "decode": {"parallelism": {"tensor": 3}}},
            "must divide one another",
        ),
        ({"decode": {"parallelism": {"pipeline": 2}}}, r"decode\.parallelism\.pipeline must be 1"),
        ({"decode": {"hardware": "abacus"}}, r"spec\.decode\.hardware: Input should be 'h100-sxm', .* or 'cpu'"),
        ({"transfer": {"leaseSeconds": 5}}, r"spec\.transfer\.leaseSeconds: .*greater than or equal to 6"),
        ({"mode": "Aggregated"}, r"prefill must be absent in mode Aggregated"),
        (_scaled(minReplicas=5, maxReplicas=2), r"spec\.prefill\.autoscaling: .*minReplicas must not be greater than"),
        (_scaled(minReplicas=-1), r"spec\.prefill\.autoscaling\.minReplicas: .*greater than or equal to 0"),
        (_scaled(minReplicas=0), r"minReplicas 0 is for both roles together"),
        (
            {"decode": {"replicas": 2, "autoscaling": {}}},
            r"spec\.decode: .*replicas and autoscaling exclude one",
        ),
        (_signal(type="QueueDepth", target=-4), r"autoscaling\.signals\[0\]\.target: .*greater than 0"),
        (_signal(type="QueueDepth"), r"target is required"),
        (_signal(type="KvCacheUsage", target=0.8), r"signals KvCacheUsage, RunningRequests, Itl are not for prefill"),
        (_signal(type="GpuDramActive", target=80), r"target of a ratio must be at most 1"),
        (_signal(type="GpuDramActive", target=0.8), r"need spec\.autoscaling\.prometheus"),
        (_signal(type="PrometheusQuery", target=1), r"query is required with PrometheusQuery"),
        (_signal(type="Ttft"), r"signals Ttft and Itl need a target, or the one of spec\.slo"),
        (_signals(QUEUE, QUEUE), r"signals must not repeat a type"),
        (
            {"decode": {"autoscaling": {"signals": [{"type": "Ttft", "target": 500}]}}},
            r"signals QueuedPromptTokens, Ttft are not for decode",
        ),
        (
            {"autoscaling": {"source": "Prometheus"}},
            r"spec\.autoscaling: .*prometheus is required with source",
        ),
        ({"autoscaling": {"prometheus": {"url": "http://me:secret@p"}}}, r"spec\.autoscaling\.prometheus\.url: "),
        (
            {"autoscaling": {"ratio": {"minPrefillPerDecode": 2, "maxPrefillPerDecode": 1}}},
            r"minPrefillPerDecode must not be greater",
        ),
        (
            {"router": {"replicas": 2, "autoscaling": {"maxReplicas": 3}}},
            r"spec\.router: .*an autoscaling with maxReplicas above 0 exclude",
        ),
        ({"router": {"autoscaling": {"minReplicas": 4, "maxReplicas": 3}}}, r"spec\.router\.autoscaling: "),
        ({"mode": "Split"}, r"spec\.mode: Input should be 'Disaggregated', 'Aggregated' or 'Auto'"),
    ],
)
def test_a_broken_rule_is_named_with_its_field(fields: dict[str, Any], message: str) -> None:
    """Bad input gets an error that says which field and which rule."""
    with pytest.raises(PoolError, match=message):
        InferencePool.parse(_pool(**fields))


def test_every_fault_is_in_one_message() -> None:
    """An author sees all faults at once."""
    raw = {"metadata": {"name": "p"}, "spec": {"model": {"id": ""}, "prefill": {"replicas": -1}}}
    with pytest.raises(PoolError) as caught:
        InferencePool.parse(raw)
    assert all(path in str(caught.value) for path in ("spec.model.id", "spec.prefill.replicas", "spec.decode: Field"))


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 4), (4, 2), (3, 6)])
def test_tensor_sizes_that_divide_one_another_are_taken(prefill: int, decode: int) -> None:
    """Either side may be the larger."""
    raw = _pool(prefill={"parallelism": {"tensor": prefill}}, decode={"parallelism": {"tensor": decode}})
    assert InferencePool.parse(raw).spec.decode.parallelism.tensor == decode


def test_models_are_immutable() -> None:
    """One reconcile cannot change what the next one sees."""
    spec = InferencePool.parse(_pool()).spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.decode.replicas = 3  # type: ignore[misc]


def test_absent_images_come_from_the_operator() -> None:
    """An image of the author stays; an absent one is filled in."""
    spec = InferencePool.parse(_pool(engine={"image": "own:1"})).spec.with_images(engine="e:1", router="r:1")
    assert (spec.engine.image, spec.router.image) == ("own:1", "r:1")


def test_sizes_of_demand_replace_those_of_the_spec() -> None:
    """What is built has the sizes that demand asks for; absent ones stay, and the pool itself is not changed."""
    spec = InferencePool.parse(_pool(prefill={"autoscaling": {"minReplicas": 2}})).spec
    assert (spec.prefill.desired_replicas, spec.prefill.most_replicas) == (2, 8)  # type: ignore[union-attr]
    sized = spec.with_sizes({Role.PREFILL: 5, Role.ROUTER: 3})
    assert sized.role(Role.PREFILL).desired_replicas == 5
    assert (sized.decode.desired_replicas, sized.router.desired_replicas) == (1, 3)
    assert spec.role(Role.PREFILL).desired_replicas == 2
    aggregated = InferencePool.parse({**_pool(), "spec": {"model": {"id": "m"}, "mode": "Aggregated", "decode": {}}})
    assert aggregated.spec.with_sizes({Role.AGGREGATED: 4}).decode.desired_replicas == 4


def test_a_latency_takes_its_target_from_the_slo() -> None:
    """Ttft and Itl without a target follow spec.slo."""
    fields = {"slo": {"ttftMilliseconds": 500}, **_signal(type="Ttft")}
    assert InferencePool.parse(_pool(**fields), strict=True).spec.slo_of(SignalType.TTFT) == 500


def test_a_role_is_found_by_its_name() -> None:
    """Only the engine roles of the pool have a spec."""
    spec = InferencePool.parse(_pool(decode={"replicas": 7})).spec
    assert spec.role(Role.DECODE) is spec.decode
    with pytest.raises(KeyError):
        spec.role(Role.ROUTER)


def test_status_shows_ready_and_desired_in_one_word() -> None:
    """The printer column's field follows the counts, so that nobody can forget to write it."""
    status = InferencePoolStatus(decode=RoleStatus(ready_replicas=2, desired_replicas=3))
    assert status.to_json()["decode"]["ready"] == "2/3"
    assert "prefill" not in status.to_json()


def test_a_written_status_is_read_back() -> None:
    """What the operator wrote it can read after a restart."""
    status = InferencePoolStatus(observed_generation=4, revision="abc", decode=RoleStatus(replicas=3))
    assert InferencePoolStatus.model_validate(status.to_json()) == status


def test_hardware_names_are_the_shipped_profiles() -> None:
    """The schema takes exactly the profiles that exist."""
    (names,) = (each for each in get_args(RoleSpec.model_fields["hardware"].annotation) if each is not type(None))
    assert set(get_args(names)) == set(hardware.profiles())


def test_ranges_of_rank_ports_do_not_meet() -> None:
    """The limit of data-parallel ranks keeps event, side-channel and replay ports apart."""
    starts = (5557, 5600, 5657)
    ranges = [set(range(start, start + MAX_DATA_PARALLEL)) for start in starts]
    assert sum(map(len, ranges)) == len(set().union(*ranges))


@pytest.mark.parametrize("file", sorted((ROOT / "manifests/samples").glob("*.yaml")), ids=lambda file: file.name)
def test_samples_hold_to_the_schema(file: Path) -> None:
    """Each pool among the samples is read strictly, so that no sample carries a field that does nothing."""
    pools = [each for each in yaml.safe_load_all(file.read_text()) if each and each["kind"] == "InferencePool"]
    assert [InferencePool.parse(each, strict=True).name for each in pools]
