"""The arithmetic before anything is built: does it fit, and what does mode Auto decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.pool import InferencePool
from pdpool_operator import plan
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import Images, Observed, PoolRef

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
NVLINK = {"hardware": "h100-sxm", "parallelism": {"tensor": 2}}
CARD = {"hardware": "l40s"}
IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="r:1")


def pool(
    model: dict[str, Any] | str = LLAMA_70B, *, status: dict[str, Any] | None = None, **spec: Any
) -> InferencePool:
    of_model = {"id": model} if isinstance(model, str) else model
    raw = {"metadata": {"name": "p", "uid": "u"}, "spec": {"model": of_model, "prefill": {}, "decode": {}, **spec}}
    return InferencePool.parse({**raw, "status": status or {}}, strict=True)


def refused(*arguments: Any, **spec: Any) -> tuple[str, str]:
    (found,) = plan.refusals(pool(*arguments, **spec).spec)
    return found.reason, found.message


def test_a_model_that_cannot_fit_is_refused_with_the_arithmetic() -> None:
    """Weights by shards against the memory that the engine may take, each number shown."""
    reason, message = refused(prefill={"hardware": "h100-sxm"}, decode=NVLINK)
    assert reason == "ModelDoesNotFit"
    assert message == (
        "spec.prefill: weights of 141.1 GB / (tensor 1 x pipeline 1) = 141.1 GB do not fit into the 79.0 GB of one"
        " accelerator (h100-sxm: 80 GiB x 0.92)"
    )


def test_kv_of_the_longest_sequence_counts() -> None:
    """An engine that cannot hold one sequence does not start, so the length that the author asks for is part of it."""
    model = {"id": LLAMA_70B, "maxModelLen": 131_072}
    assert plan.refusals(pool(model, prefill=NVLINK, decode={**NVLINK, "parallelism": {"tensor": 4}}).spec)
    _, message = refused(model, prefill=NVLINK, decode=NVLINK)
    assert "70.5 GB and KV of 131072 tokens = 21.5 GB" in message
    halved = {**NVLINK, "args": ["--kv-cache-dtype=fp8", "--max-model-len", "8192"]}
    assert plan.refusals(pool(model, prefill=halved, decode=halved).spec) == ()


@pytest.mark.parametrize(
    "spec",
    [
        {"prefill": NVLINK, "decode": NVLINK},
        {"prefill": {}, "decode": {}},
        {"prefill": {"hardware": "cpu"}, "decode": {"hardware": "cpu"}},
        {"prefill": {**CARD, "args": ["--quantization=awq"]}, "decode": {**CARD, "args": ["-q", "awq"]}},
        {"prefill": {**CARD, "args": ["--cpu-offload-gb=200"]}, "decode": NVLINK},
        {"model": "org/unknown", "prefill": CARD, "decode": CARD},
    ],
    ids=repr,
)
def test_without_certainty_there_is_no_refusal(spec: dict[str, Any]) -> None:
    """What fits, what no profile knows, and weights that an argument changes are let through."""
    assert plan.refusals(pool(spec.pop("model", LLAMA_70B), **spec).spec) == ()


def test_weights_that_the_spec_names_count_whatever_their_form() -> None:
    """An author who says how many bytes there are has said it for the quantised form too."""
    shape = {"weightBytes": 100e9}
    quantized = {**CARD, "args": ["--quantization=awq"]}
    reason, _ = refused({"id": "org/x", "shape": shape}, prefill=quantized, decode=quantized)
    assert reason == "ModelDoesNotFit"


def test_experts_are_spread_over_ranks_too() -> None:
    """With expert parallelism the ranks share the weights, so eight cards hold what one could not."""
    node = {"hardware": "h200", "parallelism": {"data": 8}}
    spread = {**node, "args": ["--enable-expert-parallel"]}
    assert refused("deepseek-ai/DeepSeek-V3", prefill=node, decode=node)[0] == "ModelDoesNotFit"
    assert plan.refusals(pool("deepseek-ai/DeepSeek-V3", prefill=spread, decode=spread).spec) == ()


def test_an_unknown_size_is_said() -> None:
    """Where a profile could have been checked against, the pool says that it was not, and what would help."""
    unknown = pool("org/unknown", prefill=CARD, decode=CARD)
    assert "spec.model.shape can tell it" in plan.unchecked(unknown.spec)
    assert plan.unchecked(pool(prefill=NVLINK, decode=NVLINK).spec) == ""
    assert plan.unchecked(pool("org/unknown").spec) == ""


def test_a_replica_larger_than_its_node_is_refused() -> None:
    """One replica is one pod on one node; sizes that arguments give count."""
    big = {"hardware": "h100-sxm", "parallelism": {"tensor": 8}, "args": ["--data-parallel-size=2"]}
    reason, message = refused(prefill=big, decode={"hardware": "h100-sxm", "parallelism": {"tensor": 8}})
    assert reason == "ReplicaExceedsNode"
    assert "tensor 8 x pipeline 1 x data 2) needs 16 accelerators, a node of h100-sxm has 8" in message


def test_fixed_replicas_above_the_cap_are_refused() -> None:
    """The sum over both roles is shown; at the cap it is fine."""
    roles = {"prefill": {**NVLINK, "replicas": 2}, "decode": {**NVLINK, "replicas": 3}}
    reason, message = refused(maxGpus=9, **roles)
    assert reason == "MaxGpusExceeded"
    assert "prefill 2 x 2 + decode 3 x 2 = 10 accelerators, more than 9" in message
    assert plan.refusals(pool(maxGpus=10, **roles).spec) == ()


def test_a_rollout_that_could_never_move_is_refused() -> None:
    """No replica may be missing, and the cap leaves none to add."""
    stuck = {**NVLINK, "rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    reason, message = refused(maxGpus=4, prefill=NVLINK, decode=stuck)
    assert reason == "MaxGpusExceeded"
    assert "a surge of decode, whose rollout.maxUnavailable is 0" in message
    assert plan.refusals(pool(maxGpus=6, prefill=NVLINK, decode=stuck).spec) == ()


@given(
    weights=st.floats(min_value=1e9, max_value=2e12),
    tensor=st.sampled_from([1, 2, 4, 8]),
    profile=st.sampled_from(["h100-sxm", "h200", "b200", "l4"]),
    tokens=st.integers(min_value=1, max_value=200_000),
)
def test_more_shards_never_make_a_model_too_large(weights: float, tensor: int, profile: str, tokens: int) -> None:
    """Whatever fits on some accelerators fits on twice as many."""
    shape = {"weightBytes": weights, "layers": 80, "kvHeads": 8, "headSize": 128}
    model = {"id": "m", "shape": shape, "maxModelLen": tokens}

    def fits(size: int) -> bool:
        role = {"hardware": profile, "parallelism": {"tensor": size}}
        return plan.refusals(pool(model, prefill=role, decode=role).spec) == ()

    assert tensor == 8 or not fits(tensor) or fits(2 * tensor)


# --- mode Auto -----------------------------------------------------------------------------------------------------


def auto(*arguments: Any, **spec: Any) -> plan.Decision:
    return plan.decided(pool(*arguments, mode="Auto", **spec))


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        ({"prefill": NVLINK, "decode": NVLINK}, "Disaggregated"),
        ({"prefill": NVLINK, "decode": NVLINK, "maxGpus": 3}, "Aggregated"),
        ({"prefill": {"hardware": "h100-sxm"}, "decode": {"hardware": "h100-sxm"}}, "Aggregated"),
        ({"prefill": {**CARD, "replicas": 8}, "decode": {**CARD, "replicas": 16}}, "Aggregated"),
        (
            {
                "prefill": {**CARD, "replicas": 8},
                "decode": {**CARD, "replicas": 8},
                "transfer": {"rdma": {"resource": "rdma/ib"}},
            },
            "Disaggregated",
        ),
        ({"prefill": CARD, "decode": CARD, "transfer": {"rdma": {"resource": "rdma/ib"}}}, "Aggregated"),
        ({"prefill": {"hardware": "cpu"}, "decode": {"hardware": "cpu"}}, "Aggregated"),
    ],
    ids=repr,
)
def test_the_first_rule_of_auto(spec: dict[str, Any], mode: str) -> None:
    """Enough accelerators and a fast way for KV make two roles; else one."""
    assert auto(**spec).mode == mode


WORK = {
    "promptTokens": {"p50": 3000, "p99": 12_000},
    "outputTokens": {"p50": 300, "p99": 1000},
    "requestsPerSecond": 6,
    "prefixHitRatio": 0.3,
}
AGAINST = [
    ({"promptTokens": {"p50": 300}, "outputTokens": {"p50": 50}}, {}, "served faster whole"),
    ({"prefixHitRatio": 0.9}, {}, "prefix hit ratio of 0.9"),
    ({"promptTokens": {"p50": 8000}}, {"transfer": {"bandwidthGbps": 25}}, "over 25 Gb/s (below 100)"),
    (
        {"promptTokens": {"p50": 1000, "p99": 100_000}},
        {"transfer": {"bandwidthGbps": 400}, "slo": {"ttftMilliseconds": 500}},
        "more than half of the 500 ms",
    ),
    ({"promptTokens": {"p50": 60_000}, "outputTokens": {"p50": 20}}, {}, "of a median request (below 70%)"),
    ({"promptTokens": {"p50": 1000}, "requestsPerSecond": 0.01}, {}, "busy 0% of the time"),
]


@pytest.mark.parametrize(("work", "spec", "why"), AGAINST, ids=[row[2] for row in AGAINST])
def test_the_expected_requests_can_speak_against_two_roles(work: Any, spec: Any, why: str) -> None:
    """Auto then runs one role; a spec that asks for two gets them, and a remark that says what speaks against them."""
    roles = {"prefill": NVLINK, "decode": NVLINK}
    workload = {**WORK, **work}
    assert auto(workload=WORK, **roles).mode == "Disaggregated"
    assert auto(workload=workload, **roles, **spec).mode == "Aggregated"
    named = plan.decided(pool(mode="Disaggregated", workload=workload, **roles, **spec))
    assert named.mode == "Disaggregated"
    assert named.remark is not None
    assert named.remark.reason == "ModeContradicted"
    assert why in named.remark.message


@pytest.mark.parametrize("work", [{}, {"promptTokens": {"p50": 100}}, {"outputTokens": {"p50": 10}}, WORK], ids=repr)
def test_what_is_not_told_speaks_neither_way(work: Any) -> None:
    """A workload of which half is known, or one that suits two roles, contradicts nothing."""
    assert plan.decided(pool(mode="Disaggregated", workload=work, prefill=NVLINK, decode=NVLINK)).remark is None


def test_an_unknown_model_is_aggregated_and_says_why() -> None:
    """Nothing is guessed about a model without sizes, whether or not two roles are described."""
    for prefill in (NVLINK, None):
        found = auto("org/unknown", prefill=prefill, decode=NVLINK)
        assert found.mode == "Aggregated"
        assert found.remark is not None
        assert found.remark.reason == "ModelUnknown"
        assert "org/unknown" in found.remark.message
        assert ("spec.prefill" in found.remark.message) is (prefill is None)


@given(
    prefill=st.integers(min_value=0, max_value=40),
    decode=st.integers(min_value=0, max_value=40),
    mode=st.sampled_from(["Disaggregated", "Aggregated"]),
)
def test_scaling_never_changes_a_mode_that_was_decided(prefill: int, decode: int, mode: str) -> None:
    """The decision stays until something that it rests on changes; sizes of the roles are none of that."""
    first = auto(prefill=NVLINK, decode=NVLINK)
    status = {"mode": mode, "modeInputs": first.inputs}
    later = auto(status=status, prefill={**NVLINK, "replicas": prefill}, decode={**NVLINK, "replicas": decode})
    assert (later.mode, later.inputs) == (mode, first.inputs)


@pytest.mark.parametrize(
    "change",
    [
        {"maxGpus": 64},
        {"transfer": {"leaseSeconds": 60}},
        {"workload": {"requestsPerSecond": 6}},
        {"decode": {"hardware": "h200", "parallelism": {"tensor": 2}}},
        {"decode": {"hardware": "h100-sxm", "parallelism": {"tensor": 4}}},
    ],
    ids=repr,
)
def test_a_change_of_what_it_rests_on_decides_anew(change: dict[str, Any]) -> None:
    """Model, hardware, parallelism, transfer and cap make a new decision."""
    roles = {"prefill": NVLINK, "decode": NVLINK}
    status = {"mode": "Aggregated", "modeInputs": auto(**roles).inputs}
    assert auto(status=status, **{**roles, **change}).mode == "Disaggregated"


def test_a_named_mode_rests_on_nothing() -> None:
    """What the spec says is done, and no decision is kept."""
    assert plan.decided(pool(mode="Disaggregated")) == plan.Decision("Disaggregated")


def test_auto_builds_the_roles_of_its_decision() -> None:
    """One role of the name aggregated, described by spec.decode, and none of prefill."""
    raw = {
        "metadata": {"name": "p", "uid": "u", "namespace": "n"},
        "spec": {"model": {"id": "m"}, "mode": "Auto", "prefill": {}, "decode": {"replicas": 3}},
    }
    found = next_plan(Observed(PoolRef("n", "p"), raw, {}), IMAGES)
    assert found.desired is not None
    assert found.desired.mode == "Aggregated"
    assert found.desired.mode_inputs
    names = {child.name for child in found.desired.children}
    assert "p-aggregated" in names
    assert not {name for name in names if "prefill" in name or "decode" in name}
