"""Sizes that follow from a model's shape: KV cache per token, and the bytes that a transfer moves.

Boundary: pure arithmetic. The operator, the router, the planner and the simulator use the same numbers. An unknown
shape is no shape: there is no default to fall back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class KvShape(Protocol):
    """A model as its KV cache sees it."""

    def bytes_per_token(self, value_bytes: float) -> int:
        """Bytes that one more token adds, over all layers and the whole model."""

    def bytes_for(self, tokens: int, value_bytes: float) -> int:
        """Bytes of a sequence of so many tokens."""

    def bytes_per_token_and_shard(self, value_bytes: float, tensor: int) -> int:
        """Bytes that one more token adds on each of `tensor` shards."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Ordinary attention: a key and a value per KV head.

    Bytes per token = layers x 2 x KV heads x head size x bytes per value (the shape of the cache that vLLM allocates:
    `vllm/v1/kv_cache_interface.py`, AttentionSpec.page_size_bytes). Sliding-window layers stop growing at their window.
    """

    layers: int
    """Layers whose cache grows with the sequence."""
    kv_heads: int
    head_size: int
    window_layers: int = 0
    """Further layers that keep a window of the sequence only."""
    window_tokens: int = 0

    def bytes_per_token(self, value_bytes: float) -> int:
        """Bytes that one more token adds, beyond any window."""
        return self.layers * self._layer_bytes(self.kv_heads, value_bytes)

    def bytes_for(self, tokens: int, value_bytes: float) -> int:
        """Bytes of a sequence of so many tokens."""
        windowed = self.window_layers * min(tokens, self.window_tokens) * self._layer_bytes(self.kv_heads, value_bytes)
        return tokens * self.bytes_per_token(value_bytes) + windowed

    def bytes_per_token_and_shard(self, value_bytes: float, tensor: int) -> int:
        """Bytes per token on each shard: heads are divided, and copied where there are fewer heads than shards."""
        return self.layers * self._layer_bytes(max(1, self.kv_heads // tensor), value_bytes)

    def _layer_bytes(self, heads: int, value_bytes: float) -> int:
        return round(2 * heads * self.head_size * value_bytes)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector per token and layer, the same on every shard.

    Bytes per token = layers x (latent rank + rotary size) x bytes per value; no factor 2, as keys and values share it
    (DeepSeek-V2, arXiv 2405.04434, section 2.1; `vllm/v1/kv_cache_interface.py`, MLAAttentionSpec).
    """

    layers: int
    latent_rank: int
    rotary_size: int

    def bytes_per_token(self, value_bytes: float) -> int:
        """Bytes that one more token adds."""
        return self.layers * round((self.latent_rank + self.rotary_size) * value_bytes)

    def bytes_for(self, tokens: int, value_bytes: float) -> int:
        """Bytes of a sequence of so many tokens."""
        return tokens * self.bytes_per_token(value_bytes)

    def bytes_per_token_and_shard(self, value_bytes: float, tensor: int) -> int:
        """Bytes per token on each shard: the latent vector is copied to all of them."""
        del tensor
        return self.bytes_per_token(value_bytes)


def prompt_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """KV blocks that hold a prompt; the last one may be partly filled."""
    if prompt_tokens < 0 or block_tokens < 1:
        raise ValueError("prompt_tokens must be at least 0 and block_tokens at least 1")
    return -(-prompt_tokens // block_tokens)


def transfer_bytes(
    shape: KvShape, *, value_bytes: float, prompt_tokens: int, block_tokens: int, cached_blocks: int = 0
) -> int:
    """Bytes that decode pulls for a prompt: whole blocks, those it holds already left out.

    At least one block of a prompt moves: an engine never takes its whole prompt from its own cache (the last token must
    be computed, so at most (prompt - 1) // block blocks match). Measured on vLLM 0.32 with NIXL 1.5.1; windows of
    sliding layers are not taken into account.

    Args:
        shape: the model.
        value_bytes: bytes per cached value, as 2 for bfloat16.
        prompt_tokens: length of the prompt.
        block_tokens: decode's block size.
        cached_blocks: leading blocks of the prompt that decode holds.
    """
    blocks = prompt_blocks(prompt_tokens, block_tokens)
    matched = min(cached_blocks, max(0, (prompt_tokens - 1) // block_tokens))
    return (blocks - matched) * block_tokens * shape.bytes_per_token(value_bytes)


def transfer_seconds(moved_bytes: int, link_gigabytes_per_second: float) -> float:
    """Seconds that a transfer takes at the link's effective rate (10^9 bytes a second)."""
    return moved_bytes / (link_gigabytes_per_second * 1e9)


PREFILL_EFFICIENCY = 0.5
"""Share of the dense tensor-core speed that prefill reaches; 0.4 to 0.6 is what engines report for large prompts."""
DECODE_EFFICIENCY = 0.7
"""Share of the memory bandwidth that a small decode batch reaches."""


def prefill_tokens_per_second(parameters: float, tflops: float, accelerators: int) -> float:
    """Prompt tokens a second of one replica, by the roofline of its compute.

    A token costs two floating-point operations per parameter (Kaplan et al., arXiv 2001.08361, section 2.1); attention
    over long prompts and experts that stay idle are left out.
    """
    return PREFILL_EFFICIENCY * tflops * 1e12 * accelerators / (2 * parameters)


def decode_step_seconds(weight_bytes: float, terabytes_per_second: float, accelerators: int) -> float:
    """Seconds of one decode step of a small batch: every weight is read once."""
    return weight_bytes / (DECODE_EFFICIENCY * terabytes_per_second * 1e12 * accelerators)
