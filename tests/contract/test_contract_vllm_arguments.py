"""What a pod's engine is started with: arguments, environment, ports, version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdpool_api.engines import engine, vllm
from pdpool_api.engines.vllm import flags
from pdpool_api.engines.vllm.version import has_flag
from pdpool_api.names import Role
from pdpool_api.pool import MAX_DATA_PARALLEL, RESERVED_FLAGS

if TYPE_CHECKING:
    from tests.contract.conftest import MakeSpec

BOTH = pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])


def _value(items: list[str], flag: str) -> str:
    return items[items.index(flag) + 1]


def _transfer(items: list[str]) -> Any:
    assert items.count(flags.KV_TRANSFER) == 1
    return json.loads(_value(items, flags.KV_TRANSFER))


@BOTH
def test_arguments_of_a_small_pool(spec: MakeSpec, role: Role) -> None:
    """The model first, then everything that a pool rests on, each once (Q90)."""
    kv_role, shutdown_s = {Role.PREFILL: ("kv_producer", "35"), Role.DECODE: ("kv_consumer", "10")}[role]
    assert vllm.arguments(spec(), role) == [
        "org/model",
        *("--served-model-name", "org/model"),
        *("--host", "0.0.0.0"),
        *("--port", "8000"),
        "--kv-transfer-config",
        (
            f'{{"kv_connector":"NixlConnector","kv_role":"{kv_role}","kv_load_failure_policy":"fail",'
            '"kv_connector_extra_config":{"kv_lease_duration":30}}'
        ),
        "--kv-events-config",
        '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}',
        "--enable-prompt-tokens-details",
        *("--shutdown-timeout", shutdown_s),
    ]


def test_every_field_of_the_model_reaches_the_engine(spec: MakeSpec) -> None:
    """Revision, all served names in order, and the longest sequence."""
    pool = spec(model={"revision": "v1", "servedNames": ["b", "a"], "maxModelLen": 2048})
    items = vllm.arguments(pool, Role.DECODE)
    assert items[1:4] == ["--served-model-name", "b", "a"]
    assert (_value(items, "--revision"), _value(items, "--max-model-len")) == ("v1", "2048")


def test_parallelism_is_given_where_it_is_more_than_one(spec: MakeSpec) -> None:
    """One replica's sizes, data-parallel ranks included."""
    pool = spec(prefill={"parallelism": {"tensor": 4, "pipeline": 2, "data": 3}})
    items = vllm.arguments(pool, Role.PREFILL)
    sizes = [_value(items, f"--{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")]
    assert sizes == ["4", "2", "3"]
    assert not [item for item in vllm.arguments(pool, Role.DECODE) if "parallel" in item]


def test_transfer_settings_are_written_out(spec: MakeSpec) -> None:
    """Policy and lease never rest on the engine's own defaults (Q90, Q92)."""
    pool = spec(transfer={"onFailure": "Recompute", "leaseSeconds": 12})
    config = _transfer(vllm.arguments(pool, Role.DECODE))
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 12}
    assert _value(vllm.arguments(pool, Role.PREFILL), "--shutdown-timeout") == "17"


def test_the_authors_arguments_come_last_and_verbatim(spec: MakeSpec) -> None:
    """Engine's before the role's, nothing reordered, nothing rewritten."""
    pool = spec(
        engine={"args": ["--max_num_seqs=8", "--trust-remote-code"]}, decode={"args": ["--seed", "-1", "--seed=2"]}
    )
    assert vllm.arguments(pool, Role.DECODE)[-5:] == [
        "--max_num_seqs=8",
        "--trust-remote-code",
        "--seed",
        "-1",
        "--seed=2",
    ]
    assert vllm.arguments(pool, Role.PREFILL)[-2:] == ["--max_num_seqs=8", "--trust-remote-code"]


@pytest.mark.parametrize(
    ("written", "flag"),
    [
        (["--max-model-len=4096"], "--max-model-len"),
        (["--max_model_len", "4096"], "--max-model-len"),
        (["--max-model", "4096"], "--max-model-len"),
        (["-tp", "4"], "--tensor-parallel-size"),
        (["-tp=4"], "--tensor-parallel-size"),
        (["--no-enable-prompt-tokens-details"], "--enable-prompt-tokens-details"),
        (["--shutdown_timeout=3"], "--shutdown-timeout"),
        (["--revision", "v2"], "--revision"),
        (["--block-size=64"], "--block-size"),
    ],
)
def test_a_flag_that_is_given_is_not_generated(spec: MakeSpec, written: list[str], flag: str) -> None:
    """Whatever its spelling, the author's flag stands alone."""
    pool = spec(
        model={"maxModelLen": 2048, "revision": "v1"},
        decode={"parallelism": {"tensor": 2}, "hardware": "cpu"},
        prefill={"parallelism": {"tensor": 2}, "args": written, "hardware": "cpu"},
    )
    items = vllm.arguments(pool, Role.PREFILL)
    assert items[-len(written) :] == written
    assert flag not in items[: -len(written)]
    assert flag in vllm.arguments(pool, Role.DECODE)


def test_a_transfer_config_is_merged_and_stands_once(spec: MakeSpec) -> None:
    """The author's fields win one by one, in every spelling, the role's over the engine's; the rest of ours stays."""
    pool = spec(
        engine={
            "args": [
                "--kv-transfer-config",
                '{"kv_connector_extra_config":{"backends":["UCX"],"kv_lease_duration":9}}',
                "--seed=1",
            ]
        },
        decode={"args": ["--kv_transfer_config.kv_role=kv_both", "--kv-transfer", '{"kv_buffer_device":"cpu"}']},
    )
    items = vllm.arguments(pool, Role.DECODE)
    assert _transfer(items) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": 9, "backends": ["UCX"]},
        "kv_buffer_device": "cpu",
    }
    assert items[-1] == "--seed=1"
    assert _transfer(vllm.arguments(pool, Role.PREFILL))["kv_role"] == "kv_producer"


def test_an_engine_id_is_made_unique(spec: MakeSpec) -> None:
    """Pods of a role come from one template: a constant id would make them one engine to their peers (Q90)."""
    pool = spec(decode={"replicas": 2, "args": ["--kv-transfer-config.engine_id=mine"]})
    assert _transfer(vllm.arguments(pool, Role.DECODE))["engine_id"] == "mine-$(PDPOOL_POD_NAME)"
    by_name = {each["name"]: each for each in vllm.environment(pool, Role.DECODE)}
    assert by_name["PDPOOL_POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_arguments_are_not_contradicted(spec: MakeSpec) -> None:
    """A choice about the hybrid cache stays the author's, and nothing generated speaks against it (Q99)."""
    items = vllm.arguments(spec(engine={"args": ["--no-disable-hybrid-kv-cache-manager"]}), Role.PREFILL)
    assert [item for item in items if "hybrid" in item] == ["--no-disable-hybrid-kv-cache-manager"]


def test_a_broken_transfer_config_is_named(spec: MakeSpec) -> None:
    """The error says which argument it is about."""
    pool = spec(decode={"args": ["--seed=1", "--kv-transfer-config", "{"]})
    with pytest.raises(
        vllm.ArgumentError, match=r"spec\.decode\.args\[1\]: --kv-transfer-config must be a JSON object"
    ):
        vllm.arguments(pool, Role.DECODE)


@pytest.mark.parametrize("flag", RESERVED_FLAGS)
@pytest.mark.parametrize("form", ["{}=x", "{}", "{}.y=x", "under_scored", "abbreviated"])
def test_reserved_arguments_are_found_in_every_spelling(spec: MakeSpec, flag: str, form: str) -> None:
    """What the operator must set itself is named with its place, wherever it stands."""
    written = {"under_scored": f"--{flag[2:].replace('-', '_')}", "abbreviated": flag[: max(5, len(flag) - 2)]}.get(
        form, form.format(flag)
    )
    for section in ("engine", "prefill", "decode"):
        pool = spec(**{section: {"args": ["--seed=1", written]}})
        assert vllm.reserved_arguments(pool) == (
            f"spec.{section}.args[1]: {flag} is set by the operator and cannot be given in args",
        )


@pytest.mark.parametrize(
    "written", ["--model-impl=auto", "--hostname", "--served-model-names", "--port-range=1", "value", "--ports"]
)
def test_similar_flags_are_not_reserved(spec: MakeSpec, written: str) -> None:
    """A longer name is another flag."""
    assert vllm.reserved_arguments(spec(engine={"args": [written]})) == ()


@given(
    items=st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "--kv-transfer-config",
                    "-tp",
                    "--port",
                    "--kv_transfer_config={}",
                    "{}",
                    '{"kv_role":"x"}',
                    "--seed",
                    "1",
                ]
            ),
            st.text(max_size=6),
        ),
        max_size=8,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arguments_hold_for_any_text(spec: MakeSpec, items: list[str]) -> None:
    """Arguments are refused by name, or the transfer config is once valid JSON and the rest stays in order."""
    pool = spec(decode={"args": items})
    try:
        result = vllm.arguments(pool, Role.DECODE)
    except vllm.ArgumentError as fault:
        assert "spec.decode.args[" in str(fault)  # noqa: PT017 - either outcome is right
        return
    assert _transfer(result)["kv_connector"] == "NixlConnector" or "kv_connector" in "".join(items)
    kept = [item for item in items if item in result]
    assert kept == [item for item in items if item in kept]


@BOTH
def test_environment_of_a_small_pool(spec: MakeSpec, role: Role) -> None:
    """Peers pull from the pod's own address; nothing of UCX is set unless asked (Q89)."""
    by_name = {each["name"]: each for each in vllm.environment(spec(), role)}
    assert by_name["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert by_name["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"
    assert not [name for name in by_name if name.startswith("UCX_")]


def test_network_settings_reach_ucx(spec: MakeSpec) -> None:
    """Transports and devices as given."""
    pool = spec(transfer={"network": {"tls": "rc,cuda_copy", "devices": ["mlx5_0:1", "mlx5_1:1"]}})
    by_name = {each["name"]: each.get("value") for each in vllm.environment(pool, Role.PREFILL)}
    assert (by_name["UCX_TLS"], by_name["UCX_NET_DEVICES"]) == ("rc,cuda_copy", "mlx5_0:1,mlx5_1:1")


def test_the_authors_variables_win_by_name_and_stand_once(spec: MakeSpec) -> None:
    """Role over engine over generated; the order lets a later one refer to an earlier one."""
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    pool = spec(
        transfer={"network": {"tls": "tcp"}},
        engine={"env": [{"name": "UCX_TLS", "value": "rc"}, {"name": "A", "value": "1"}, secret]},
        decode={"env": [{"name": "A", "value": "2"}]},
    )
    variables = vllm.environment(pool, Role.DECODE)
    names = [each["name"] for each in variables]
    assert len(names) == len(set(names))
    assert variables[-3:] == [{"name": "UCX_TLS", "value": "rc"}, secret, {"name": "A", "value": "2"}]
    assert {"name": "A", "value": "1"} in vllm.environment(pool, Role.PREFILL)


def test_the_cpu_profile_sets_what_suits_it_unless_the_author_does(spec: MakeSpec) -> None:
    """A profile is a default."""
    pool = spec(prefill={"hardware": "cpu"}, decode={"hardware": "cpu", "args": ["--block-size", "64"]})
    assert _value(vllm.arguments(pool, Role.PREFILL), "--block-size") == "32"
    assert vllm.arguments(pool, Role.DECODE).count("--block-size") == 1
    assert {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"} in vllm.environment(pool, Role.PREFILL)


def test_ports_of_every_rank_are_declared_and_distinct(spec: MakeSpec) -> None:
    """HTTP once; side channel, events and replay for each data-parallel rank; names as Kubernetes takes them."""
    pool = spec(decode={"parallelism": {"data": MAX_DATA_PARALLEL}})
    assert [(each["name"], each["containerPort"]) for each in vllm.ports(pool, Role.PREFILL)] == [
        ("http", 8000),
        ("nixl", 5600),
        ("kv-events", 5557),
        ("kv-replay", 5657),
    ]
    declared = vllm.ports(pool, Role.DECODE)
    assert len({each["containerPort"] for each in declared}) == len(declared) == 1 + 3 * MAX_DATA_PARALLEL
    assert all(len(each["name"]) <= 15 for each in declared)
    by_argument = spec(decode={"args": ["-dp", str(MAX_DATA_PARALLEL)]})
    assert vllm.ports(by_argument, Role.DECODE) == declared


@pytest.mark.parametrize("value", ["0", str(MAX_DATA_PARALLEL + 1), "many"])
def test_a_size_that_its_field_would_not_take_is_refused_as_an_argument(spec: MakeSpec, value: str) -> None:
    """The limits of parallelism hold for arguments too: ports of ranks would meet, or there would be none."""
    pool = spec(decode={"args": [f"--data-parallel-size={value}"]})
    with pytest.raises(vllm.ArgumentError, match=rf"spec\.decode\.args\[0\]: --data-parallel-size {value}: "):
        vllm.parallelism(pool, Role.DECODE)


@pytest.mark.parametrize(
    ("image", "given_version", "found"),
    [
        ("vllm/vllm-openai:v0.33.0", "", (0, 33)),
        ("host:5000/vllm/vllm-openai:v0.32.1-cu129", "", (0, 32)),
        ("vllm/vllm-openai:v0.33.0@sha256:0123", "", (0, 33)),
        ("vllm/vllm-openai@sha256:0123", "", None),
        ("host:5000/engine", "", None),
        ("own/engine:latest", "", None),
        ("own/engine:0.1.0", "", None),
        ("own/vllm-openai:v0.29.0", "", None),
        ("vllm/vllm-openai:v0.29.1", "", (0, 29)),
        ("mirror.example:5000/docker/vllm/vllm-openai:v0.9.2", "", (0, 9)),
        ("own/engine:0.1.0", "0.31.0", (0, 31)),
        ("vllm/vllm-openai:v0.33.0", "v0.30", (0, 30)),
    ],
)
def test_version(spec: MakeSpec, image: str, given_version: str, found: tuple[int, int] | None) -> None:
    """The spec's word first, then the tag; an own numbering below the oldest supported version says nothing."""
    assert vllm.version(spec(engine={"image": image, "version": given_version})) == found


def test_a_flag_newer_than_the_version_is_not_generated() -> None:
    """An unknown flag would end the engine at its start; unknown versions count as the newest."""
    assert not has_flag("--max-num-active-seqs", (0, 30))
    assert has_flag("--max-num-active-seqs", (0, 32))
    assert has_flag("--max-num-active-seqs", None)
    assert has_flag("--port", (0, 30))


def test_an_old_engine_is_named(spec: MakeSpec) -> None:
    """The message names the field, the version and the oldest one."""
    message = vllm.unsupported_version(spec(engine={"version": "0.29.1"}))
    assert message == "spec.engine.version: vLLM 0.29.1 is older than 0.30, the oldest supported version"
    assert vllm.unsupported_version(spec(engine={"version": "0.30.0"})) is None
    image = "vllm/vllm-openai:v0.29.1"
    message = vllm.unsupported_version(spec(engine={"image": image}))
    assert message == f"{image}: vLLM is older than 0.30, the oldest supported version"
    assert vllm.unsupported_version(spec(engine={"image": image, "version": "0.32"})) is None


def test_a_tag_that_may_be_an_old_version_is_advised(spec: MakeSpec) -> None:
    """An image of one's own is run, and its author is told how its tag reads; a version given ends the doubt."""
    (advice,) = vllm.advice(spec(engine={"image": "own/engine:0.29.1"}))
    assert "reads like 0.29" in advice
    for engine_spec in ({"image": "own/engine:0.29.1", "version": "0.32"}, {"image": "own/engine:1.2"}, {"image": "e"}):
        assert vllm.advice(spec(engine=engine_spec)) == ()


def test_an_engine_is_found_by_its_name(spec: MakeSpec) -> None:
    """Nothing outside the package of an engine needs its name."""
    assert engine(spec()).arguments(spec(), Role.DECODE) == vllm.arguments(spec(), Role.DECODE)
