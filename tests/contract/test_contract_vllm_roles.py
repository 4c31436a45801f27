"""What the engine of each role is started with: modes, adapters, host networking, profiles, pinned backends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.engines import vllm
from pdpool_api.engines.vllm.flags import ArgumentError
from pdpool_api.names import MODEL_CACHE_PATH, Role

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec
    from tests.contract.conftest import MakeSpec


def _value(items: list[str], flag: str) -> str:
    assert items.count(flag) == 1
    return items[items.index(flag) + 1]


def _names(spec: InferencePoolSpec, role: Role) -> set[str]:
    return {each["name"] for each in vllm.environment(spec, role)}


@pytest.fixture
def whole(spec: MakeSpec) -> InferencePoolSpec:
    """A pool in mode Aggregated."""
    return spec(decode={"args": ["--seed=1"]}, transfer={"network": {"tls": "tcp"}}).in_mode("Aggregated")


def test_an_aggregated_engine_hands_nothing_over(whole: InferencePoolSpec) -> None:
    """No transfer configuration, side channel or UCX setting; events and token details as on every engine (Q110)."""
    items = vllm.arguments(whole, Role.AGGREGATED)
    assert "--kv-transfer-config" not in items
    assert json.loads(_value(items, "--kv-events-config"))["enable_kv_cache_events"] is True
    assert "--enable-prompt-tokens-details" in items
    assert items[-1] == "--seed=1"
    assert not {name for name in _names(whole, Role.AGGREGATED) if "NIXL" in name or "UCX" in name}
    assert {port["name"] for port in vllm.ports(whole, Role.AGGREGATED)} == {"http", "kv-events", "kv-replay"}
    assert vllm.disagreements(whole) == ()


def test_an_aggregated_engine_keeps_the_authors_connector(spec: MakeSpec) -> None:
    """A connector for offloading is none of ours: its flag stays as it was written."""
    written = ["--kv-transfer-config", '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}']
    items = vllm.arguments(spec(decode={"args": written}).in_mode("Aggregated"), Role.AGGREGATED)
    assert items[-2:] == written


def test_an_aggregated_engine_waits_only_for_its_requests(whole: InferencePoolSpec) -> None:
    """Nobody pulls KV from it, so preStop does not look at the cache and the shutdown is short."""
    command = vllm.pre_stop(whole, Role.AGGREGATED)["exec"]["command"]
    assert not [word for word in command if "cache_usage" in word]
    assert vllm.shutdown_timeout_s(whole, Role.AGGREGATED) == 10


def test_the_modes_are_two_revisions(spec: MakeSpec) -> None:
    """A change of the mode is a rollout."""
    assert vllm.revision(spec()) != vllm.revision(spec().in_mode("Aggregated"))


def test_faults_of_an_aggregated_engine_name_the_field_of_its_author(spec: MakeSpec) -> None:
    """Its settings stand under spec.decode, and messages say so."""
    (said,) = vllm.reserved_arguments(spec(decode={"args": ["--port=1"]}).in_mode("Aggregated"))
    assert said.startswith("spec.decode.args[0]: --port")


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_adapters_are_loaded_by_both_roles(spec: MakeSpec, role: Role) -> None:
    """Every adapter by name and source, and room for several in one batch."""
    adapters = [{"name": "sql", "source": "org/sql"}, {"name": "law", "source": "/models/law"}]
    items = vllm.arguments(spec(model={"adapters": adapters}), role)
    place = items.index("--lora-modules")
    assert items[place + 1 : place + 3] == ["sql=org/sql", "law=/models/law"]
    assert "--enable-lora" in items
    assert _value(items, "--max-loras") == "2"


def test_adapters_are_part_of_the_revision(spec: MakeSpec) -> None:
    """Both roles must have loaded the same ones; another source under a name is another adapter."""
    one = spec(model={"adapters": [{"name": "a", "source": "x"}]})
    other = spec(model={"adapters": [{"name": "a", "source": "y"}]})
    assert len({vllm.revision(spec()), vllm.revision(one), vllm.revision(other)}) == 3


def test_ports_of_decode_move_on_the_nodes_network(spec: MakeSpec) -> None:
    """Prefill's ports + 1000, every one declared on the host, so that no two pods of a role share a node (Q89)."""
    template = {"template": {"hostNetwork": True}, "parallelism": {"data": 2}}
    pool = spec(prefill=template, decode=template)
    ports = {role: vllm.ports(pool, role) for role in (Role.PREFILL, Role.DECODE)}
    numbers = {role: {each["containerPort"] for each in found} for role, found in ports.items()}
    assert {number + 1000 for number in numbers[Role.PREFILL]} == numbers[Role.DECODE]
    assert all(each["hostPort"] == each["containerPort"] for found in ports.values() for each in found)
    items = vllm.arguments(pool, Role.DECODE)
    assert _value(items, "--port") == "9000"
    assert _value(items, "--data-parallel-rpc-port") == "30550"
    assert json.loads(_value(items, "--kv-events-config"))["endpoint"] == "tcp://*:6557"
    values = {each["name"]: each.get("value") for each in vllm.environment(pool, Role.DECODE)}
    assert values["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "6600"
    assert vllm.probes(pool, Role.DECODE)["livenessProbe"]["httpGet"]["port"] == 9000
    assert "9000" in vllm.probes(pool, Role.DECODE)["startupProbe"]["exec"]["command"]
    assert "9000" in vllm.pre_stop(pool, Role.DECODE)["exec"]["command"]


@pytest.mark.parametrize("host_network", [False, True])
def test_the_side_channel_is_announced_by_the_pods_address(spec: MakeSpec, *, host_network: bool) -> None:
    """The host comes from the pod's own IP, whatever its family (Q89, Q67); UCX is left alone unless asked."""
    template = {"template": {"hostNetwork": host_network}}
    pool = spec(prefill=template, decode=template)
    for role in (Role.PREFILL, Role.DECODE):
        (host,) = [each for each in vllm.environment(pool, role) if each["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"]
        assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        assert not _names(pool, role) & {"UCX_TLS", "UCX_NET_DEVICES"}


def test_the_token_is_a_reference(spec: MakeSpec) -> None:
    """The hub's token reaches the engine by secretKeyRef only (Q105)."""
    pool = spec(model={"tokenSecretRef": {"name": "hf", "key": "TOKEN"}})
    (token,) = [each for each in vllm.environment(pool, Role.PREFILL) if each["name"] == "HF_TOKEN"]
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "TOKEN"}}}


def test_downloads_go_to_the_cache(spec: MakeSpec) -> None:
    """The hub's library is told where the cache is mounted; a model that lies in the image needs none."""
    values = {each["name"]: each.get("value") for each in vllm.environment(spec(), Role.DECODE)}
    assert values["HF_HOME"] == MODEL_CACHE_PATH
    assert "HF_HOME" not in _names(spec(model={"id": "/models/m"}), Role.DECODE)


def test_a_size_that_an_argument_gives_counts(spec: MakeSpec) -> None:
    """The engine takes the argument, so everything that counts accelerators does (Q96)."""
    sizes = vllm.parallelism(spec(prefill={"args": ["-tp", "4"], "parallelism": {"tensor": 2}}), Role.PREFILL)
    assert (sizes.tensor, sizes.accelerators) == (4, 4)
    with pytest.raises(ArgumentError, match=r"spec\.decode\.args\[0\]: --tensor-parallel-size two: "):
        vllm.parallelism(spec(decode={"args": ["--tensor_parallel_size=two"]}), Role.DECODE)


@pytest.mark.parametrize(
    ("prefill", "decode", "backend"),
    [
        ("h100-sxm", "b200", "FLASH_ATTN"),
        ("b200", "l40s", "FLASHINFER"),
        ("h100-sxm", "h200", None),
        ("h100-sxm", None, None),
    ],
)
def test_a_backend_is_pinned_where_hardware_would_choose_two(
    spec: MakeSpec, prefill: str, decode: str | None, backend: str | None
) -> None:
    """Both roles get one that both support; where both would choose the same, or nothing is known, none is pinned."""
    pool = spec(prefill={"hardware": prefill}, decode={"hardware": decode} if decode else {})
    for role in (Role.PREFILL, Role.DECODE):
        items = vllm.arguments(pool, role)
        assert (_value(items, "--attention-backend") if backend else None) == backend
        assert backend is not None or "--attention-backend" not in items
    assert vllm.disagreements(pool) == ()


def test_a_model_with_latent_attention_gets_its_own_backend(spec: MakeSpec) -> None:
    """Backends of ordinary attention do not run it."""
    pool = spec(model={"id": "deepseek-ai/DeepSeek-V3"}, prefill={"hardware": "h200"}, decode={"hardware": "b200"})
    assert _value(vllm.arguments(pool, Role.DECODE), "--attention-backend") == "FLASHMLA"


def test_the_author_pins_better(spec: MakeSpec) -> None:
    """A backend given for both roles is not generated."""
    pool = spec(
        engine={"args": ["-ac.backend", "TRITON_ATTN"]}, prefill={"hardware": "h200"}, decode={"hardware": "b200"}
    )
    assert "--attention-backend" not in vllm.arguments(pool, Role.PREFILL)
    assert vllm.disagreements(pool) == ()


def test_a_backend_named_for_one_role_is_compared_with_what_the_other_chooses(spec: MakeSpec) -> None:
    """Known hardware chooses in a known order: naming the same for one role is fine, naming another is not."""
    named = {"hardware": "l40s", "args": ["--attention-backend=FLASH_ATTN"]}
    assert vllm.disagreements(spec(prefill={"hardware": "h100-sxm"}, decode=named)) == ()
    (found,) = vllm.disagreements(spec(prefill={"hardware": "b200"}, decode=named))
    values = 'prefill has "FLASHINFER" (of hardware profile b200), decode has "FLASH_ATTN"'
    assert found.message == f"--attention-backend must be equal: {values}"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"prefill": {"hardware": "h100-sxm"}, "decode": {"hardware": "cpu"}}, ['"FLASH_ATTN"', '"CPU_ATTN"']),
        (
            {"prefill": {"args": ["-tp=3"]}, "decode": {"args": ["-tp=2"]}},
            ["--tensor-parallel-size of the roles must divide", "3", "2"],
        ),
        (
            {"decode": {"args": ["--pipeline_parallel_size", "2"]}},
            ["--pipeline-parallel-size of decode must be 1", "2"],
        ),
        (
            {"model": {"shape": {"kvHeads": 4}}, "prefill": {"args": ["-tp=8"]}},
            ["must not exceed the model's KV heads (4)", "prefill has 8", "decode has 1"],
        ),
        (
            {"decode": {"env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]}},
            ["VLLM_ATTENTION_BACKEND", '"FLASHINFER"', "the engine's default"],
        ),
        (
            {"decode": {"args": ["-sc.method=mtp"]}},
            ["--speculative-config", '"mtp"', "the engine's default"],
        ),
        (
            {"prefill": {"args": ["--no-disable-hybrid-kv-cache-manager"]}},
            ["--disable-hybrid-kv-cache-manager", "prefill has false"],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_disagreement_is_found_wherever_it_hides(spec: MakeSpec, over: dict[str, Any], words: list[str]) -> None:
    """In hardware, in sizes that arguments give, in the model's heads, in variables."""
    messages = [each.message for each in vllm.disagreements(spec(**over))]
    assert any(all(word in message for word in words) for message in messages), messages


def test_latent_attention_is_not_divided(spec: MakeSpec) -> None:
    """With MLA each shard holds the whole vector, so the tensor size of prefill has no bound by heads."""
    pool = spec(model={"id": "deepseek-ai/DeepSeek-R1"}, prefill={"parallelism": {"tensor": 16}})
    assert vllm.disagreements(pool) == ()


def test_a_hybrid_switch_of_both_roles_is_kept(spec: MakeSpec) -> None:
    """The author's word stands last, verbatim, and nothing generated contradicts it (Q99)."""
    pool = spec(engine={"args": ["--no-disable-hybrid-kv-cache-manager"]})
    items = vllm.arguments(pool, Role.DECODE)
    assert items[-1] == "--no-disable-hybrid-kv-cache-manager"
    assert not [item for item in items[:-1] if "hybrid" in item]
    assert vllm.disagreements(pool) == ()


def test_knobs_of_the_hardware_differ_by_role(spec: MakeSpec) -> None:
    """Prefill takes many tokens a step; decode a larger batch, with graphs for nothing else."""
    pool = spec(prefill={"hardware": "h100-sxm"}, decode={"hardware": "h100-sxm"})
    prefill, decode = vllm.arguments(pool, Role.PREFILL), vllm.arguments(pool, Role.DECODE)
    assert int(_value(prefill, "--max-num-batched-tokens")) > int(_value(decode, "--max-num-batched-tokens"))
    assert int(_value(prefill, "--max-num-seqs")) < int(_value(decode, "--max-num-seqs"))
    assert json.loads(_value(decode, "--compilation-config")) == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert "--compilation-config" not in prefill
    assert "--compilation-config" not in vllm.arguments(pool.in_mode("Aggregated"), Role.AGGREGATED)


@pytest.mark.parametrize(
    ("over", "flag"),
    [
        ({"transfer": {"onFailure": "Recompute"}}, "--compilation-config"),
        ({"engine": {"args": ["-cc.cudagraph_mode=NONE"]}}, "--compilation-config"),
        ({"engine": {"args": ["--no-enable-chunked-prefill"]}}, "--max-num-batched-tokens"),
        ({"engine": {"args": ["--max_num_seqs", "9"]}}, "--max-num-seqs"),
    ],
    ids=repr,
)
def test_a_knob_gives_way(spec: MakeSpec, over: dict[str, Any], flag: str) -> None:
    """What the author sets is not generated, nor what another setting makes unsuitable."""
    sides = {"prefill": {"hardware": "h200"}, "decode": {"hardware": "h200"}}
    assert flag in vllm.arguments(spec(**sides), Role.DECODE)
    assert flag not in vllm.arguments(spec(**sides, **over), Role.DECODE)
