"""How Argo CD and kstatus read a pool: every combination of conditions, in the Lua that Argo CD runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaError, LuaRuntime

from pdpool_api.conditions import ConditionType, Reason
from pdpool_operator import install
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import Images, Observed, Outcome, PoolRef
from pdpool_operator.status import status

Json = dict[str, Any]
SCRIPT = install._ROOT / install.ARGO_CD / "health.lua"
GENERATION = 3
STATES = {"Healthy", "Progressing", "Degraded", "Suspended"}


def health(pool: Json) -> tuple[str, str]:
    """What the script says of a pool, run as Argo CD runs it: with `obj` set and no library but the basic ones."""
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for library in ("os", "io", "package", "require", "dofile", "loadfile"):
        lua.globals()[library] = None
    lua.globals()["obj"] = lua.table_from(pool, recursive=True)
    found = dict(lua.execute(SCRIPT.read_text()).items())
    return found["status"], found["message"]


def pool(
    *conditions: tuple[str, str, str], observed: int | None = GENERATION, spec: Json | None = None, **metadata: Any
) -> Json:
    said = [{"type": kind, "status": value, "reason": reason, "message": "m"} for kind, value, reason in conditions]
    state = {} if observed is None else {"observedGeneration": observed, "conditions": said}
    return {"metadata": {"name": "p", "generation": GENERATION, **metadata}, "spec": spec or {}, "status": state}


READY = ("Ready", "True", "Available")
AUTOSCALED = {"decode": {"autoscaling": {"minReplicas": 0}}}
TABLE: dict[str, tuple[Json, str]] = {
    "new": ({"metadata": {"name": "p", "generation": 1}, "spec": {}}, "Progressing"),
    "empty-status": (pool(observed=None), "Progressing"),
    "stale": (pool(READY, observed=GENERATION - 1), "Progressing"),
    "deleting": (pool(READY, deletionTimestamp="2026-01-01T00:00:00Z"), "Progressing"),
    "deleting-stalled": (pool(("Stalled", "True", "NameConflict"), deletionTimestamp="x"), "Progressing"),
    "healthy": (pool(READY, ("Progressing", "False", "Complete")), "Healthy"),
    "healthy-while-a-rollout-is-stuck-behind-it": (pool(READY, ("Stalled", "True", "RolloutStalled")), "Degraded"),
    "rolling": (pool(("Ready", "False", "RollingOut"), ("Progressing", "True", "RollingOut")), "Progressing"),
    "no-node": (pool(("Ready", "False", "Unschedulable"), ("Progressing", "True", "RollingOut")), "Progressing"),
    "no-secret": (pool(("Ready", "False", "MissingReference"), ("Progressing", "True", "RollingOut")), "Progressing"),
    "fallen": (pool(("Ready", "False", "ReplicasNotReady"), ("Progressing", "False", "Complete")), "Degraded"),
    "no-router": (pool(("Ready", "False", "RouterNotReady"), ("Progressing", "False", "Complete")), "Degraded"),
    "refused": (pool(("Ready", "False", "InvalidSpec"), ("SpecValid", "False", "InvalidSpec")), "Degraded"),
    "refused-while-serving": (pool(READY, ("SpecValid", "False", "ReservedArgument")), "Degraded"),
    "conflict": (pool(("Ready", "False", "NameConflict"), ("Stalled", "True", "NameConflict")), "Degraded"),
    "transfer": (pool(READY, ("TransferHealthy", "False", "X")), "Degraded"),
    "transfer-unknown": (pool(READY, ("TransferHealthy", "Unknown", "NoTraffic")), "Healthy"),
    "scaling-blind": (pool(READY, ("ScalingActive", "False", "X")), "Degraded"),
    "routing": (pool(READY, ("RoutingHealthy", "False", "EventsMissing")), "Healthy"),
    "advised": (pool(READY, ("Advisory", "True", "EngineSetting")), "Healthy"),
    "switched-off": (pool(("Ready", "True", "ScaledToZero")), "Suspended"),
    "asleep": (pool(("Ready", "True", "ScaledToZero"), spec=AUTOSCALED), "Healthy"),
    "ready-unknown": (pool(("Ready", "Unknown", "X")), "Progressing"),
    "without-ready": (pool(("SpecValid", "True", "Valid")), "Progressing"),
}


@pytest.mark.parametrize("case", TABLE)
def test_health_is_as_the_table_says(case: str) -> None:
    """Each state of a pool that a person would tell apart."""
    of, expected = TABLE[case]
    found, message = health(of)
    assert found == expected
    assert message


def test_every_combination_has_one_of_the_states_and_a_message() -> None:
    """Whatever the conditions say together, the script ends with a state, and nothing refused or stuck is healthy."""
    kinds = [kind.value for kind in ConditionType]
    lua = LuaRuntime(unpack_returned_tuples=True)
    check = lua.eval(f"function(given) obj = given; {SCRIPT.read_text()} end")
    words = (None, "True", "False")
    for values in itertools.product((*words, "Unknown"), *([words] * (len(kinds) - 1))):
        given = [(kind, value, Reason.AVAILABLE.value) for kind, value in zip(kinds, values, strict=True) if value]
        found = check(lua.table_from(pool(*given), recursive=True))
        by_type = {kind: value for kind, value, _ in given}
        assert found["status"] in STATES
        assert found["message"]
        healthy = found["status"] in ("Healthy", "Suspended")
        assert not healthy or by_type.get("Ready") == "True"
        assert not healthy or (by_type.get("Stalled") != "True" and by_type.get("SpecValid") != "False")


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({"prefill": {"hardware": "cpu"}, "decode": {"hardware": "cpu"}}, "Progressing"),
        ({"prefill": {}, "decode": {}, "engine": {"args": ["--port=1"]}}, "Degraded"),
        ({"prefill": {}, "decode": {}, "maxGpus": 1}, "Degraded"),
        ({"prefill": {"args": ["--block-size=16"]}, "decode": {"args": ["--block-size=24"]}}, "Degraded"),
    ],
    ids=["new", "reserved", "too-many", "incompatible"],
)
def test_what_the_operator_writes_is_read_as_it_is_meant(spec: Json, state: str) -> None:
    """Statuses as the operator itself makes them; a refused pool carries Stalled, which kstatus reads as failed."""
    raw = {
        "apiVersion": "pdpool.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": GENERATION},
        "spec": {"model": {"id": "org/model"}, **spec},
    }
    observed = Observed(PoolRef("n", "p"), raw, {})
    step = next_plan(observed, Images(engine="vllm/vllm-openai:v0.33.0", router="router:1"))
    said = status(observed, step, Outcome(live={}), now="2026-01-01T00:00:00Z")
    found, _ = health({**raw, "status": said})
    assert found == state
    by_type = {each["type"]: each["status"] for each in said["conditions"]}
    assert by_type.get("Stalled") == ("True" if state == "Degraded" else None)
    assert said["observedGeneration"] == GENERATION


def test_the_settings_hold_the_script() -> None:
    """The ConfigMap to apply is the script under the key that Argo CD reads."""
    settings = yaml.safe_load((SCRIPT.parent / "argocd-cm.yaml").read_text())
    assert settings["metadata"] == {"name": "argocd-cm", "namespace": "argocd"}
    assert settings["data"] == {"resource.customizations.health.pdpool.io_InferencePool": SCRIPT.read_text()}


def test_the_script_needs_no_library() -> None:
    """Argo CD opens no library by default, so the script may call none."""
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    for name in ("string", "table", "math", "os", "io", "package"):
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(TABLE["healthy"][0], recursive=True)
    lua.execute(SCRIPT.read_text())
    with pytest.raises(LuaError):
        lua.execute("return string.len('x')")
