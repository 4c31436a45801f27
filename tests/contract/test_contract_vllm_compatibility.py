"""What prefill and decode must share: the revision's hash, and disagreements."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool, InferencePoolSpec, PoolError

if TYPE_CHECKING:
    from tests.contract.conftest import MakeSpec


SHARED: list[dict[str, Any]] = [
    {"model": {"id": "org/other"}},
    {"model": {"revision": "v2"}},
    {"model": {"servedNames": ["x"]}},
    {"engine": {"image": "e:2"}},
    {"engine": {"args": ["--dtype=half"]}},
    {"engine": {"args": ["--kv_cache_dtype", "fp8"]}},
    {"engine": {"args": ["--attention-backend", "FLASHINFER"]}},
    {"engine": {"args": ["-ac", '{"backend":"FLASHINFER"}']}},
    {"engine": {"args": ["--block-size=64"]}},
    {"engine": {"args": ["--disable-hybrid-kv-cache-manager"]}},
    {"engine": {"args": ["--speculative-config.method=mtp"]}},
    {"engine": {"args": ['--kv-transfer-config={"kv_connector_extra_config":{"backends":["LIBFABRIC"]}}']}},
    {"engine": {"env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "NHD"}]}},
    {"decode": {"args": ["--dtype=half"]}},
]
OWN: list[dict[str, Any]] = [
    {"decode": {"replicas": 9}},
    {"decode": {"args": ["--max-num-seqs=8"]}},
    {"decode": {"env": [{"name": "A", "value": "1"}]}},
    {"engine": {"args": ["--enforce-eager"]}},
    {"engine": {"imagePullPolicy": "Always"}},
    {"transfer": {"leaseSeconds": 60}},
    {"transfer": {"onFailure": "Recompute"}},
    {"model": {"maxModelLen": 4096}},
    {"model": {"servedNames": ["org/model"]}},
    {"prefill": {"drainSeconds": 1}},
    {"router": {"replicas": 3}},
    {"engine": {"args": ["--dtype=auto"]}},
]


@pytest.mark.parametrize("change", SHARED, ids=repr)
def test_a_change_of_what_is_shared_is_a_new_revision(spec: MakeSpec, change: dict[str, Any]) -> None:
    """Fields, arguments in any spelling, and variables of the compatibility list."""
    assert vllm.revision(spec(**change)) != vllm.revision(spec())


@pytest.mark.parametrize("change", OWN, ids=repr)
def test_any_other_change_keeps_the_revision(spec: MakeSpec, change: dict[str, Any]) -> None:
    """What the roles need not share rolls one role within the revision, or nothing."""
    assert vllm.revision(spec(**change)) == vllm.revision(spec())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["--dtype", "half"], ["--dtype=float16"]),
        (["--kv-cache-dtype=fp8"], ["--kv_cache_dtype", "fp8_e4m3"]),
        (["-ac.backend", "flashinfer"], ["--attention-backend=FLASHINFER"]),
        (["--block-size=16", "--block-size=64"], ["--block_size", "64"]),
    ],
)
def test_two_spellings_of_one_setting_are_one_revision(spec: MakeSpec, one: list[str], other: list[str]) -> None:
    """Rewriting an argument without changing it rolls nothing by itself."""
    assert vllm.revision(spec(engine={"args": one})) == vllm.revision(spec(engine={"args": other}))


def test_replicas_of_one_revision_suit_each_other_through_every_edit() -> None:
    """Within a revision the old of one role work with the new of the other: any such mix is a valid pool too."""
    sizes, blocks = (1, 2, 3, 4, 8), ((), ("16", "32"))
    hardware = ({}, {"hardware": "h100-sxm"}, {"hardware": "b200"})
    model = {"id": "org/model", "shape": {"kvHeads": 4}}
    by_revision = defaultdict(list)
    for prefill, decode, sized, on in itertools.product(sizes, sizes, blocks, hardware):
        roles = {
            role: {"parallelism": {"tensor": tensor}, "args": [f"--block-size={each}" for each in size], **on}
            for role, tensor, size in (("prefill", prefill, sized[:1]), ("decode", decode, sized[1:]))
        }
        with contextlib.suppress(PoolError):
            found = _parsed(model=model, **roles)
            if not vllm.disagreements(found):
                by_revision[vllm.revision(found)].append(roles)
    assert max(map(len, by_revision.values())) > 4, "sizes that suit any other are no reason for a revision"
    for alike in by_revision.values():
        for old, new in itertools.permutations(alike, 2):
            mixed = _parsed(model=model, prefill=old["prefill"], decode=new["decode"])
            assert not vllm.disagreements(mixed)
            assert vllm.settings(mixed, Role.PREFILL) == vllm.settings(_parsed(model=model, **old), Role.PREFILL)


def _parsed(**spec: Any) -> InferencePoolSpec:
    return InferencePool.parse({"metadata": {"name": "p"}, "spec": spec}).spec


def test_a_revision_is_part_of_names_and_labels(spec: MakeSpec) -> None:
    """Short, and valid in both."""
    assert re.fullmatch(r"[0-9a-f]{8}", vllm.revision(spec()))


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        (
            {"args": ["--dtype=half"]},
            {"args": ["--dtype=bfloat16"]},
            '--dtype must be equal: prefill has "float16", decode has "bfloat16"',
        ),
        (
            {"args": ["--kv-cache-dtype=fp8"]},
            {},
            '--kv-cache-dtype must be equal: prefill has "fp8_e4m3", decode has the engine\'s default',
        ),
        (
            {"args": ["--block-size=32"]},
            {"args": ["--block_size", "16"]},
            "--block-size of decode must be a multiple of prefill's: prefill has 32, decode has 16",
        ),
        (
            {"args": ["--revision=a"]},
            {"args": ["--revision=b"]},
            '--revision must be equal: prefill has "a", decode has "b"',
        ),
        (
            {"env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "NHD"}]},
            {},
            "VLLM_KV_CACHE_LAYOUT must be equal",
        ),
        ({"args": ["--kv-transfer-config.kv_connector=Other"]}, {}, "connector must be equal"),
        (
            {"args": ["--block-size=16"], "parallelism": {"tensor": 2}},
            {"args": ["--block-size=32"]},
            "--block-size must be equal where prefill's tensor size is the larger",
        ),
        (
            {"args": ["--block-size=16", "-tp=2"]},
            {"args": ["--block-size=32"]},
            "--block-size must be equal where prefill's tensor size is the larger",
        ),
        (
            {"args": ["--tensor-parallel-size=2"]},
            {"args": ["-tp", "3"]},
            "--tensor-parallel-size of the roles must divide one another: prefill has 2, decode has 3",
        ),
        (
            {},
            {"args": ["--pipeline_parallel_size=2"]},
            "--pipeline-parallel-size of decode must be 1: prefill has 1, decode has 2",
        ),
    ],
)
def test_a_disagreement_names_both_values(
    spec: MakeSpec, prefill: dict[str, Any], decode: dict[str, Any], message: str
) -> None:
    """Found in the spec, also through arguments and variables, before a pod is made."""
    (found,) = vllm.disagreements(spec(prefill=prefill, decode=decode))
    assert message in found.message


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({}, {}),
        ({"args": ["--dtype=half"]}, {"args": ["--dtype", "float16"]}),
        ({"args": ["--block-size=16"]}, {"args": ["--block-size=64"]}),
        ({"args": ["--max-num-seqs=4"]}, {"args": ["--max-num-seqs=64"]}),
        ({"parallelism": {"tensor": 4}}, {"parallelism": {"tensor": 2}}),
        ({"args": ["-tp=6"]}, {"args": ["-tp=3"]}),
        ({"args": ["--kv-transfer-config.kv_connector_extra_config.kv_lease_duration=9"]}, {}),
    ],
)
def test_what_may_differ_is_no_disagreement(spec: MakeSpec, prefill: dict[str, Any], decode: dict[str, Any]) -> None:
    """Equal in another spelling, a larger block at decode, or a setting that is each role's own."""
    assert vllm.disagreements(spec(prefill=prefill, decode=decode)) == ()


def test_a_value_of_a_hardware_profile_names_it(spec: MakeSpec) -> None:
    """What the author did not write is looked for in vain in the spec: the profile is named, for the role it is of."""
    found = vllm.disagreements(
        spec(prefill={"hardware": "h100-sxm", "args": ["--attention-backend=FLASH_ATTN"]}, decode={"hardware": "b200"})
    )
    (message,) = [each.message for each in found if each.setting == "--attention-backend"]
    assert 'prefill has "FLASH_ATTN", decode has' in message
    assert message.endswith("(of hardware profile b200)")
