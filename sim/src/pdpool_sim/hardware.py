"""How fast an engine of a model is on an accelerator, and how much KV it holds: a roofline over the shipped profiles.

Boundary: pure arithmetic from `pdpool_api.hardware`, `pdpool_api.models` and `pdpool_api.sizing`. A step takes as long
as the slower of its arithmetic and its reading of memory, plus a constant. Sources of the formulas: DistServe (OSDI'24)
appendix A and Sarathi-Serve (OSDI'24) section 3 for what a step costs; the shares of peak that are reached are
assumptions and stand in one place, below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdpool_api import hardware, models
from pdpool_api.names import Role

if TYPE_CHECKING:
    from pdpool_api.hardware import Profile

COMPUTE_SHARE: Final = 0.5
"""Of the peak that large matrix products reach in prefill (published: 40 to 60 %)."""
BANDWIDTH_SHARE: Final = 0.8
"""Of the peak that reading of weights and KV reaches in decode (published: up to 90 %)."""
MEMORY_SHARE: Final = 0.9
"""Of the accelerator's memory that the engine takes (vLLM's default of --gpu-memory-utilization)."""
STEP_OVERHEAD_S: Final = 0.002
"""Scheduling and launches of one step, with graphs."""
TRANSFER_LATENCY_S: Final = 0.002
"""The handshake and bookkeeping of one pull."""
VALUE_BYTES: Final = 2
"""Of a 16-bit KV cache."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a step's cost sees it."""

    parameters: float
    weight_bytes: float
    kv_bytes_per_token: int
    attention_width: int
    """Query heads x head size: what attention's arithmetic grows with."""
    layers: int


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one step of an engine, in terms that a step adds up.

    A step computes `tokens` tokens (each reads every parameter once: 2 operations a parameter) that attend to
    `attended` pairs of token and context (4 operations a pair, layer and unit of width), and reads the weights and
    `kv_tokens` tokens of KV.
    """

    seconds_per_token: float
    seconds_per_pair: float
    weights_s: float
    seconds_per_kv_token: float
    overhead_s: float
    seconds_per_sequence: float = 0.0
    """Of scheduling, sampling and answering, for each sequence that a step advances; the roofline knows nothing of it,
    a measurement does."""

    def step_s(self, tokens: int, attended: float, kv_tokens: int, sequences: int = 0) -> float:
        """Seconds of one step."""
        compute = tokens * self.seconds_per_token + attended * self.seconds_per_pair
        memory = self.weights_s + kv_tokens * self.seconds_per_kv_token
        return max(compute, memory) + self.overhead_s + sequences * self.seconds_per_sequence

    def prefill_s(self, tokens: int, context: int) -> float:
        """Seconds of computing so many prompt tokens behind so much cached context, alone in one step."""
        return self.step_s(tokens, tokens * (context + tokens / 2), context + tokens, 1)


@dataclass(frozen=True, slots=True)
class EngineShape:
    """One engine of one role: its costs and its limits."""

    costs: StepCosts
    kv_tokens: int
    """Tokens of KV that fit."""
    max_batched_tokens: int
    max_seqs: int
    kv_bytes_per_token: int
    link_bytes_per_second: float


LLAMA_8B: Final = "meta-llama/Llama-3.1-8B-Instruct"
_WIDTHS: Final = {
    LLAMA_8B: (4096, 32),
    "meta-llama/Llama-3.3-70B-Instruct": (8192, 80),
    "Qwen/Qwen2.5-14B": (5120, 48),
}
"""Attention width and layers of the models that workloads are run on (their config.json)."""


def known_models() -> list[str]:
    """Models that workloads can be run on."""
    return sorted(_WIDTHS)


def served_model(model_id: str) -> ServedModel:
    """A model of the shipped table.

    Raises:
        KeyError: the model's sizes, or its attention's, are not known here.
    """
    known = models.table()[model_id]
    width, layers = _WIDTHS[model_id]
    if known.parameters is None or known.weight_bytes is None or known.kv is None:
        raise KeyError(model_id)
    return ServedModel(known.parameters, known.weight_bytes, known.kv.bytes_per_token(VALUE_BYTES), width, layers)


def engine_shape(
    model: ServedModel, profile: Profile, role: Role, *, tensor: int = 1, link_gigabytes_per_second: float = 50
) -> EngineShape:
    """An engine of `tensor` accelerators of a profile.

    Args:
        model: what it serves.
        profile: a shipped profile with figures of memory, bandwidth and compute.
        role: whose engine arguments of the profile hold.
        tensor: accelerators of one engine.
        link_gigabytes_per_second: effective rate of its network port (50: InfiniBand of 400 Gb/s).

    Raises:
        ValueError: the profile lacks a figure, or the model does not fit.
    """
    memory, bandwidth, compute = (
        profile.memory_gigabytes,
        profile.bandwidth_terabytes_per_second,
        profile.dense_tflops,
    )
    if memory is None or bandwidth is None or compute is None:
        raise ValueError(f"profile {profile.name} does not say memory, bandwidth and compute")
    operations = compute.bf16 * 1e12 * tensor * COMPUTE_SHARE
    reading = bandwidth * 1e12 * tensor * BANDWIDTH_SHARE
    room = memory * 1e9 * tensor * MEMORY_SHARE - model.weight_bytes
    if room <= 0:
        raise ValueError(f"{model.weight_bytes / 1e9:.0f} GB of weights do not fit into {tensor} x {profile.name}")
    args = profile.settings("VLLM", role).args
    return EngineShape(
        costs=StepCosts(
            seconds_per_token=2 * model.parameters / operations,
            seconds_per_pair=4 * model.attention_width * model.layers / operations,
            weights_s=model.weight_bytes / reading,
            seconds_per_kv_token=model.kv_bytes_per_token / reading,
            overhead_s=STEP_OVERHEAD_S,
        ),
        kv_tokens=int(room / model.kv_bytes_per_token),
        max_batched_tokens=int(args.get("--max-num-batched-tokens") or 8192),
        max_seqs=int(args.get("--max-num-seqs") or 256),
        kv_bytes_per_token=model.kv_bytes_per_token,
        link_bytes_per_second=link_gigabytes_per_second * 1e9,
    )


def shapes(
    model_id: str = LLAMA_8B, prefill: str = "h100-sxm", decode: str = "h100-sxm", *, tensor: int = 1
) -> tuple[EngineShape, EngineShape]:
    """The engines of both roles of a pool, on shipped profiles.

    Raises:
        KeyError: an unknown model or profile.
        ValueError: see `engine_shape`.
    """
    model = served_model(model_id)
    return (
        engine_shape(model, hardware.profile(prefill), Role.PREFILL, tensor=tensor),
        engine_shape(model, hardware.profile(decode), Role.DECODE, tensor=tensor),
    )
