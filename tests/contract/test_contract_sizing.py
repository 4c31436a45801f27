"""Sizes of KV cache and of transfers, against published shapes and against bytes that real engines moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.sizing import Attention, KvShape, LatentAttention, prompt_blocks, transfer_bytes, transfer_seconds

TINY = Attention(layers=2, kv_heads=2, head_size=64)
"""The model of the end-to-end tests."""


@pytest.mark.parametrize(
    ("shape", "bf16", "fp8"),
    [
        pytest.param(Attention(32, 8, 128), 131_072, 65_536, id="Llama-3.1-8B"),
        pytest.param(Attention(80, 8, 128), 327_680, 163_840, id="Llama-3.1-70B"),
        pytest.param(Attention(28, 4, 128), 57_344, 28_672, id="Qwen2.5-7B"),
        pytest.param(Attention(48, 8, 128), 196_608, 98_304, id="Qwen2.5-14B"),
        pytest.param(Attention(64, 8, 128), 262_144, 131_072, id="Qwen3-32B"),
        pytest.param(Attention(32, 8, 128), 131_072, 65_536, id="Mixtral-8x7B"),
        pytest.param(LatentAttention(61, 512, 64), 70_272, 35_136, id="DeepSeek-V3"),
        pytest.param(Attention(18, 8, 64, window_layers=18, window_tokens=128), 36_864, 18_432, id="gpt-oss-120b"),
    ],
)
def test_kv_bytes_per_token_of_published_models(shape: KvShape, bf16: int, fp8: int) -> None:
    """The formula gives the known sizes of real models, latent attention included."""
    assert (shape.bytes_per_token(2), shape.bytes_per_token(1)) == (bf16, fp8)


@pytest.mark.parametrize(
    ("shape", "gigabytes"),
    [
        pytest.param(Attention(32, 8, 128), 0.537, id="Llama-3.1-8B"),
        pytest.param(Attention(80, 8, 128), 1.342, id="Llama-3.1-70B"),
        pytest.param(Attention(28, 4, 128), 0.235, id="Qwen2.5-7B"),
        pytest.param(LatentAttention(61, 512, 64), 0.288, id="DeepSeek-V3"),
        pytest.param(Attention(18, 8, 64, window_layers=18, window_tokens=128), 0.156, id="gpt-oss-120b"),
    ],
)
def test_kv_of_4096_tokens(shape: KvShape, gigabytes: float) -> None:
    """A prompt of 4,096 tokens has the size that articles about disaggregation reckon with."""
    assert shape.bytes_for(4096, 2) / 1e9 == pytest.approx(gigabytes, abs=0.001)


def test_a_window_stops_growing() -> None:
    """Beyond its window a sliding layer adds nothing."""
    shape = Attention(18, 8, 64, window_layers=18, window_tokens=128)
    assert shape.bytes_for(1000, 2) - shape.bytes_for(999, 2) == shape.bytes_per_token(2)
    assert shape.bytes_for(128, 2) == 128 * 2 * shape.bytes_per_token(2)


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_heads_are_divided_among_shards_and_copied_beyond(tensor: int, heads: int) -> None:
    """More shards than KV heads copy a head to several of them."""
    assert Attention(80, 8, 128).bytes_per_token_and_shard(2, tensor) == Attention(80, heads, 128).bytes_per_token(2)


def test_latent_attention_is_copied_to_every_shard() -> None:
    """The latent vector cannot be divided by heads."""
    assert LatentAttention(61, 512, 64).bytes_per_token_and_shard(2, 8) == 70_272


@pytest.mark.parametrize(
    ("tokens", "cached_blocks", "moved"),
    [
        pytest.param(32, 0, 65_536, id="one block"),
        pytest.param(33, 0, 131_072, id="a partly filled block moves whole"),
        pytest.param(640, 20, 65_536, id="wholly cached: the last block moves all the same"),
        pytest.param(640, 19, 65_536, id="all but the last block cached"),
        pytest.param(480, 11, 262_144, id="4 of 15 blocks"),
        pytest.param(0, 0, 0, id="nothing"),
    ],
)
def test_a_transfer_moves_the_blocks_that_decode_lacks(tokens: int, cached_blocks: int, moved: int) -> None:
    """The bytes equal those seen between real engines with the tiny float32 model and blocks of 32."""
    assert (
        transfer_bytes(TINY, value_bytes=4, prompt_tokens=tokens, block_tokens=32, cached_blocks=cached_blocks) == moved
    )


@given(tokens=st.integers(1, 100_000), block=st.integers(1, 256), cached=st.integers(0, 5000))
def test_a_transfer_is_whole_blocks_and_at_least_one(tokens: int, block: int, cached: int) -> None:
    """Whatever is cached, something moves, and never more than the prompt's blocks."""
    moved = transfer_bytes(TINY, value_bytes=4, prompt_tokens=tokens, block_tokens=block, cached_blocks=cached)
    block_bytes = block * 2048
    assert moved % block_bytes == 0
    assert block_bytes <= moved <= prompt_blocks(tokens, block) * block_bytes


@pytest.mark.parametrize(("tokens", "block"), [(-1, 32), (1, 0)])
def test_impossible_sizes_are_refused(tokens: int, block: int) -> None:
    """A negative prompt or an empty block is an error, not a size."""
    with pytest.raises(ValueError, match="at least"):
        prompt_blocks(tokens, block)


@pytest.mark.parametrize(
    ("link", "milliseconds"), [(450, 3.0), (60, 22.4), (50, 26.8), (25, 53.7), (12.5, 107.4), (1, 1342.2)]
)
def test_transfer_time_of_a_70b_prompt_by_link(link: float, milliseconds: float) -> None:
    """1.34 GB over each usual kind of link."""
    moved = Attention(80, 8, 128).bytes_for(4096, 2)
    assert transfer_seconds(moved, link) * 1000 == pytest.approx(milliseconds, abs=0.1)
