"""Sizes of models: the shipped table, and what a spec says over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pdpool_api import accelerators, models
from pdpool_api.names import Role

if TYPE_CHECKING:
    from tests.contract.conftest import MakeSpec


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("meta-llama/Llama-3.1-70B-Instruct", 327_680),
        ("Qwen/Qwen2.5-7B-Instruct", 57_344),
        ("Qwen/Qwen2.5-14B-Instruct", 196_608),
        ("Qwen/Qwen3-32B", 262_144),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 131_072),
        ("deepseek-ai/DeepSeek-V3", 70_272),
    ],
)
def test_kv_of_a_token_is_what_the_engine_allocates(name: str, kv_bytes: int) -> None:
    """Bytes per token at 16 bit, checked against the engine's own formula."""
    kv = models.table()[name].kv
    assert kv is not None
    assert kv.bytes_per_token(2) == kv_bytes


@pytest.mark.parametrize("name", models.table())
def test_weights_of_the_table_are_of_a_plausible_form(name: str) -> None:
    """One (FP8) or two bytes (16 bit) for each parameter, so that no figure is off by a power of ten."""
    entry = models.table()[name]
    assert entry.known
    assert entry.parameters is not None
    assert entry.weight_bytes is not None
    assert 0.95 <= entry.weight_bytes / entry.parameters <= 2.05


def test_a_model_that_nobody_knows_stays_unknown(spec: MakeSpec) -> None:
    """No size is made up."""
    found = models.facts(spec(model={"id": "org/unheard-of"}).model)
    assert not found.known
    assert found.latent is None


def test_the_spec_wins_over_the_table_field_by_field(spec: MakeSpec) -> None:
    """A quantised copy of a known model has its shape and other weights."""
    shape = {"weightBytes": "39.8e+9"}
    found = models.facts(spec(model={"id": "meta-llama/Llama-3.1-70B-Instruct", "shape": shape}).model)
    assert found.weight_bytes == pytest.approx(39.8e9)
    assert found.weights_are_given
    assert found.kv_heads == 8


def test_parameters_alone_give_weights_of_16_bit(spec: MakeSpec) -> None:
    """Two bytes a parameter, the published form of most models."""
    found = models.facts(spec(model={"shape": {"parameters": 7e9}}).model)
    assert found.weight_bytes == pytest.approx(14e9)
    assert found.kv is None
    assert not found.known


def test_accelerators_are_counted_once_for_all(spec: MakeSpec) -> None:
    """Replicas times what one takes: parallelism, arguments, or the author's own limits; a CPU takes none."""
    pool = spec(
        prefill={"replicas": 2, "parallelism": {"tensor": 4}},
        decode={"replicas": 3, "resources": {"limits": {"nvidia.com/gpu": "2"}}},
    )
    assert accelerators.of_pool(pool) == 2 * 4 + 3 * 2
    assert accelerators.of_pool(spec(prefill={"hardware": "cpu"}, decode={"hardware": "cpu", "replicas": 9})) == 0


def test_a_surge_stays_under_the_cap(spec: MakeSpec) -> None:
    """What maxGpus leaves is given to prefill first, in whole replicas."""
    pool = spec(prefill={"parallelism": {"tensor": 2}, "rollout": {"maxSurge": 2}}, decode={"rollout": {"maxSurge": 2}})
    assert accelerators.surges(pool) == {Role.PREFILL: 2, Role.DECODE: 2}
    assert accelerators.surges(pool.model_copy(update={"max_gpus": 6})) == {Role.PREFILL: 1, Role.DECODE: 1}
    assert accelerators.surges(pool.model_copy(update={"max_gpus": 3})) == {Role.PREFILL: 0, Role.DECODE: 0}
