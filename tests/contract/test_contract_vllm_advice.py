"""Settings that work and are probably not what their author wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.engines import vllm

if TYPE_CHECKING:
    from tests.contract.conftest import MakeSpec


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"decode": {"args": ["--enforce-eager"]}}, "decode: --enforce-eager"),
        ({"prefill": {"args": ["--gpu-memory-utilization=0.97"]}}, "prefill: --gpu-memory-utilization 0.97 is above"),
        (
            {
                "model": {"maxModelLen": 512},
                "prefill": {"args": ["--max-num-batched-tokens=16384", "--max-num-seqs=8"]},
            },
            "8 sequences of at most 512 tokens are 4096",
        ),
        (
            {"decode": {"args": ["--speculative-config", '{"method":"mtp"}', "--max-num-seqs=64"]}},
            "decode: speculative decoding with --max-num-seqs 64",
        ),
        ({"decode": {"args": ["--spec-method=ngram"]}}, "--max-num-seqs the engine's default"),
        ({"decode": {"args": ["--swap-space", "4"]}}, "--swap-space is unknown"),
        (
            {"decode": {"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]}},
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_trap_is_named_with_its_role_and_value(spec: MakeSpec, over: dict[str, Any], words: str) -> None:
    """One sentence each, which says what is set and why it is a trap."""
    (found,) = vllm.advice(spec(**over))
    assert words in found


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"decode": {"args": ["--no-enforce-eager"]}},
        {"engine": {"args": ["--gpu-memory-utilization=0.95"]}},
        {"decode": {"args": ["--spec-method=ngram", "--max-num-seqs=32"]}},
        {"prefill": {"args": ["--max-num-batched-tokens=16384", "--max-num-seqs=8"]}},
        {"prefill": {"hardware": "h100-sxm"}, "decode": {"hardware": "l4"}},
    ],
    ids=repr,
)
def test_what_is_fine_or_unknown_is_left_alone(spec: MakeSpec, over: dict[str, Any]) -> None:
    """Shipped profiles are no traps, and without a known length nothing is said of budgets."""
    assert vllm.advice(spec(**over)) == ()
